"""What the operator benchmark stands on: a namespace with pools, operator processes under the operator's own rules, and the API
server's audit log, which counts requests without asking the one that is measured.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import httpx

from bench.operator_farm import POOL_BYTES, AgentFarm
from controllers.runtime.rbac import Scope, bound_role, policy_rules
from testbed import processes
from testbed.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = ROOT / "crds" / "manifests"
GROUP = "/apis/grfleet.dev/v1alpha1"
PER_POOL = 100
_OPERATOR = "from controllers.runtime.process import main; raise SystemExit(main())"
ROUTING = {
    "apiVersion": "grfleet.dev/v1alpha1",
    "kind": "RoutingPolicy",
    "metadata": {"name": "default"},
    "spec": {"churn": {"maxMovedPercent": 100, "windowSeconds": 1}, "warmup": {"maxSeconds": 1}},
}
"""Lets tables settle at once. By default users move to late comers over minutes, and a restart would not find all in order."""


# What the API server saw -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the API server, as its audit log has it."""

    at: float
    namespace: str
    verb: str
    resource: str

    @property
    def kind(self) -> str:
        """`lease`, `review` (what may I do), `watch`, `read`, `event` or `write`."""
        if self.resource.startswith("leases"):
            return "lease"
        if self.resource.startswith("selfsubject"):
            return "review"
        if self.verb in ("get", "list", "watch"):
            return "watch" if self.verb == "watch" else "read"
        return "event" if self.resource == "events" else "write"


def audit_flags(directory: Path, namespaces: tuple[str, ...]) -> list[str]:
    """Flags of the API server that log each request of the ServiceAccounts of these namespaces."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{name}" for name in namespaces]},
            {"level": "None"},
        ],
    }
    file = directory / "audit-policy.json"
    file.write_text(json.dumps(policy))
    return [f"--audit-policy-file={file}", f"--audit-log-path={directory / 'audit.log'}"]


class AuditLog:
    """Reads the log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._calls: list[Call] = []

    def calls(self, namespace: str, *, since: float = 0.0) -> list[Call]:
        """Requests of the namespace's ServiceAccounts that arrived since then (Unix seconds), in the order of the log."""
        self._read()
        return [call for call in self._calls if call.namespace == namespace and call.at >= since]

    def count(self, namespace: str, *, since: float = 0.0) -> Counter[str]:
        """How many of each kind."""
        return Counter(call.kind for call in self.calls(namespace, since=since))

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    return  # the rest of it is still to come
                self._offset += len(line)
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        watch = event["verb"] == "watch"
        if event["stage"] != ("ResponseStarted" if watch else "ResponseComplete"):
            return
        what = event.get("objectRef") or {}
        resource = "/".join(filter(None, (what.get("resource"), what.get("subresource")))) or "discovery"
        namespace = event["user"]["username"].split(":")[2]
        at = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        self._calls.append(Call(at, namespace, event["verb"], resource))


# One operator ------------------------------------------------------------------------------------------------------


class Home(Protocol):
    """What an operator needs: its namespace, its credentials, and a folder for its log."""

    directory: Path
    namespace: str
    kubeconfig: Path


