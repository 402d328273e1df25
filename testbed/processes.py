"""Start, identify and stop single processes without ever signalling a stranger.

A process id alone says little, since the kernel reuses it; with the start time from /proc/PID/stat it names one
process for good. Signals go through a pidfd that was checked against that start time. A program is started behind a
gate: it only begins once its identity is written down, so no crash of the caller leaves an unrecorded process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# The shell waits for one line and then becomes the program (same pid, same start time). If the caller dies first,
# read sees the end of the pipe and nothing is started.
_GATE = 'read -r go || exit 1; exec "$@" </dev/null'


@dataclass(frozen=True)
class Identity:
    """One process for good: its id and its start time in clock ticks since boot."""

    name: str
    pid: int
    start: int


@dataclass(frozen=True)
class Usage:
    """What one process uses: resident memory now, and processor time (user and system) since its start."""

    rss_bytes: int
    cpu_seconds: float


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None if the process is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may itself hold spaces and brackets
    return None if fields[0] in "ZX" else fields


def start_time(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None if it is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def usage(pid: int) -> Usage | None:
    """What a live process uses; None if it is gone or a zombie."""
    fields = _stat(pid)
    if fields is None:
        return None
    return Usage(rss_bytes=int(fields[21]) * _PAGE_BYTES, cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND)


def identify(name: str, pid: int) -> Identity:
    """Identity of a live process.

    Raises
    ------
    ProcessLookupError
        There is no such process.
    """
    start = start_time(pid)
    if start is None:
        raise ProcessLookupError(f"{name} (pid {pid}) has already ended")
    return Identity(name, pid, start)


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    return start_time(identity.pid) == identity.start


@contextlib.contextmanager
def _pidfd(identity: Identity) -> Iterator[int | None]:
    """A pidfd for exactly this process, or None if it has ended."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        # Checked after opening: from here on the descriptor cannot come to mean another process.
        yield descriptor if is_alive(identity) else None
    finally:
        os.close(descriptor)


def send(identity: Identity, signal_number: signal.Signals) -> bool:
    """Signal exactly this process; False if it has ended."""
    with _pidfd(identity) as descriptor:
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, signal_number)
        except ProcessLookupError:
            return False
        return True


def wait_gone(identity: Identity, *, timeout_seconds: float | None) -> bool:
    """Wait until this process has ended, be it a child or not; False after the timeout."""
    with _pidfd(identity) as descriptor:
        if descriptor is None:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout_seconds is None else timeout_seconds * 1000))


def stop(identity: Identity, *, grace_seconds: float) -> bool:
    """Ask a process to end, then make it; True once it is gone."""
    send(identity, signal.SIGTERM)
    if wait_gone(identity, timeout_seconds=grace_seconds):
        return True
    send(identity, signal.SIGKILL)
    return wait_gone(identity, timeout_seconds=10)


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    log: Path,
    record: Callable[[Identity], None],
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, recorded before it begins; output is appended to `log`.

    Raises
    ------
    OSError
        The log cannot be written, or the process cannot be made.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, name, *(str(part) for part in command)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    assert child.stdin is not None
    try:
        record(identify(name, child.pid))
        child.stdin.write(b"go\n")
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    return child


def age_seconds(identity: Identity) -> float:
    """How long a process has been running, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - identity.start / _TICKS_PER_SECOND
