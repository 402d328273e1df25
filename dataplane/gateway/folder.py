"""Whose folder it is: one agent writes into it, so that two do not fight over one HAProxy, file by file and reload by reload."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from contract.sockets import CannotListen

log = logging.getLogger("grfleet.gateway")


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Be the only agent of a folder inside the block: two would write over each other's files and end each other's HAProxy.

    The system frees it however the process ends. A file system that has no locks stops nobody.

    Raises
    ------
    CannotListen
        When another agent is there.
    """
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotListen(f"{directory}: another grfleet-gateway is at work here; give each a folder of its own") from None
        except OSError as error:
            log.warning("the folder cannot be locked; see to it that no other agent uses it", extra={"error": str(error)[:200]})
        yield
    finally:
        os.close(folder)
