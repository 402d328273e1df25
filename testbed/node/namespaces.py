"""Process, mount and network namespaces of one node, and the network link between them and this machine.

Everything inside dies with the first process, whose end the kernel turns into the end of every process, mount and
interface of the namespaces. Addresses come from 198.18.0.0/15, which no real network uses; the name of the link decides
which part of it a node gets, so two nodes never meet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from testbed import processes
from testbed.processes import Identity

_MOST_NODES = 100
INIT_NAME = "node-init"  # of the first process inside, in the testbed's record
_LINK = "grfleet-node"  # the kernel allows 15 characters


class NodeError(RuntimeError):
    """The node, or a part of it, cannot be had or did not start; the message says why."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of one node, by its number on this machine."""

    number: int

    @property
    def link(self) -> str:
        """Name of this machine's end of the link."""
        return f"{_LINK}{self.number}"

    @property
    def host(self) -> str:
        """This machine, as the node and its pods see it."""
        return f"198.18.{self.number}.1"

    @property
    def node(self) -> str:
        """The node's own address."""
        return f"198.18.{self.number}.2"

    @property
    def pods(self) -> str:
        """Subnet of the node's pods."""
        return f"198.19.{self.number}.0/24"


class Namespaces:
    """The namespaces, from :meth:`start` to the end of their first process.

    Parameters
    ----------
    environment
        Environment of everything that runs inside.
    record
        Called with every process before it begins, so that nothing can outlive its owner (`processes.start`).
    """

    def __init__(self, directory: Path, *, environment: Mapping[str, str], record: Callable[[Identity], None]) -> None:
        self._directory = directory
        self._environment = dict(environment)
        self._record = record
        self._init: Identity | None = None
        self.addresses = Addresses(-1)

    def start(self, *, timeout_seconds: float) -> None:
        """Make the namespaces and the link.

        Raises
        ------
        NodeError
            This machine does not allow it.
        """
        ready = self._directory / "node-ready"
        ready.unlink(missing_ok=True)
        log = self._directory / "logs" / "node-init.log"
        flags = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        child = processes.start(
            "node-namespaces",
            ["unshare", *flags, sys.executable, "-S", "-m", "testbed.node.init", ready],
            log=log,
            record=self._record,
            environment={**self._environment, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)},
        )
        deadline = time.monotonic() + timeout_seconds
        while not ready.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise NodeError(f"the node's namespaces did not start: {log.read_text(errors='replace').strip()[-500:]}")
            time.sleep(0.01)
        (pid,) = child_ids(child.pid)
        self._init = processes.identify(INIT_NAME, pid)
        self._record(self._init)
        self._connect()

    @property
    def process_id(self) -> int:
        """The first process, as this machine numbers it."""
        if self._init is None or not processes.is_alive(self._init):
            raise NodeError("the node's namespaces are not running")
        return self._init.pid

    def inside(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs a command inside."""
        enter = ["nsenter", f"--target={self.process_id}", "--mount", "--net", "--pid", "--"]
        return [*enter, *map(str, command)]

    def run(
        self, *command: str | Path, stdin: IO[bytes] | None = None, timeout_seconds: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end.

        Raises
        ------
        NodeError
            It failed and `check` is true.
        """
        return self._run(self.inside(command), stdin=stdin, timeout_seconds=timeout_seconds, check=check)

    def start_program(self, name: str, command: Sequence[str | Path], *, log: Path) -> subprocess.Popen[bytes]:
        """Start a program inside; what is returned is its door-keeper, which ends with it."""
        return processes.start(name, self.inside(command), log=log, record=self._record, environment=self._environment)

    def _connect(self) -> None:
        """The link: the kernel refuses a second one of the same name, which is how a node gets its number."""
        for number in range(_MOST_NODES):
            self.addresses = Addresses(number)
            link = self.addresses.link
            made = self._run(
                ["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self.process_id)], check=False
            )
            if made.returncode == 0:
                break
            if "exists" not in made.stderr:
                raise NodeError(f"ip link add {link}: {made.stderr.strip()}")
        else:
            raise NodeError(f"this machine has {_MOST_NODES} nodes already")
        here, there = self.addresses.host, self.addresses.node
        self.run("ip", "address", "add", f"{there}/30", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self._run(["ip", "address", "add", f"{here}/30", "dev", self.addresses.link])
        self._run(["ip", "link", "set", self.addresses.link, "up"])
        self.run("ip", "route", "add", "default", "via", here)
        self._run(["ip", "route", "add", self.addresses.pods, "via", there])

    def _run(
        self, command: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_seconds: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                command,
                stdin=stdin or subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=self._environment,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NodeError(f"{' '.join(command)} took more than {timeout_seconds:.0f} s") from error
        if check and done.returncode != 0:
            raise NodeError(
                f"{' '.join(command)} ended with code {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}"
            )
        return done


def child_ids(pid: int) -> list[int]:
    """Process ids of a process's children."""
    try:
        return [int(item) for item in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def may_make_namespaces() -> str | None:
    """Why this user cannot have a node here; None if nothing speaks against it."""
    if os.geteuid() != 0:
        return "a real node needs root"
    # A link only where there is an ip to make it; the node's own comes with its packages.
    probe = "mount -t tmpfs probe /run && { ! command -v ip >/dev/null || ip link add probe0 type veth peer name probe1; }"
    try:
        made = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", probe],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError as error:
        return f"unshare does not run: {error}"
    return None if made.returncode == 0 else f"this machine gives no namespaces: {made.stderr.strip()}"
