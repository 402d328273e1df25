"""Polling for what other processes bring about, for tests that nobody tells when it has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(
    look: Callable[[], Any], *, timeout_seconds: float = 90.0, pause_seconds: float = 0.1, why: Callable[[], object] = lambda: ""
) -> Any:
    """The first answer of `look` that is true.

    Parameters
    ----------
    why
        Called when time is up; what it returns stands in the error.

    Raises
    ------
    AssertionError
        There was none in time.
    """
    deadline_s = time.monotonic() + timeout_seconds
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"not within {timeout_seconds:.0f} s: {why()}"
        time.sleep(pause_seconds)
    return found
