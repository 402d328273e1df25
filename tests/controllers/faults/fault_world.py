"""The world of a fault test: a namespace with a pool, agents of the test, and operators that reach the API server by a proxy.

`change` gives the operator work that touches everything it writes: intents, instances that come and go, the table, status.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fault_oracle
import httpx
from fault_agents import AgentFarm
from runtime_operator import OperatorProcess, operator_account, running_operator

from testbed.control_plane import ControlPlane
from testbed.faults import Exchange, FaultProxy

GROUP = "/apis/grfleet.dev/v1alpha1"
COMMAND = [sys.executable, str(Path(__file__).with_name("fault_operator.py"))]
ENTRIES = ("a", "b", "c")
GUEST = "d"
BOUND_SECONDS = 60.0


class World:
    """See the module. `proxies` has one proxy for each operator; `proxy` is the first."""

    def __init__(
        self, plane: ControlPlane, api: httpx.Client, namespace: str, directory: Path, farm: AgentFarm, stack: ExitStack
    ) -> None:
        self.plane, self.api, self.namespace, self.farm = plane, api, namespace, farm
        self._directory, self._stack = directory, stack
        self._account = operator_account(plane, namespace)
        self.proxies: dict[str, FaultProxy] = {}
        self.processes: dict[str, OperatorProcess] = {}
        self.entries: list[str] = []
        self.fallback_percent = 50
        self.p99_ms = 50
        self.created: dict[str, int] = {}
        self.public_key = b""
        self.strategy: dict[str, Any] = {"strategy": "MissRatioCurve"}
        self.models: dict[str, str] = {}
        self.proxy_of("one")

    # -- operators ------------------------------------------------------------------------------------------------

    @property
    def proxy(self) -> FaultProxy:
        return self.proxies["one"]

    def proxy_of(self, name: str) -> FaultProxy:
        """The proxy of that operator, made when needed."""
        if name not in self.proxies:
            self.proxies[name] = self._stack.enter_context(FaultProxy(self.plane, name=f"{self.namespace}-{name}"))
        return self.proxies[name]

    @contextmanager
    def operator(self, name: str = "one", *flags: str) -> Iterator[OperatorProcess]:
        """A running operator whose every request goes through its proxy; it is killed at the end."""
        kubeconfig = self.proxy_of(name).kubeconfig(self._account)
        own = ["--identity", name, "--log-level", "INFO", *flags]
        run = f"{name}-{secrets.token_hex(2)}"
        with running_operator(self._directory, kubeconfig, self.namespace, name=run, command=[*COMMAND, *own]) as started:
            self.processes[name] = started
            yield started

    # -- what people do -------------------------------------------------------------------------------------------

    def make_policies(self) -> None:
        """Policies that let users move at once and warm nothing, so that a test need not wait for either."""
        routing = {"churn": {"maxMovedPercent": 100, "windowSeconds": 1}, "warmup": {"maxSeconds": 1}}
        self._create("RoutingPolicy", "routingpolicies", "default", routing)
        self._create("HBMPolicy", "hbmpolicies", "default", self._hbm())

    def make_pool(self, *, entries: tuple[str, ...] = ENTRIES) -> None:
        """The pool `pool`."""
        self._set_entries([*entries])
        self._create("GRServingPool", "grservingpools", "pool", self._pool())

    def learn(self, name: str, data: bytes) -> None:
        """An AllocatorModel with its bytes, made when it is not there, and a default policy that runs it at once."""
        if name not in self.models:
            binary = {"model.safetensors": base64.b64encode(data).decode()}
            body = {"metadata": {"name": name}, "binaryData": binary, "immutable": True}
            self.api.post(f"/api/v1/namespaces/{self.namespace}/configmaps", json=body).raise_for_status()
            self.models[name] = hashlib.sha256(data).hexdigest()
            spec = {"configMapKeyRef": {"name": name}, "sha256": self.models[name], "featureSpec": "split-features-1"}
            self._create("AllocatorModel", "allocatormodels", name, spec)
        self.strategy = {
            "strategy": "Learned",
            "enforcement": "Active",
            "learned": {"model": name},
            "rollout": {"canaryPercent": 100, "soakSeconds": 0},
        }
        self._patch("hbmpolicies", "default", self._hbm())

    def change(self) -> None:
        """New bounds, another target, and an instance that comes or goes."""
        self.fallback_percent = 40 + (self.fallback_percent - 39) % 20
        self.p99_ms += 1
        self._patch("hbmpolicies", "default", self._hbm())
        guest = [] if GUEST in self.entries else [GUEST]
        self._set_entries([*(name for name in self.entries if name != GUEST), *guest])
        self._patch("grservingpools", "pool", self._pool())

    def change_policy(self) -> None:
        """What `strategy` says now, and nothing else."""
        self._patch("hbmpolicies", "default", self._hbm())

    def change_target(self) -> None:
        """Another target for the P99, and nothing else."""
        self.p99_ms += 1
        self._patch("grservingpools", "pool", self._pool())

    def _set_entries(self, entries: list[str]) -> None:
        for name in entries:
            if name not in self.entries:
                self.created[f"pool-{name}"] = self.created.get(f"pool-{name}", 0) + 1
        self.entries = entries

    def _hbm(self) -> dict[str, Any]:
        return {**self.strategy, "bounds": {"fallbackEmbPercent": self.fallback_percent}}

    def _pool(self) -> dict[str, Any]:
        model = {"name": "ranker", "version": "1", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192}
        return {
            "model": model,
            "instances": {"external": [self.farm.entry(name) for name in self.entries]},
            "memory": {"hbmBytes": "2Gi"},
            "slo": {"p99Ms": self.p99_ms},
        }

    def _create(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": "grfleet.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.api.post(self.path(plural), json=body).raise_for_status()

    def _patch(self, plural: str, name: str, spec: dict[str, Any]) -> None:
        content = {"content-type": "application/merge-patch+json"}
        self.api.patch(f"{self.path(plural)}/{name}", json={"spec": spec}, headers=content).raise_for_status()

    # -- what is there --------------------------------------------------------------------------------------------

    def path(self, plural: str) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/{plural}"

    def get(self, plural: str, name: str) -> dict[str, Any]:
        """The object, asked from the API server itself; empty if there is none."""
        answer = self.api.get(f"{self.path(plural)}/{name}")
        return answer.json() if answer.status_code == 200 else {}

    def list(self, plural: str) -> list[dict[str, Any]]:
        """All objects of a kind in the namespace."""
        items: list[dict[str, Any]] = self.api.get(self.path(plural)).raise_for_status().json()["items"]
        return items

    def writes(self) -> list[Exchange]:
        """Writes of all operators in the order in which they came in."""
        return sorted((each for proxy in self.proxies.values() for each in proxy.writes()), key=lambda each: each.received_s)

    # -- the oracle -----------------------------------------------------------------------------------------------

    def differences(self) -> list[str]:
        """What is not yet as it should be; empty once the fleet has converged."""
        return fault_oracle.differences(self)

    def violations(self) -> list[str]:
        """What should never have happened."""
        return fault_oracle.violations(self)

    def converges(self, *, seconds: float = BOUND_SECONDS, quiet_seconds: float = 1.0) -> float:
        """Wait until the fleet is as the pool asks and nobody writes any more; returns how long the first took.

        Raises
        ------
        AssertionError
            It does not within the bound, a write follows when all is well, or an invariant was broken on the way.
        """
        began = time.monotonic()
        while differences := self.differences():
            if time.monotonic() - began > seconds:
                raise AssertionError(f"no convergence within {seconds:.0f} s: {differences}; log:\n{self.log_tail()}")
            time.sleep(0.1)
        took = time.monotonic() - began
        print(f"converged in {took:.1f} s")  # noqa: T201 - pytest shows it for a test that fails, or with -s
        self._comes_to_rest(quiet_seconds, deadline_s=began + seconds)
        broken = self.violations()
        assert not broken, f"{broken[:8]}; log:\n{self.log_tail()}"
        return took

    def until(self, look: Callable[[], Any], *, seconds: float = BOUND_SECONDS) -> None:
        """Poll until the look returns something true; says what operators did if it doesn't."""
        end = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < end, f"nothing within {seconds:.0f} s; log:\n{self.log_tail()}"
            time.sleep(0.05)

    def _comes_to_rest(self, quiet_seconds: float, *, deadline_s: float) -> None:
        """Numbers may follow for a moment; then for a while there is no write at all."""
        while True:
            before = self._versions()
            counted = len(self._own_writes())
            time.sleep(quiet_seconds)
            late = self._own_writes()[counted:]
            if not late and self._versions() == before and not self.differences():
                return
            if time.monotonic() > deadline_s:
                wrote = [(each.method, each.path, each.status) for each in late]
                raise AssertionError(f"no rest; written: {wrote}, moved: {before.items() ^ self._versions().items()}")

    def _own_writes(self) -> list[Exchange]:
        return [each for each in self.writes() if fault_oracle.is_work(each)]

    def _versions(self) -> dict[str, str]:
        return {
            f"{plural}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for plural in ("grservingpools", "grinstances", "grroutingtables", "allocatormodels")
            for item in self.list(plural)
        }

    def log_tail(self) -> str:
        """The end of the logs of all operators."""
        last = [f"{each.method} {each.path} {each.status} told {each.told}" for each in self.proxy.exchanges()[-8:]]
        logs = (
            path.read_text()[-3000:] for path in sorted(self._directory.glob("*.log"), key=lambda path: path.stat().st_mtime)[-3:]
        )
        waiting = [f"{each.method} {each.path} since {time.monotonic() - each.received_s:.1f} s" for each in self.proxy.pending()]
        return "\n".join([*logs, "last requests:", *last, "under way:", *waiting])


@contextmanager
def open_world(plane: ControlPlane, api: httpx.Client, directory: Path) -> Iterator[World]:
    """A new namespace with its policies, agents and proxy; deleted afterwards without waiting."""
    namespace = f"faults-{secrets.token_hex(4)}"
    api.post("/api/v1/namespaces", json={"metadata": {"name": namespace}}).raise_for_status()
    with ExitStack() as stack:
        farm = stack.enter_context(AgentFarm())
        world = World(plane, api, namespace, directory, farm, stack)
        world.make_policies()
        yield world
    api.delete(f"/api/v1/namespaces/{namespace}")
