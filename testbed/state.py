"""What the testbed has started on this machine, on disk, so that anything left by a crash can be found and stopped.

Each control plane has one record in a runtime directory that only this user can write: its processes, its files and
its owner (the process that made it). A record whose owner is dead is an orphan: the watchdog removes it at once, and
`sweep` before every start removes what even the watchdog missed. A record without an owner was detached on purpose.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from testbed import cgroups, processes
from testbed.processes import Identity

_UNDO_SECONDS = 120.0
GRACE_SECONDS = 2.0  # an idle API server needs 1.1 s, one with open watches would take up to a minute


@dataclass(frozen=True)
class Record:
    """One control plane: who owns it, where its files are and which processes it has."""

    name: str
    owner: Identity | None
    directory: str
    temporary: bool
    url: str = ""
    kubeconfig: str = ""
    watchdog: Identity | None = None
    processes: tuple[Identity, ...] = field(default=())
    cgroup: str = ""  # control group of its node, which outlives the processes in it
    undo: tuple[str, ...] = ()  # command that takes back what lies with somebody else, such as a cluster in Docker

    @property
    def orphaned(self) -> bool:
        """Whether the owner died without stopping it."""
        return self.owner is not None and not processes.is_alive(self.owner)

    def with_process(self, identity: Identity) -> Record:
        """The record after one more start; a process of the same name that has ended is forgotten."""
        kept = tuple(p for p in self.processes if p.name != identity.name or processes.is_alive(p))
        return replace(self, processes=(*kept, identity))


def runtime_directory() -> Path:
    """The private directory of this user's records, made when missing.

    Raises
    ------
    PermissionError
        Somebody else owns the directory.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if not base or not os.access(base, os.W_OK | os.X_OK):  # after su it often names what is another user's, or not there
        base = tempfile.gettempdir()
    directory = Path(base) / f"grfleet-testbed-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a private directory of this user; remove it and try again")
    return directory


def _path(name: str) -> Path:
    return runtime_directory() / f"{name}.json"


def save(record: Record) -> None:
    """Write a record so that a reader sees the old one or the new one, never a part."""
    path = _path(record.name)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(record)))
    part.replace(path)


def _identity(value: dict[str, object] | None) -> Identity | None:
    return None if value is None else Identity(str(value["name"]), int(str(value["pid"])), int(str(value["start"])))


def load(name: str) -> Record | None:
    """The record of that name; None if there is none or it cannot be read."""
    try:
        value = json.loads(_path(name).read_text())
        found = [_identity(item) for item in value["processes"]]
        return Record(
            name=value["name"],
            owner=_identity(value["owner"]),
            directory=value["directory"],
            temporary=value["temporary"],
            url=value["url"],
            kubeconfig=value["kubeconfig"],
            watchdog=_identity(value["watchdog"]),
            processes=tuple(item for item in found if item is not None),
            cgroup=value.get("cgroup", ""),
            undo=tuple(map(str, value.get("undo", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def records() -> list[Record]:
    """Every control plane of this user, in the order of their (random) names."""
    found = (load(path.stem) for path in sorted(runtime_directory().glob("*.json")))
    return [record for record in found if record is not None]


def remove(record: Record, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """Stop every recorded process that still is the recorded one, delete temporary files, forget the record.

    What was started last is stopped first: controllers, API server, etcd.

    Raises
    ------
    RuntimeError
        A process or the control group did not end even after SIGKILL, or the undo command failed; the record stays so that the
        next sweep tries again.
    """
    stuck = [p for p in reversed(record.processes) if not processes.stop(p, grace_seconds=grace_seconds)]
    if stuck:
        raise RuntimeError(f"could not stop {', '.join(f'{p.name} (pid {p.pid})' for p in stuck)}")
    if not cgroups.remove(record.cgroup):
        raise RuntimeError(f"could not remove the control group {record.cgroup}")
    if record.undo:
        _undo(record.undo)
    if record.temporary:
        shutil.rmtree(record.directory, ignore_errors=True)
    _path(record.name).unlink(missing_ok=True)


def _undo(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_UNDO_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}: {done.stderr.strip()[-500:]}")


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock that serialises sweeps."""
    with (runtime_directory() / "lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def sweep() -> list[str]:
    """Remove every control plane whose owner died without stopping it; returns their names.

    One that cannot be stopped keeps its record for the next sweep and does not stand in the way of a new start.
    """
    removed = []
    with locked():
        for record in records():
            if record.orphaned:
                with contextlib.suppress(RuntimeError):
                    remove(record, grace_seconds=0)
                    removed.append(record.name)
    return removed


def start_watchdog(name: str, *, log: Path, record: Callable[[Identity], None]) -> subprocess.Popen[bytes]:
    """Start the process that cleans up after the owner of a record, however that ends; `record` writes down who it is."""
    return processes.start(
        "watchdog",
        [sys.executable, "-S", "-m", "testbed.watchdog", name],
        log=log,
        record=record,
        environment={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
    )
