"""Whose socket a path is: nobody's live one is ever taken away, and what is opened is its owner's from its first moment.

Two agents beside one engine would fight over its split. Only what a killed process left behind is replaced.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path


class CannotListen(Exception):
    """The address cannot be served on; the message says why and what would be accepted."""


def is_answered(path: Path) -> bool:
    """Say whether somebody accepts connections there."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False  # binding refuses to replace a file that is no socket
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except TimeoutError:
            return True  # a full backlog: alive and busy
    return True


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Create files with mode 0600 inside the block, so that there is no moment at which others could connect."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
