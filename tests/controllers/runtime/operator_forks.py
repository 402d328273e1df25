"""Operators that start without importing anything: a process that has imported all of it forks one for each start.

Importing takes an operator a second of processor time, which is half of its life in a test that kills it after every write. What
is forked is the operator's own code under its own command line, environment, directory and log; it is a process like any other,
with signals, exit code and memory of its own. The server ends with whoever started it, and takes its operators along.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES = 1 << 20


class ForkedProcess:
    """What tests use of `subprocess.Popen`, for a process that the server has forked."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises `subprocess.TimeoutExpired`."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"operator {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and (self._status < 0 or select.select([self._status], [], [], timeout)[0]):
            status, self._status = self._status, -1  # a number that is closed belongs to somebody else soon
            said = b"" if status < 0 else os.read(status, 64)
            if status >= 0:
                os.close(status)
            if not said:
                raise RuntimeError(f"the server of operator {self.pid} ended before it")
            self.returncode = int(said)
        return self.returncode


class ForkServer:
    """The process that forks, from the side of the tests."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self.close)

    def start(self, command: list[str], *, environment: dict[str, str], directory: Path, log: int) -> ForkedProcess:
        """Start a command of this interpreter: a file, ``-c CODE`` or ``-m MODULE``, with flags."""
        assert command[0] == sys.executable, f"{command[0]} is another program"
        status, theirs = os.pipe()
        body = json.dumps({"command": command[1:], "environment": environment, "directory": str(directory)}).encode()
        try:
            socket.send_fds(self._line, [len(body).to_bytes(4, "big") + body], [log, theirs])
        finally:
            os.close(theirs)
        return ForkedProcess(int.from_bytes(self._line.recv(4, socket.MSG_WAITALL), "big"), status)

    def close(self) -> None:
        """End the server, and with it whatever it has forked."""
        self._line.close()
        self._process.wait()


def serve(line: socket.socket) -> list[str] | None:
    """Fork as asked until the line is closed; returns twice as `fork` does: the command in a child, None in the server."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    while True:
        ready = select.select([line, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _reap(statuses)
        if line not in ready:
            continue
        start, fds, *_ = socket.recv_fds(line, MOST_BYTES, 2)
        if not start:
            for pid in statuses:
                os.kill(pid, signal.SIGKILL)
            return None
        size = int.from_bytes(start[:4], "big")
        body = start[4:] + (line.recv(size - len(start) + 4, socket.MSG_WAITALL) if size > len(start) - 4 else b"")
        log, status = fds
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for fd in (line.detach(), woken, wakes, status, *statuses.values()):
                os.close(fd)
            return _become(json.loads(body), log)
        os.close(log)
        statuses[pid] = status
        line.sendall(pid.to_bytes(4, "big"))


def _reap(statuses: dict[int, int]) -> None:
    for pid in list(statuses):
        ended, how = os.waitpid(pid, os.WNOHANG)
        if ended:
            os.write(statuses[pid], str(os.waitstatus_to_exitcode(how)).encode())
            os.close(statuses.pop(pid))


def _become(asked: dict[str, Any], log: int) -> list[str]:
    """Take over what a new process would have been given."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    os.chdir(asked["directory"])
    command: list[str] = asked["command"]
    return command


def run(command: list[str]) -> None:
    """Run what an interpreter would run with these arguments."""
    first, *flags = command
    if first == "-c":
        sys.argv = ["-c", *flags[1:]]
        exec(flags[0], {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = flags
        runpy.run_module(flags[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    for name in ("controllers.loops", "controllers.runtime.process", "testbed.control_plane"):
        importlib.import_module(name)  # for those who are forked
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us is told, and closes the line
    with socket.socket(fileno=int(sys.argv[1])) as own:
        wanted = serve(own)
    if wanted is not None:
        run(wanted)
