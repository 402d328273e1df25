"""What every cluster that the testbed does not run itself has in common: a kubeconfig of its own, kubectl, and a record on disk.

The record (see :mod:`testbed.state`) lets a watchdog end port-forwards, remove the kubeconfig and carry out one undo command
the moment the owner is gone, however it went; the next start finds what even the watchdog missed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed import processes, state
from testbed.binaries import find_binaries
from testbed.kubectl import environment_of, run_kubectl
from testbed.node.namespaces import NodeError
from testbed.node.pods import port_forward


def find_kubectl() -> Path | None:
    """kubectl of the testbed, or of this machine; None if there is neither."""
    found = find_binaries(["kubectl"]).paths.get("kubectl") or shutil.which("kubectl")
    return None if found is None else Path(found)


class OutsideCluster:
    """The common part of a `testbed.node.provider.ClusterProvider`; subclasses add `_refusal`, `_connect`, images and faults.

    Parameters
    ----------
    kubectl
        The program; None finds it.
    """

    def __init__(self, *, kubectl: Path | None = None) -> None:
        self.name = f"grfleet-{secrets.token_hex(4)}"
        self.directory = Path(tempfile.gettempdir()).resolve() / f"{self.name}-outside"
        self._kubectl = kubectl
        self._record: state.Record | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    # Life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.create()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.destroy()

    def create(self) -> None:
        """Make the cluster reachable, and first clean up what killed callers have left.

        Raises
        ------
        NodeError
            It cannot be had here; what had been begun is gone again.
        """
        if (reason := self._refusal()) is not None:
            raise NodeError(reason)
        self._kubectl = self._kubectl or find_kubectl()
        state.sweep()
        owner = processes.identify("owner", os.getpid())
        # Before anything is made: a caller that is killed from here on leaves a record that says what to undo.
        record = state.Record(self.name, owner, str(self.directory), temporary=True, url=self.name, undo=self._undo())
        self._save(replace(record, kubeconfig=str(self.kubeconfig)))
        try:
            for path in (self.directory, self.directory / "logs"):
                path.mkdir(mode=0o700)
            self._start_watchdog()
            self._connect()
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Undo everything that `create` did; does nothing when it has not run."""
        if self._record is None:
            return
        record, self._record = self._record, None
        state.remove(record)
        if self._watchdog is not None and record.watchdog is not None:
            processes.stop(record.watchdog, grace_seconds=0)
            self._watchdog.wait()

    def _refusal(self) -> str | None:
        """Why it cannot be had on this machine; None if nothing speaks against it."""
        raise NotImplementedError

    def _undo(self) -> tuple[str, ...]:
        """The command that takes back what `_connect` makes outside of `directory`."""
        return ()

    def _connect(self) -> None:
        """Make the cluster and write `kubeconfig`."""
        raise NotImplementedError

    def _save(self, record: state.Record) -> None:
        state.save(record)
        self._record = record

    def _adopt(self, identity: processes.Identity) -> None:
        assert self._record is not None, "create() comes first"
        self._save(self._record.with_process(identity))

    def _start_watchdog(self) -> None:
        def keep(identity: processes.Identity) -> None:
            assert self._record is not None
            self._save(replace(self._record, watchdog=identity))

        self._watchdog = state.start_watchdog(self.name, log=self.directory / "logs" / "watchdog.log", record=keep)

    # Use ---------------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of this cluster alone, readable by this user alone."""
        return self.directory / "kubeconfig"

    @property
    def _environment(self) -> dict[str, str]:
        return environment_of(self.kubeconfig, directory=self.directory)

    def kubectl(
        self, *args: str, input: str | None = None, check: bool = True, timeout_seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl with the rights of `kubeconfig`.

        Raises
        ------
        testbed.kubectl.KubectlError
            It failed and `check` is true.
        subprocess.TimeoutExpired
            It took too long.
        """
        assert self._kubectl is not None, "create() comes first"
        return run_kubectl(
            self._kubectl, args, environment=self._environment, input=input, check=check, timeout_seconds=timeout_seconds
        )

    @contextlib.contextmanager
    def reach(self, target: str, port: int, *, namespace: str = "default") -> Iterator[str]:
        """``http://`` address of a port of ``pod/NAME`` or ``service/NAME``, by port-forward.

        Raises
        ------
        NodeError
            The target cannot be reached.
        """
        assert self._kubectl is not None, "create() comes first"
        with port_forward(
            self._kubectl,
            target,
            port,
            namespace=namespace,
            environment=self._environment,
            logs=self.directory / "logs",
            record=self._adopt,
        ) as url:
            yield url


def run(command: Sequence[str], *, timeout_seconds: float) -> str:
    """Run a program of this machine to its end; returns what it wrote to standard output.

    Raises
    ------
    NodeError
        It is not there, failed, or took too long; the message carries the end of what it said.
    """
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except OSError as error:
        raise NodeError(f"{command[0]} does not run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise NodeError(f"{shown} took more than {timeout_seconds:.0f} s") from error
    if done.returncode != 0:
        raise NodeError(f"{shown} ended with code {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout
