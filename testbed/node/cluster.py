"""A control plane with one real node, as one thing to start and to stop.

API server, controllers and scheduler run beside the caller as in :class:`testbed.control_plane.ControlPlane`; runtime,
kubelet and kube-proxy run in the node's namespaces. The API server listens on loopback only, so a relay on this machine's
end of the link carries the node's and the pods' connections to it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from testbed import cgroups, processes
from testbed.binaries import Binaries, BinariesMissingError, ensure_binaries, find_binaries
from testbed.control_plane import ControlPlane
from testbed.credentials import NODE_NAME
from testbed.debian import DebianError, Tree, ensure_debian_tree, find_debian_tree
from testbed.kubectl import environment_of
from testbed.node import configuration, objects
from testbed.node.namespaces import Namespaces, NodeError, may_make_namespaces
from testbed.node.pods import container_id, port_forward
from testbed.node.provider import NotOfferedError
from testbed.node.runtime import Progress, Runtime, end_inside
from testbed.versions import CONTROL_PLANE_PROGRAMS, NODE_PROGRAMS

PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "socat", "catatonit", "iproute2")
_RELAY_PORT = 6443
_COMPONENTS = {
    "coredns": configuration.coredns_command,
    "kube-proxy": configuration.kube_proxy_command,
    "kubelet": configuration.kubelet_command,
}
_SETTLE_SECONDS = 0.05


def why_never() -> str | None:
    """Why this machine gives this user no node, whatever is built; None if nothing speaks against it."""
    return may_make_namespaces() or cgroups.why_not()


def why_not() -> str | None:
    """Why this machine cannot run a node right now; None if it can. Builds nothing."""
    if (reason := why_never()) is not None:
        return reason
    names = (*CONTROL_PLANE_PROGRAMS, *NODE_PROGRAMS)
    found = find_binaries(names).paths
    if missing := [name for name in names if name not in found]:
        return f"{', '.join(missing)} missing; run `grfleet testbed build --node`"
    if find_debian_tree(PACKAGES) is None:
        return "containerd and its companions are missing; run `grfleet testbed build --node`"
    return None


def ensure_parts(progress: Progress | None = None) -> tuple[Binaries, Tree]:
    """Every program of a cluster with a node, made when it is not on this machine yet.

    Raises
    ------
    BinariesMissingError, DebianError
        One of them can neither be found nor made.
    """
    return ensure_binaries((*CONTROL_PLANE_PROGRAMS, *NODE_PROGRAMS), progress=progress), ensure_debian_tree(
        PACKAGES, progress=progress
    )


class LocalCluster:
    """A cluster with one node on this machine (`testbed.node.provider.ClusterProvider`); several may run at once.

    Parameters
    ----------
    directory
        Where everything of it goes and stays; None means a temporary one that is removed at the end.
    start_timeout_seconds
        How long each part may take to become ready.
    progress
        Receives one line of text at a time while something is made.
    api_server_flags, controller_manager_flags
        Further flags of the control plane.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        start_timeout_seconds: float = 90.0,
        progress: Callable[[str], None] | None = None,
        api_server_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = (),
    ) -> None:
        self._timeout = start_timeout_seconds
        self._progress = progress or (lambda line: None)
        self._doors: dict[str, subprocess.Popen[bytes]] = {}
        self.plane = ControlPlane(
            directory,
            start_timeout_seconds=start_timeout_seconds,
            progress=progress,
            api_server_flags=api_server_flags,
            controller_manager_flags=[*configuration.controller_manager_flags(), *controller_manager_flags],
        )

    # Life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.create()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.destroy()

    def create(self) -> None:
        """Start it and wait until the node is Ready.

        Raises
        ------
        NodeError, testbed.control_plane.ControlPlaneError
            This machine does not allow a node, or a part did not start; what had started is gone again.
        """
        if (reason := why_never()) is not None:
            raise NodeError(reason)
        try:
            self._binaries, self._tree = ensure_parts(self._progress)
        except (BinariesMissingError, DebianError) as error:
            raise NodeError(str(error)) from error
        self.plane.start()
        try:
            self._start()
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Stop it; no process, mount, interface, control group or file stays."""
        self.plane.stop()
        for door in self._doors.values():
            door.wait()
        self._doors.clear()

    def _start(self) -> None:
        self._begun = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        self._forget_node()
        self._cgroup = f"grfleet-{self.plane.name}"
        self.plane.use_cgroup(self._cgroup)
        cgroups.create(self._cgroup)
        environment = {k: v for k, v in self._tree.environment().items() if k not in ("KUBECONFIG", "NOTIFY_SOCKET")}
        self._namespaces = Namespaces(self.directory, environment=environment, record=self.plane.adopt)
        self._namespaces.start(timeout_seconds=self._timeout)
        self._start_relay(environment)
        self._runtime = Runtime(
            self.directory, self._tree, self._namespaces, timeout_seconds=self._timeout, progress=self._progress
        )
        self._configure()
        self._start_scheduler()
        self._runtime.prepare()
        self._runtime.start()
        for name in _COMPONENTS:
            self._start_component(name)
        self.wait_ready()

    def _forget_node(self) -> None:
        """A kept directory goes on with the cluster's objects; the node comes back as a machine does with a new disk."""
        for name in ("containerd", "kubelet", "kubelet-pki", "pod-logs"):
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def _start_relay(self, environment: dict[str, str]) -> None:
        here, port = self._namespaces.addresses.host, httpx.URL(self.plane.url).port
        listen = f"TCP-LISTEN:{_RELAY_PORT},bind={here},fork,reuseaddr,nodelay"
        command: list[str | Path] = [self._tree.program("socat"), listen, f"TCP:127.0.0.1:{port},nodelay"]
        log = self.plane.log("relay")
        self._doors["relay"] = processes.start("relay", command, log=log, record=self.plane.adopt, environment=environment)

    def _configure(self) -> None:
        addresses = self._namespaces.addresses
        url = f"https://{addresses.host}:{_RELAY_PORT}"
        for name in _COMPONENTS:
            self.plane.component_kubeconfig(name, url=url)
        self.plane.component_kubeconfig("kube-scheduler")
        (self.directory / "cni").mkdir(exist_ok=True)
        (self.directory / "cni" / "10-pods.conflist").write_text(configuration.pod_network(addresses))
        (self.directory / "kubelet.json").write_text(
            configuration.kubelet(self.directory, ca_file=self.plane.ca_file, cgroup=self._cgroup, addresses=addresses)
        )
        (self.directory / "Corefile").write_text(configuration.corefile(self.directory, addresses))
        with self.plane.client() as client:
            objects.apply(client, host=addresses.host, port=_RELAY_PORT)

    def _start_scheduler(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
        command = configuration.scheduler_command(self._binaries["kube-scheduler"], self.directory)
        self._doors["kube-scheduler"] = processes.start(
            "kube-scheduler", command, log=self.plane.log("kube-scheduler"), record=self.plane.adopt, environment=environment
        )

    def _start_component(self, name: str) -> None:
        command = _COMPONENTS[name](self._binaries[name], self.directory, self._namespaces.addresses)
        self._doors[name] = self._namespaces.start_program(name, command, log=self.plane.log(name))

    def wait_ready(self) -> None:
        """Wait until the node is Ready and pods get their ServiceAccount.

        Raises
        ------
        NodeError
            It is not in time; the message carries the end of the kubelet's log.
        """
        deadline = time.monotonic() + self._timeout
        while not self._is_ready():
            ended = [name for name, door in self._doors.items() if door.poll() is not None]
            if ended or time.monotonic() > deadline:
                name = ended[0] if ended else "kubelet"
                tail = self.plane.log(name).read_text(errors="replace")[-2000:]
                raise NodeError(f"the node is not Ready ({name} {'ended' if ended else 'runs'}); the end of its log:\n{tail}")
            time.sleep(_SETTLE_SECONDS)

    def _is_ready(self) -> bool:
        with self.plane.client() as client:
            node = client.get(f"/api/v1/nodes/{NODE_NAME}")
            account = client.get("/api/v1/namespaces/default/serviceaccounts/default")
        if not (node.is_success and account.is_success):
            return False
        ready = next((c for c in node.json()["status"].get("conditions", ()) if c["type"] == "Ready"), None)
        if ready is None or ready["status"] != "True":
            return False
        # In a kept directory stands what the kubelet said the last time.
        return datetime.datetime.fromisoformat(ready["lastHeartbeatTime"]) >= self._begun

    # Use ---------------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Where everything of this cluster lies."""
        return self.plane.directory

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a cluster administrator."""
        return self.plane.kubeconfig

    @property
    def host_address(self) -> str:
        """Address of this machine as pods see it; a server of the caller that binds it is reachable from pods."""
        return self._namespaces.addresses.host

    @property
    def base_layers(self) -> frozenset[str]:
        """Digests of layers that the node has already, so that an archive for `load_image` need not hold them."""
        return self._runtime.base_layers

    def load_image(self, archive: Path) -> None:
        """Make every image of a docker archive available to pods."""
        self._runtime.load(archive)

    def kubectl(
        self, *args: str, input: str | None = None, check: bool = True, timeout_seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        return self.plane.kubectl(*args, input=input, check=check, timeout_seconds=timeout_seconds)

    @contextlib.contextmanager
    def reach(self, target: str, port: int, *, namespace: str = "default") -> Iterator[str]:
        """``http://`` address of a port of ``pod/NAME`` or ``service/NAME``, by port-forward as on any cluster.

        Raises
        ------
        NodeError
            The target cannot be reached.
        """
        with port_forward(
            self._binaries["kubectl"],
            target,
            port,
            namespace=namespace,
            environment=environment_of(self.kubeconfig, directory=self.directory),
            logs=self.directory / "logs",
            record=self.plane.adopt,
        ) as url:
            yield url

    # Faults ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def fault(self, component: str) -> Iterator[None]:
        """Kill ``kubelet``, ``containerd``, ``kube-proxy`` or ``coredns`` as a crash would; it starts again on leaving.

        Raises
        ------
        NotOfferedError
            No such component.
        """
        if component == "containerd":
            self._runtime.kill()
        elif component in _COMPONENTS:
            end_inside(self._doors.pop(component), grace_seconds=0)
        else:
            raise NotOfferedError(f"the local node has no fault for {component}")
        try:
            yield
        finally:
            if component == "containerd":
                self._runtime.start()
            else:
                self._start_component(component)

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Kill the first process of a container with SIGKILL.

        Raises
        ------
        NodeError
            It does not run.
        """
        process = self._runtime.process_of(container_id(self, namespace, pod, container))
        self._namespaces.run("kill", "-KILL", str(process))