class OperatorProcess:
    """One running operator, or what other code makes of its process. A context manager: at its end the process is gone."""

    def __init__(self, site: Home, name: str, *, code: str = _OPERATOR) -> None:
        self.name = name
        self.log = site.directory / f"{site.namespace}-{name}.log"
        variables = {
            "KUBECONFIG": str(site.kubeconfig),
            "PYTHONPATH": str(ROOT),
            "GRFLEET_NAMESPACE": site.namespace,
            "GRFLEET_LEASE_NAMESPACE": site.namespace,
            "GRFLEET_METRICS_PORT": "0",
            "GRFLEET_IDENTITY": name,
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GRFLEET_")} | variables
        self._http = httpx.Client(timeout=2, trust_env=False)
        self.started = time.time()
        with self.log.open("wb") as stream:
            self._child = subprocess.Popen(
                [sys.executable, "-c", code], stdout=stream, stderr=stream, env=environment, cwd=site.directory
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._http.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def cpu_seconds(self) -> float:
        """User and system time since the process began."""
        used = processes.usage(self.pid)
        if used is None:
            raise RuntimeError(f"the operator ended while it was measured:\n{self.tail()}")
        return used.cpu_seconds

    def rss_mib(self, field: str = "VmRSS") -> float:
        """Resident memory now (`VmRSS`) or at most (`VmHWM`)."""
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0

    def leads(self) -> bool:
        """Whether it says that it holds the Lease; False when it does not answer."""
        try:
            text = self._http.get(f"{self._address()}/metrics").text
        except httpx.HTTPError:
            return False
        return re.search(r"^leader_election_master_status\{[^}]*\} 1\.0$", text, re.M) is not None

    def ready(self) -> bool:
        """Whether its store is complete."""
        try:
            return self._http.get(f"{self._address()}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def terminate(self) -> float:
        """SIGTERM; returns the seconds until the exit."""
        began = time.monotonic()
        self._child.send_signal(signal.SIGTERM)
        self._child.wait(timeout=20)
        return time.monotonic() - began

    def send(self, number: signal.Signals) -> None:
        """Send a signal and do not wait."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self.running:
            self._child.kill()
        self._child.wait()

    def _address(self) -> str:
        for line in self.log.read_text().splitlines():
            if line.startswith("{") and (found := json.loads(line).get("address")):
                return f"http://{found}"
        raise httpx.ConnectError("the operator has not said its address yet")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


# The namespace -----------------------------------------------------------------------------------------------------


class Site:
    """A namespace with `instances` external entries in pools of a hundred, and the operator's ServiceAccount in it."""

    def __init__(self, plane: ControlPlane, farm: AgentFarm, directory: Path, namespace: str, *, instances: int) -> None:
        self.plane, self.farm, self.directory, self.namespace, self.instances = plane, farm, directory, namespace, instances
        self.audit = AuditLog(directory / "audit.log")
        self.api = plane.client()
        self._prepare()

    def close(self) -> None:
        self.api.close()

    def operator(self, name: str = "a") -> OperatorProcess:
        """Start an operator that serves this namespace."""
        return OperatorProcess(self, name)

    def agent_urls(self) -> list[str]:
        return [self._agent_url(number) for number in range(self.instances)]

    def all_true(self, *conditions: str) -> bool:
        """Whether every pool says True to all these conditions."""
        pools = self.api.get(f"{GROUP}/namespaces/{self.namespace}/grservingpools").json()["items"]
        return all(_says_true(pool, condition) for pool in pools for condition in conditions)

    def lease_holder(self) -> str:
        """Name of the operator that holds the Lease, empty if nobody does."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/grfleet-operator"
        spec = self.api.get(path).json().get("spec") or {}
        return str(spec.get("holderIdentity") or "").split("_")[0]

    def baseline(self, mode: str) -> dict[str, float]:
        """Run the bare loop in a process of its own."""
        job = {
            "url": self.plane.url,
            "token": self.plane.admin_token,
            "ca_file": str(self.plane.ca_file),
            "namespace": self.namespace,
            "agents": self.agent_urls(),
        }
        return run_baseline(mode, job)

    def _agent_url(self, number: int) -> str:
        return self.farm.url(f"{self.namespace}-{number}", number)

    def _prepare(self) -> None:
        self._post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.kubeconfig = operator_kubeconfig(self.plane, self.api, self.namespace)
        self._post(f"{GROUP}/namespaces/{self.namespace}/routingpolicies", ROUTING)
        for first in range(0, self.instances, PER_POOL):
            numbers = range(first, min(first + PER_POOL, self.instances))
            self._post(f"{GROUP}/namespaces/{self.namespace}/grservingpools", self._pool(f"pool-{first // PER_POOL}", numbers))

    def _pool(self, name: str, numbers: range) -> dict[str, Any]:
        entries = [{"name": f"i{n}", "serviceURL": f"http://127.0.0.1:9/{n}", "agentURL": self._agent_url(n)} for n in numbers]
        model = {"name": "ranker", "version": "1", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192}
        return {
            "apiVersion": "grfleet.dev/v1alpha1",
            "kind": "GRServingPool",
            "metadata": {"name": name},
            "spec": {
                "model": model,
                "instances": {"external": entries},
                "memory": {"hbmBytes": str(POOL_BYTES)},
                "slo": {"p99Ms": 50},
            },
        }

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self.api.post(path, json=body).raise_for_status()


def run_baseline(mode: str, job: dict[str, Any]) -> dict[str, float]:
    """Run a mode of `bench.operator_baseline` in a process of its own; what it says it cost."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.operator_baseline", mode],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=600,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def operator_kubeconfig(plane: ControlPlane, api: httpx.Client, namespace: str) -> Path:
    """Kubeconfig of a new ServiceAccount that may do in its namespace what the operator's rules say, and nothing else."""
    account = {"metadata": {"name": "operator"}}
    api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", json=account).raise_for_status()
    rules = [rule for scope in Scope for rule in policy_rules(scope)]
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    for body in bound_role("operator", rules, account="operator", namespace=namespace, cluster=False):
        api.post(f"{roles}/{body['kind'].lower()}s", json=body).raise_for_status()
    return plane.service_account_kubeconfig(namespace, "operator")


def _says_true(pool: dict[str, Any], condition: str) -> bool:
    status = pool.get("status") or {}
    return any(item["type"] == condition and item["status"] == "True" for item in status.get("conditions") or ())
