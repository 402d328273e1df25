"""A Kubernetes control plane as a context manager: etcd, kube-apiserver and kube-controller-manager on loopback.

The processes are the real ones with RBAC, ServiceAccount admission and garbage collection on, so what passes here
passes on a cluster; only the kubelet and the scheduler are absent. They belong to the process that made them: when it
ends, however it ends, they are stopped and their temporary files removed (see :mod:`testbed.state`).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from testbed import components, credentials, processes, state
from testbed.binaries import Binaries, ensure_binaries
from testbed.kubectl import environment_of, run_kubectl
from testbed.ports import ReservedPort, wait_for_listener
from testbed.versions import CONTROL_PLANE_PROGRAMS

API_SERVER, CONTROLLER_MANAGER, ETCD = "kube-apiserver", "kube-controller-manager", "etcd"


class ControlPlaneError(RuntimeError):
    """A component did not start or ended; the message carries the end of its log."""


class ControlPlane:
    """One control plane; several may run at once.

    Parameters
    ----------
    directory
        Where data, logs and credentials go. A given directory is kept, and a later start on it continues with its
        data; None means a temporary one that is removed at the end.
    binaries
        The programs to run; None finds or makes them first.
    api_server_flags, controller_manager_flags
        Further ``--name=value`` flags; they win over the defaults.
    start_timeout_seconds
        How long each component may take to become ready.
    progress
        Receives one line of text at a time when the programs have to be made first.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        binaries: Binaries | None = None,
        api_server_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = (),
        start_timeout_seconds: float = 90.0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.name = secrets.token_hex(4)
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.gettempdir()).resolve() / f"grfleet-testbed-{self.name}"
        self._binaries = binaries
        self._flags = {API_SERVER: tuple(api_server_flags), CONTROLLER_MANAGER: tuple(controller_manager_flags)}
        self._timeout = start_timeout_seconds
        self._progress = progress
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, ReservedPort] = {}
        self._record: state.Record | None = None

    # Where things are --------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self._ports[API_SERVER].number}"

    @property
    def etcd_url(self) -> str:
        """Address of etcd, which answers to holders of ``pki/etcd.crt`` and its key only."""
        return f"https://127.0.0.1:{self._ports[ETCD].number}"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a cluster administrator."""
        return self.directory / "kubeconfig"

    @property
    def ca_file(self) -> Path:
        """Certificate of the authority that signed the API server's certificate."""
        return self.directory / "pki" / "ca.crt"

    @property
    def admin_token(self) -> str:
        """Bearer token of a cluster administrator (group system:masters)."""
        return self._credentials.admin_token

    @property
    def binaries(self) -> Binaries:
        """The programs in use."""
        if self._binaries is None:
            self._binaries = ensure_binaries(CONTROL_PLANE_PROGRAMS, progress=self._progress)
        return self._binaries

    def process_ids(self) -> dict[str, int]:
        """Process id by component, of those that run."""
        return {name: child.pid for name, child in self._children.items()}

    def adopt(self, identity: processes.Identity) -> None:
        """Count one more process as part of this control plane: it is stopped with it, whatever happens to the caller.

        The `record` argument of `testbed.processes.start`.
        """
        self._save(self.record.with_process(identity))

    def use_cgroup(self, name: str) -> None:
        """Count a control group, which the caller makes next, as part of this control plane."""
        self._save(replace(self.record, cgroup=name))

    def component_kubeconfig(self, name: str, *, url: str | None = None) -> Path:
        """Kubeconfig of a part of a node: ``kubelet``, ``kube-proxy`` or ``kube-scheduler``, for another address if given."""
        return credentials.write_kubeconfig(
            self.directory / f"{name}.kubeconfig",
            url=url or self.url,
            ca_file=self.ca_file,
            token=self._credentials.component_tokens[name],
            user=name,
            server_name=None if url is None else "kubernetes",
        )

    def log(self, component: str) -> Path:
        """Log file of a component."""
        return self.directory / "logs" / f"{component}.log"

    # Life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until the API server is ready; clean up what crashed callers left before.

        Raises
        ------
        ControlPlaneError
            A component ended or was not ready in time.
        testbed.binaries.BinariesMissingError
            The programs can neither be found nor made.
        """
        self.binaries  # noqa: B018 - may take minutes, so before anything is started
        state.sweep()
        self._refuse_shared_directory()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        owner = processes.identify("owner", os.getpid())
        self._save(state.Record(self.name, owner, str(self.directory), self._temporary))
        for path in (self.directory, self.directory / "logs"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._credentials = credentials.prepare(self.directory / "pki", now=datetime.datetime.now(datetime.UTC))
        self._ports = {name: ReservedPort() for name in (ETCD, "etcd-peer", API_SERVER)}
        self._write_kubeconfigs()
        self._save(replace(self.record, url=self.url, kubeconfig=str(self.kubeconfig)))
        self._start_watchdog()
        self._start_etcd()
        self.start_api_server()

    def stop(self) -> None:
        """Stop everything in order; does nothing when it is not running."""
        if self._record is None:
            return
        record = self._record
        state.remove(record)
        for child in self._children.values():
            child.wait()
        self._children.clear()
        if record.watchdog is not None:
            self._end_watchdog(record.watchdog)
        self._forget()

    def detach(self) -> None:
        """Let everything run on after this process; ``python -m testbed down`` stops it."""
        watchdog = self.record.watchdog
        self._save(replace(self.record, owner=None, watchdog=None))
        if watchdog is not None:
            self._end_watchdog(watchdog)
        self._forget()

    def _forget(self) -> None:
        self._record = None
        for port in self._ports.values():
            port.release()

    # Components --------------------------------------------------------------------------------------------------

    def kill_api_server(self) -> None:
        """Kill the API server without warning, as a crash would; its port stays reserved and refuses connections."""
        self._end(API_SERVER, grace_seconds=0)

    def start_api_server(self) -> None:
        """Start the API server after `kill_api_server` and wait until it is ready.

        The controllers start anew as well: some end when the API server is away for 10 s, and the others back off
        for up to a minute, which on a cluster is nobody's concern but makes tests slow and their outcome random.
        """
        command = components.api_server(
            self.directory, self._credentials, port=self._ports[API_SERVER].number, etcd_port=self._ports[ETCD].number
        )
        self._run(API_SERVER, [*command, *self._flags[API_SERVER]])
        self._wait_until(API_SERVER, self._api_server_is_ready)
        self.restart_controller_manager()

    def restart_api_server(self) -> None:
        """Stop the API server, start it on the same port and data, and wait until it is ready."""
        self._end(API_SERVER, grace_seconds=state.GRACE_SECONDS)
        self.start_api_server()

    def restart_controller_manager(self) -> None:
        """Start the controllers, anew if they run, so that garbage collection knows new kinds at once and not within 30 s."""
        self._end(CONTROLLER_MANAGER, grace_seconds=state.GRACE_SECONDS)
        command = components.controller_manager(self.directory, self._credentials)
        self._run(CONTROLLER_MANAGER, [*command, *self._flags[CONTROLLER_MANAGER]])

    def _start_etcd(self) -> None:
        port = self._ports[ETCD].number
        command = components.etcd(self.directory, self._credentials, port=port, peer_port=self._ports["etcd-peer"].number)
        self._run(ETCD, command)
        wait_for_listener(port, timeout_seconds=self._timeout, check=lambda: self._check_alive(ETCD))

    def _run(self, name: str, flags: Sequence[str]) -> None:
        if name in self._children:
            raise ControlPlaneError(f"{name} is running already")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_") and k != "KUBECONFIG"}
        self._children[name] = processes.start(
            name,
            [self.binaries[name], *flags],
            log=self.log(name),
            record=self.adopt,
            environment=environment,
            directory=self.directory,
        )

    def _end(self, name: str, *, grace_seconds: float) -> None:
        child = self._children.pop(name, None)
        if child is None:
            return
        for identity in self.record.processes:
            if identity.pid == child.pid:
                processes.stop(identity, grace_seconds=grace_seconds)
        child.wait()

    def _check_alive(self, name: str) -> None:
        code = self._children[name].poll()
        if code is not None:
            raise ControlPlaneError(f"{name} ended with code {code}; the end of its log:\n{self._log_tail(name)}")

    def _wait_until(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._timeout
        while not ready():
            self._check_alive(name)
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"{name} is not ready after {self._timeout:.0f} s; the end of its log:\n{self._log_tail(name)}"
                )
            time.sleep(0.05)

    def _log_tail(self, name: str) -> str:
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-15:])
        except OSError as error:
            return f"(no log: {error})"

    def _api_server_is_ready(self) -> bool:
        try:
            with self.client(timeout_seconds=5) as client:
                # readyz alone does not promise the namespace that every first request needs
                return all(client.get(path).is_success for path in ("/readyz", "/api/v1/namespaces/default"))
        except httpx.HTTPError:
            return False

    # Use ---------------------------------------------------------------------------------------------------------

    def client(self, *, token: str | None = None, timeout_seconds: float = 30) -> httpx.Client:
        """An HTTP client of the API server, as the administrator or with another token; the caller closes it."""
        return httpx.Client(
            base_url=self.url,
            verify=ssl.create_default_context(cafile=str(self.ca_file)),
            headers={"Authorization": f"Bearer {token or self.admin_token}"},
            timeout=timeout_seconds,
            trust_env=False,  # a proxy must not see, or break, loopback traffic
        )

    def kubectl(
        self,
        *args: str,
        input: str | None = None,
        check: bool = True,
        kubeconfig: Path | None = None,
        timeout_seconds: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as the administrator unless another kubeconfig is given.

        Raises
        ------
        testbed.kubectl.KubectlError
            It failed and `check` is true.
        subprocess.TimeoutExpired
            It took too long.
        """
        environment = environment_of(kubeconfig or self.kubeconfig, directory=self.directory)
        return run_kubectl(
            self.binaries["kubectl"], args, environment=environment, input=input, check=check, timeout_seconds=timeout_seconds
        )

    def service_account_kubeconfig(self, namespace: str, name: str, *, valid_seconds: int = 86_400) -> Path:
        """Kubeconfig with a fresh token of a ServiceAccount, which must exist; its namespace is the default one.

        Raises
        ------
        httpx.HTTPStatusError
            The API server refused, for example because there is no such ServiceAccount.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": valid_seconds},
        }
        with self.client() as client:
            answer = client.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", json=body)
            answer.raise_for_status()
        return credentials.write_kubeconfig(
            self.directory / f"kubeconfig-{namespace}-{name}",
            url=self.url,
            ca_file=self.ca_file,
            token=answer.json()["status"]["token"],
            user=f"system:serviceaccount:{namespace}:{name}",
            namespace=namespace,
        )

    # Bookkeeping -------------------------------------------------------------------------------------------------

    @property
    def record(self) -> state.Record:
        """The record on disk of this control plane.

        Raises
        ------
        ControlPlaneError
            It is not running.
        """
        if self._record is None:
            raise ControlPlaneError("this control plane is not running")
        return self._record

    def _save(self, record: state.Record) -> None:
        state.save(record)
        self._record = record

    def _refuse_shared_directory(self) -> None:
        for other in state.records():
            if other.directory == str(self.directory) and any(processes.is_alive(p) for p in other.processes):
                raise ControlPlaneError(f"{self.directory} is in use by another control plane ({other.url})")

    def _write_kubeconfigs(self) -> None:
        for path, user, token in (
            (self.kubeconfig, "admin", self._credentials.admin_token),
            (self.directory / "controller-manager.kubeconfig", CONTROLLER_MANAGER, self._credentials.controller_manager_token),
        ):
            credentials.write_kubeconfig(path, url=self.url, ca_file=self.ca_file, token=token, user=user)

    def _start_watchdog(self) -> None:
        self._watchdog = state.start_watchdog(
            self.name,
            log=self.log("watchdog"),
            record=lambda identity: self._save(replace(self.record, watchdog=identity)),
        )

    def _end_watchdog(self, identity: processes.Identity) -> None:
        processes.stop(identity, grace_seconds=0)
        with contextlib.suppress(ChildProcessError):
            self._watchdog.wait()
