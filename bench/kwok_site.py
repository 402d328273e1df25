"""What the benchmark of many pods stands on: a namespace on fake nodes, a Deployment in it, and processes that watch its pods."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.operator_site import ROOT, OperatorProcess, operator_kubeconfig
from testbed import processes
from testbed.kwok import FakeCluster

PATIENCE_SECONDS = 900.0
LABELS = {"app": "ranker"}
_WATCHER = "from bench.kwok_watcher import main; raise SystemExit(main())"
_MERGE = {"content-type": "application/merge-patch+json"}


def until(look: Callable[[], bool], what: str, *, pause_seconds: float = 0.1) -> float:
    """Wait until the look says yes; returns the seconds that took.

    Raises
    ------
    TimeoutError
        It did not within a quarter of an hour.
    """
    began = time.monotonic()
    while not look():
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise TimeoutError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(pause_seconds)
    return time.monotonic() - began


def store_complete(operator: OperatorProcess) -> bool:
    """Whether its store is.

    Raises
    ------
    RuntimeError
        It has ended; the message carries the end of its log.
    """
    if not operator.running:
        raise RuntimeError(f"the operator ended before its store was complete:\n{operator.tail()}")
    return operator.ready()


class BareWatcher:
    """One process of `bench.kwok_baseline`. A context manager: at its end the process is gone."""

    def __init__(self, site: "PodSite", name: str) -> None:
        job = {
            "url": site.plane.url,
            "token": site.plane.admin_token,
            "ca_file": str(site.plane.ca_file),
            "namespace": site.namespace,
        }
        self.log = site.directory / f"{name}.log"
        with self.log.open("wb") as stream:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "bench.kwok_baseline"], stdin=subprocess.PIPE, stdout=stream, stderr=stream, cwd=ROOT
            )
        assert self._child.stdin is not None
        with self._child.stdin as job_end:
            job_end.write(json.dumps(job).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._child.kill()
        self._child.wait()

    def ready(self) -> bool:
        """Whether its list is in."""
        self._check()
        return "listed" in self.log.read_text()

    def cpu_seconds(self) -> float:
        """User and system time since the process began."""
        self._check()
        return cpu_of(self._child.pid)

    def rss_mib(self, field: str = "VmRSS") -> float:
        """Resident memory now (`VmRSS`) or at most (`VmHWM`)."""
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self._child.pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0

    def _check(self) -> None:
        if self._child.poll() is not None:
            raise RuntimeError(f"the baseline ended while it was measured:\n{self.log.read_text()[-2000:]}")


def cpu_of(pid: int) -> float:
    """User and system seconds of a live process.

    Raises
    ------
    RuntimeError
        It has ended.
    """
    used = processes.usage(pid)
    if used is None:
        raise RuntimeError(f"process {pid} ended while it was measured")
    return used.cpu_seconds


class PodSite:
    """A namespace, a Deployment in it that begins without pods, and the operator's ServiceAccount.

    Every pod has the two named ports of an instance, at `port`: a pool can adopt it by `LABELS`.
    """

    def __init__(self, cluster: FakeCluster, directory: Path, *, namespace: str, port: int) -> None:
        self.cluster, self.plane, self.directory, self.namespace = cluster, cluster.plane, directory, namespace
        self.api = cluster.plane.client()
        self.deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/ranker"
        self._post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.kubeconfig = operator_kubeconfig(self.plane, self.api, namespace)
        self._post(self.deployment.rpartition("/")[0], _deployment(port))

    def close(self) -> None:
        self.api.close()

    def watcher(self, name: str) -> OperatorProcess:
        """Start the operator's process with a loop that only watches pods."""
        return OperatorProcess(self, name, code=_WATCHER)

    def bare(self, name: str) -> BareWatcher:
        """Start the baseline."""
        return BareWatcher(self, name)

    def scale(self, replicas: int) -> None:
        self.api.patch(f"{self.deployment}/scale", json={"spec": {"replicas": replicas}}, headers=_MERGE).raise_for_status()

    def available(self) -> int:
        """How many pods are Ready, as the Deployment's controller has it."""
        status: dict[str, int] = self.api.get(self.deployment).raise_for_status().json()["status"]
        return status.get("availableReplicas", 0)

    def addresses(self) -> list[str]:
        """Those of all pods."""
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods").raise_for_status().json()["items"]
        return [item["status"]["podIP"] for item in items]

    def empty(self) -> bool:
        """Whether no pod is left."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return not self.api.get(path, params={"limit": "1"}).raise_for_status().json()["items"]

    def cluster_cpu(self) -> dict[str, float]:
        """CPU seconds of each component of the cluster so far."""
        return {name: cpu_of(pid) for name, pid in self.cluster.process_ids().items()}

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self.api.post(path, json=body).raise_for_status()


def _deployment(port: int) -> dict[str, Any]:
    agent = {
        "name": "grfleet-agent",
        "image": "none",
        "restartPolicy": "Always",
        "ports": [{"name": "grfleet-agent", "containerPort": port}],
    }
    engine = {"name": "engine", "image": "none", "ports": [{"name": "gr", "containerPort": 1}]}
    template = {"metadata": {"labels": LABELS}, "spec": {"initContainers": [agent], "containers": [engine]}}
    spec = {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": template}
    return {"metadata": {"name": "ranker"}, "spec": spec}
