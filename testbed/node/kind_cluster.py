"""A cluster by kind (Kubernetes in Docker), for machines that have Docker: the same tests, with another node under them.

Written from the documented commands of kind, docker and crictl. The machines that this was developed on have no Docker daemon,
so what is tested is which commands are issued, against programs that record them; **it was never run on a real kind**.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from testbed.node.namespaces import NodeError
from testbed.node.outside import OutsideCluster, find_kubectl, run
from testbed.node.pods import container_id
from testbed.node.provider import NotOfferedError

_CREATE_SECONDS = 600.0  # the node image may have to be downloaded (1 GB)
_COMMAND_SECONDS = 120.0
_LOAD_SECONDS = 300.0
# Units of the node container's systemd. kube-proxy and CoreDNS are pods there, which their controllers renew at once.
_UNITS = ("kubelet", "containerd")
PARTS = ("kind", "docker")


def why_not() -> str | None:
    """Why this machine cannot have a kind cluster; None if nothing speaks against it."""
    if missing := [name for name in PARTS if shutil.which(name) is None]:
        return f"{' and '.join(missing)} missing on PATH"
    try:
        run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_seconds=30)
    except NodeError as error:
        return f"no Docker daemon: {error}"
    return None if find_kubectl() is not None else "kubectl missing; run `grfleet testbed build`"


class KindCluster(OutsideCluster):
    """A kind cluster with one node (`testbed.node.provider.ClusterProvider`); several may run at once.

    Parameters
    ----------
    node_image
        Image of the node, such as ``kindest/node:v1.34.0``; None takes the one that this kind was released with.
    kubectl
        The program; None finds it.
    """

    def __init__(self, *, node_image: str | None = None, kubectl: Path | None = None) -> None:
        super().__init__(kubectl=kubectl)
        self._node_image = node_image

    def _undo(self) -> tuple[str, ...]:
        # Absolute, because the watchdog may have another PATH. A cluster that is not there is no error to kind.
        return (shutil.which("kind") or "kind", "delete", "cluster", "--name", self.name, "--kubeconfig", str(self.kubeconfig))

    def _refusal(self) -> str | None:
        return why_not()

    def _connect(self) -> None:
        image = [] if self._node_image is None else ["--image", self._node_image]
        where = ["--name", self.name, "--kubeconfig", str(self.kubeconfig)]
        run(["kind", "create", "cluster", *where, *image, "--wait", "180s"], timeout_seconds=_CREATE_SECONDS)
        self.kubeconfig.chmod(0o600)
        # --wait passes over a node that is not Ready in time; this does not.
        self.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=60s")

    def load_image(self, archive: Path) -> None:
        """Make every image of a docker archive available to pods; it must hold all its layers.

        Raises
        ------
        NodeError
            kind refused it.
        """
        run(["kind", "load", "image-archive", str(archive), "--name", self.name], timeout_seconds=_LOAD_SECONDS)

    @contextlib.contextmanager
    def fault(self, component: str) -> Iterator[None]:
        """Kill ``kubelet`` or ``containerd`` on the node and keep it from coming back; it starts again on leaving.

        Raises
        ------
        NotOfferedError
            Another component.
        """
        if component not in _UNITS:
            raise NotOfferedError(f"a kind cluster has no fault for {component}")
        self._on_node("systemctl", "kill", "--signal=SIGKILL", component)
        self._on_node("systemctl", "stop", component)  # takes back the restart that systemd has planned
        try:
            yield
        finally:
            self._on_node("systemctl", "start", component)

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Kill the first process of a container with SIGKILL.

        Raises
        ------
        NodeError
            It does not run.
        """
        identifier = container_id(self, namespace, pod, container)
        process = self._on_node("crictl", "inspect", "--output", "go-template", "--template", "{{.info.pid}}", identifier).strip()
        if not process.isdigit() or int(process) <= 1:
            raise NodeError(f"container {namespace}/{pod}/{container} does not run: crictl names process {process!r}")
        self._on_node("kill", "-KILL", process)

    def _on_node(self, *command: str) -> str:
        return run(["docker", "exec", f"{self.name}-control-plane", *command], timeout_seconds=_COMMAND_SECONDS)
