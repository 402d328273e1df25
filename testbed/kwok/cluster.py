"""A control plane whose nodes and pods are played by kwok, as one thing to start and to stop.

API server, controllers and scheduler are the real ones, with limits that do not slow down a thousand nodes. Fake nodes never
send a heartbeat but renew a Lease, so the controllers wait long before they take one for lost. Every fake address lies in
127.64.0.0/10: whatever asks a fake pod stays on this machine, and a test may answer for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from testbed import processes
from testbed.binaries import Binaries, ensure_binaries, find_binaries
from testbed.control_plane import ControlPlane, ControlPlaneError
from testbed.kwok import stages
from testbed.node.configuration import scheduler_command
from testbed.versions import CONTROL_PLANE_PROGRAMS, FAKE_NODE_PROGRAMS

NODE_IP, POD_CIDR = "127.127.0.1", "127.64.0.1/10"
NODE_LABELS = {"type": "kwok", "kubernetes.io/os": "linux"}
LEASE_SECONDS, GRACE_SECONDS = 200, 300
PODS_PER_NODE = 110
_CAPACITY = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": str(PODS_PER_NODE)}
_QUICK = ("--kube-api-qps=500", "--kube-api-burst=1000")
_ROLE: list[dict[str, list[str]]] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "delete"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "list", "watch", "create", "update", "patch"],
    },
]


def why_not() -> str | None:
    """Why this machine cannot play nodes right now; None if it can. Builds nothing."""
    names = (*CONTROL_PLANE_PROGRAMS, *FAKE_NODE_PROGRAMS)
    found = find_binaries(names).paths
    missing = [name for name in names if name not in found]
    return f"{', '.join(missing)} missing; run `grfleet testbed build --kwok`" if missing else None


class FakeCluster:
    """A control plane with fake nodes; several may run at once, and no root is needed.

    Parameters
    ----------
    nodes
        How many; each takes 110 pods.
    directory
        Where everything of it goes and stays; None means a temporary one that is removed at the end.
    start_timeout_seconds
        How long each part may take to become ready, and all nodes together.
    progress
        Receives one line of text at a time when programs have to be made first.
    api_server_flags, controller_manager_flags
        Further flags of the control plane.
    """

    def __init__(
        self,
        nodes: int,
        directory: Path | None = None,
        *,
        start_timeout_seconds: float = 90.0,
        progress: Callable[[str], None] | None = None,
        api_server_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = (),
    ) -> None:
        self.nodes = nodes
        self._timeout = start_timeout_seconds
        self._progress = progress
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        own = (*_QUICK, f"--node-monitor-grace-period={GRACE_SECONDS}s")
        self.plane = ControlPlane(
            directory,
            start_timeout_seconds=start_timeout_seconds,
            progress=progress,
            api_server_flags=api_server_flags,
            controller_manager_flags=[*own, *controller_manager_flags],
        )

    def __enter__(self) -> Self:
        self.create()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.destroy()

    def create(self) -> None:
        """Start it and wait until every node is Ready.

        Raises
        ------
        testbed.binaries.BinariesMissingError
            The programs can neither be found nor made.
        ControlPlaneError
            A part did not start; what had started is gone again.
        """
        binaries = ensure_binaries((*CONTROL_PLANE_PROGRAMS, *FAKE_NODE_PROGRAMS), progress=self._progress)
        self.plane.start()
        try:
            self._start(binaries)
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Stop it; no process and no file stays."""
        self.plane.stop()
        for child in self._children.values():
            child.wait()
        self._children.clear()

    def process_ids(self) -> dict[str, int]:
        """Process id by component, those of the control plane included."""
        return {**self.plane.process_ids(), **{name: child.pid for name, child in self._children.items()}}

    # Inside ------------------------------------------------------------------------------------------------------

    def _start(self, binaries: Binaries) -> None:
        directory = self.plane.directory
        self.plane.component_kubeconfig("kube-scheduler")
        kubeconfig = self.plane.component_kubeconfig("kwok")
        config = directory / "kwok.yaml"
        config.write_text("\n---\n".join(json.dumps(stage) for stage in stages.documents()) + "\n")
        with self.plane.client() as client:
            self._apply_objects(client)
            self._run("kube-scheduler", [*scheduler_command(binaries["kube-scheduler"], directory), *_QUICK])
            flags = [f"--kubeconfig={kubeconfig}", f"--config={config}", "--manage-all-nodes=true", f"--cidr={POD_CIDR}"]
            flags += ["--v=WARN", f"--node-ip={NODE_IP}", f"--node-lease-duration-seconds={LEASE_SECONDS}"]
            self._run("kwok", [binaries["kwok"], *flags])
            self._wait_ready(client)

    def _run(self, name: str, command: Sequence[str | Path]) -> None:
        # HOME is where kwok looks for a configuration of the user's, which is none of ours.
        environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG" and not k.startswith("KWOK_")}
        environment["HOME"] = str(self.plane.directory)
        self._children[name] = processes.start(
            name, command, log=self.plane.log(name), record=self.plane.adopt, environment=environment
        )

    def _apply_objects(self, client: httpx.Client) -> None:
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "testbed:kwok"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "testbed:kwok"}
        metadata = {"name": "testbed:kwok"}
        _create(client, f"{rbac}/clusterroles", {"metadata": metadata, "rules": _ROLE})
        _create(client, f"{rbac}/clusterrolebindings", {"metadata": metadata, "roleRef": reference, "subjects": [subject]})
        # In a kept directory the nodes are still the old kwok's, and the new one would wait until those Leases have run out.
        client.delete("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        for number in range(self.nodes):
            name = f"fake-{number:04}"
            labels = {**NODE_LABELS, "kubernetes.io/hostname": name}
            status = {"capacity": _CAPACITY, "allocatable": _CAPACITY}
            _create(client, "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "status": status})

    def _wait_ready(self, client: httpx.Client) -> None:
        deadline = time.monotonic() + self._timeout
        while (ready := sum(_usable(node) for node in client.get("/api/v1/nodes").json()["items"])) < self.nodes:
            for name, child in self._children.items():
                if child.poll() is not None:
                    raise ControlPlaneError(f"{name} ended; the end of its log:\n{self._log_tail(name)}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"{ready} of {self.nodes} fake nodes are Ready; the end of kwok's log:\n{self._log_tail('kwok')}"
                )
            time.sleep(0.1)

    def _log_tail(self, name: str) -> str:
        return "\n".join(self.plane.log(name).read_text(errors="replace").splitlines()[-15:])


def _create(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """Create an object; one that a kept directory has already is left as it is."""
    answer = client.post(path, json=body)
    if answer.status_code != httpx.codes.CONFLICT:
        answer.raise_for_status()


def _usable(node: dict[str, Any]) -> bool:
    """Whether the scheduler may use it: Ready, and the controllers have taken the taint away."""
    conditions = node.get("status", {}).get("conditions") or ()
    return not node["spec"].get("taints") and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
