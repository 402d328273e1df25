"""What the routing benchmark stands on: toy instances and a load in C, compiled when needed, and proxies pinned to a core.

The data plane has the last core for itself; instances, load and agents share the others. Nothing listens beyond loopback, and
every process ends by its id, or with this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.ending import end_with_the_caller
from testbed.binaries import cache_directory
from testbed.debian import DebianError, ensure_debian_tree

SOURCES = Path(__file__).resolve().parent / "routing_load"
BEFORE, AFTER, EITHER, ANY = 1, 2, 3, 4
_PATIENCE_S = 20.0


class RoutingSiteError(RuntimeError):
    """Something that the benchmark needs is not here; the message says what to do."""


def compiled(name: str) -> Path:
    """Path of a program of `routing_load`, compiled into the cache unless it lies there.

    Raises
    ------
    RoutingSiteError
        There is no C compiler here, or it does not take the source.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"\n".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    program = cache_directory().parent / "bench" / f"{name}-{digest}"
    if program.exists():
        return program
    if compiler is None:
        raise RoutingSiteError("no C compiler here (cc, gcc or clang): apt-get install gcc libc6-dev")
    program.parent.mkdir(parents=True, exist_ok=True)
    part = program.with_name(f"{program.name}.{os.getpid()}")
    done = subprocess.run(
        [compiler, "-O2", "-o", part, SOURCES / f"{name}.c"], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RoutingSiteError(f"{compiler} does not take {name}.c: {done.stderr.strip()[:1000]}")
    part.replace(program)
    return program


@dataclass(frozen=True)
class Program:
    """A HAProxy, and the environment in which it finds its libraries."""

    path: Path
    environment: dict[str, str]

    @property
    def version(self) -> str:
        """As it says itself, such as 2.6.12."""
        said = subprocess.run([self.path, "-v"], env=self.environment, capture_output=True, text=True, timeout=20, check=False)
        words = said.stdout.split()
        if said.returncode or "version" not in words:
            raise RoutingSiteError(f"{self.path} is no HAProxy: {(said.stderr or said.stdout).strip()[:300]}")
        return words[words.index("version") + 1].split("-")[0]


def haproxy() -> Program:
    """The program that the environment variable GRFLEET_HAPROXY names, else the one of Debian's package, unpacked into the cache.

    Raises
    ------
    RoutingSiteError
        When neither is there.
    """
    if other := os.environ.get("GRFLEET_HAPROXY"):
        path = Path(other).resolve()
        libraries = ":".join([str(path.parent / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        return Program(path, {**os.environ, "LD_LIBRARY_PATH": libraries})
    try:
        tree = ensure_debian_tree(["haproxy"])
    except DebianError as error:
        raise RoutingSiteError(f"no HAProxy: {error}; or name one by GRFLEET_HAPROXY") from error
    return Program(tree.program("haproxy"), tree.environment())


def cores() -> tuple[set[int], set[int]]:
    """Cores of the data plane, and of everything else; the same when there is one only."""
    usable = sorted(os.sched_getaffinity(0))
    return ({usable[-1]}, set(usable[:-1])) if len(usable) > 1 else (set(usable), set(usable))


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_ns(pid: int) -> int:
    """Processor time of a process so far, all its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and that still run."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Child:
    """A process on given cores. A context manager: at its end the process is gone.

    HAProxy, instances and load come `first` on their cores, where this is allowed: on a machine with other work, half of what
    one measures is otherwise that work.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        on: set[int],
        log: Path,
        environment: dict[str, str] | None = None,
        talks: bool = False,
        first: bool = True,
    ) -> None:
        self.log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else stream,
                stderr=stream,
                env=environment,
                text=True,
                preexec_fn=end_with_the_caller,
            )
        os.sched_setaffinity(self.process.pid, on)
        with contextlib.suppress(PermissionError):
            if first:
                os.sched_setscheduler(self.process.pid, os.SCHED_FIFO, os.sched_param(1))

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> None:
        """Write one line to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Its next line.

        Raises
        ------
        RoutingSiteError
            It has ended instead.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RoutingSiteError(f"{self.log.name} ended: {self.log.read_text()[-1000:]}")
        return line.strip()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def instances(folder: Path, first: int, count: int, *, port: int | None = None) -> tuple[Child, list[int]]:
    """Start toy instances of consecutive numbers; returns their process and their ports."""
    command: list[str | Path] = [compiled("backend"), str(first), str(count), *([] if port is None else [str(port)])]
    child = Child(command, on=cores()[1], log=folder / "instances.log", talks=True)
    return child, [int(each) for each in child.hear().split()]


@dataclass(frozen=True)
class Window:
    """What the load saw between two of its commands; times in nanoseconds of the monotonic clock, 0 for never."""

    name: str
    began: int
    ended: int
    sent: int
    ok: int
    wrong: int
    failed: int
    again: int
    seen: int
    first_wrong: int
    last_wrong: int
    first_failed: int
    last_failed: int
    last_seen: int
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    slowest_us: float
    late_us: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return (self.ok + self.wrong) / ((self.ended - self.began) / 1e9)


class Load:
    """A running load: opens windows, and reports them at its end."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def window(self, name: str, *, right: int = BEFORE, watched: int = -1) -> int:
        """Begin a window; returns its beginning in nanoseconds of the monotonic clock."""
        self._child.say(f"window {name} {right} {watched}")
        return int(self._child.hear().split()[1])

    def end(self) -> dict[str, Window]:
        """Stop asking and return the windows by name; those of one name are not told apart."""
        self._child.say("end")
        self._child.hear()
        report: list[dict[str, Any]] = json.loads(self._child.hear())
        return {each["name"]: Window(**each) for each in report}


@contextlib.contextmanager
def load(
    folder: Path, port: int, users: Path, order: Path, *, connections: int = 32, rate: int = 0, header: str = "x-user-id"
) -> Iterator[Load]:
    """A load on a port of loopback; closed loop without a rate, otherwise open."""
    command: list[str | Path] = [compiled("load"), str(port), str(connections), str(rate), header, users, order]
    with Child(command, on=cores()[1], log=folder / "load.log", talks=True) as child:
        child.hear()
        yield Load(child)


def until(look: Any, what: str, *, pause_s: float = 0.005, patience_s: float = _PATIENCE_S) -> float:
    """Wait until a look says yes; returns the seconds that took.

    Raises
    ------
    RoutingSiteError
        It did not in time.
    """
    began = time.monotonic()
    while not look():
        if time.monotonic() - began > patience_s:
            raise RoutingSiteError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(pause_s)
    return time.monotonic() - began


def opens(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
