"""Helpers of the process tests: a small real loop, a ServiceAccount with exactly the operator's rules, and a process to run."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from operator_forks import ForkedProcess, ForkServer

from controllers.runtime import process
from controllers.runtime.conditions import Condition, conditions_of, set_conditions
from controllers.runtime.controller import Result
from controllers.runtime.loop import Context
from controllers.runtime.rbac import RULES, Scope, bound_role, policy_rules
from controllers.runtime.resources import INSTANCES, POOLS, Key, ResourceType, identity
from controllers.runtime.store import Store, WatchEvent
from testbed.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[3]
MANAGER = "grfleet-pool"


class ReadyLoop:
    """The smallest loop that does something: it says of each pool whether any of its instances is known."""

    name = "ready"
    keyed_by = POOLS
    watches: tuple[ResourceType, ...] = (POOLS, INSTANCES)

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """The pool itself, or the pool of the instance."""
        return [event.key] if event.resource == POOLS else [Key(event.key.namespace, event.obj["spec"]["poolRef"])]

    async def start(self, ctx: Context) -> None:
        """Nothing to prepare."""

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Write the condition, and an Event when it changes."""
        pool = ctx.store.get(POOLS, key)
        if pool is None:
            return None
        found = ctx.store.of_pool(INSTANCES, key)
        ready = Condition("Ready", "True", "AllInstancesReady", f"{len(found)} instances")
        if not found:
            ready = Condition("Ready", "False", "NoInstances")
        generation = pool["metadata"]["generation"]
        items = set_conditions(conditions_of(pool), [ready], observed_generation=generation, now=ctx.clock.now())
        desired = {**identity(POOLS, key), "status": {"observedGeneration": generation, "conditions": items}}
        written = await ctx.kube.apply_status(POOLS, desired, field_manager=MANAGER, current=pool)
        if written is not pool:
            ctx.events.emit(pool, "Normal", ready.reason, ready.message or "none", action="Observed", controller=self.name)
        return None


def grant(kubectl: Callable[..., Any], namespace: str, account: str, *, rules: list[dict[str, Any]], cluster: bool) -> None:
    """Bind rules to a ServiceAccount of the namespace, as a Role there or as a ClusterRole."""
    name = f"{namespace}-{account}-{'clusterrole' if cluster else 'role'}"
    items = {
        "apiVersion": "v1",
        "kind": "List",
        "items": bound_role(name, rules, account=account, namespace=namespace, cluster=cluster),
    }
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(items))


def operator_account(
    plane: ControlPlane, namespace: str, *, without: Callable[[dict[str, Any]], bool] = lambda rule: False
) -> Path:
    """Kubeconfig of a new ServiceAccount that may do what the rules say, in its namespace only, and nothing else."""
    plane.kubectl("create", "serviceaccount", "operator", "-n", namespace)
    rules = [rule for scope in Scope for rule in policy_rules(scope, RULES) if not without(rule)]
    grant(plane.kubectl, namespace, "operator", rules=rules, cluster=False)
    return plane.service_account_kubeconfig(namespace, "operator")


@dataclass
class OperatorProcess:
    """A running operator and the file with its log."""

    child: ForkedProcess
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        """Its JSON log lines so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def address(self) -> str:
        """Base URL of its probes, once it has said it."""
        found = wait_for(lambda: next((x["address"] for x in self.lines() if "address" in x), None), self)
        return f"http://{found}"

    def ready(self) -> bool:
        """Whether /readyz says yes now."""
        return httpx.get(f"{self.address()}/readyz", timeout=5).status_code == 200

    def metric(self, name: str) -> float:
        """Sum of all series of a metric."""
        text = httpx.get(f"{self.address()}/metrics", timeout=5).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.M))

    def leads(self) -> bool:
        """Whether it holds the Lease."""
        return self.metric("leader_election_master_status") == 1

    def terminate(self, *, within_seconds: float = 20) -> tuple[int, float]:
        """SIGTERM; returns exit code and seconds until the exit."""
        began = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=within_seconds), time.monotonic() - began


@cache
def _forks() -> ForkServer:
    """The server of this test process."""
    return ForkServer()


@contextmanager
def running_operator(
    directory: Path, kubeconfig: Path, namespace: str, *flags: str, name: str = "operator", command: list[str] | None = None
) -> Iterator[OperatorProcess]:
    """Start an operator with the ReadyLoop (or another command) and end it at the end, whatever happens."""
    log = directory / f"{name}.log"
    default = [sys.executable, __file__, "--namespace", namespace, "--lease-namespace", namespace, "--metrics-port", "0", *flags]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT), "GRFLEET_METRICS_PORT": "0"}
    environment |= {"GRFLEET_NAMESPACE": namespace, "GRFLEET_LEASE_NAMESPACE": namespace}
    with log.open("wb") as stream:
        child = _forks().start(command or default, environment=environment, directory=directory, log=stream.fileno())
    try:
        yield OperatorProcess(child, log)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def wait_for(look: Callable[[], Any], operator: OperatorProcess | None = None, *, seconds: float = 40) -> Any:
    """Poll until the look returns something true; shows the operator's log if it doesn't."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        if operator is not None and operator.child.poll() is not None:
            raise AssertionError(f"the operator ended with {operator.child.returncode}: {operator.log.read_text()[-3000:]}")
        time.sleep(0.05)
    raise AssertionError(f"nothing within {seconds} s; log: {operator.log.read_text()[-3000:] if operator else '-'}")


if __name__ == "__main__":
    raise SystemExit(process.main(loops=lambda: [ReadyLoop()]))
