"""Loopback ports that nobody can take between choosing them and using them.

The caller keeps the port bound, without listening, and the server binds it a second time with SO_REUSEPORT (the
kernel allows that to the same user only). Connections reach listeners alone, so while the server is down, for example
during a restart, clients are refused as usual and still no stranger gets the port.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

LOOPBACK = "127.0.0.1"


class ReservedPort:
    """One TCP port of 127.0.0.1, held until `release`."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back."""
        self._socket.close()


def free_port() -> int:
    """A port that was free a moment ago, for a server that shares it with nobody; where it can, hold a `ReservedPort`."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_listener(port: int, *, timeout_seconds: float, check: Callable[[], None]) -> None:
    """Wait until somebody listens; `check` is called between attempts and may raise to give up early.

    Raises
    ------
    TimeoutError
        Nobody listened in time.
    """
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        check()
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on {LOOPBACK}:{port} after {timeout_seconds:.0f} s")
