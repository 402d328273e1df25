"""The table in force as it lies on disk, for an agent that starts while the source of its tables is away.

It is what the source once said, with all that the files of HAProxy are made of but the flags: those are of today. It is read like
anything from outside: a file that holds something else is told and left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from contract.answers import MAX_ANSWER_BYTES, decode
from contract.errors import ProtocolViolation
from contract.table import RoutingTable

log = logging.getLogger("grfleet.gateway")
TABLE_FILE = "table.kept.json"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A table, the uid of the object that it stood in, where that was, and the addresses of its host names."""

    table: RoutingTable
    uid: str = ""
    source: str = ""
    addresses: Mapping[str, str] = msgspec.field(default_factory=dict)

    def encoded(self) -> bytes:
        """As it lies on disk."""
        return msgspec.json.encode(self)


def kept_in(directory: Path, *, source: str) -> Kept | None:
    """Return what a start before has kept of this source; None where there is nothing of it that can be read."""
    try:
        with (directory / TABLE_FILE).open("rb") as file:
            kept = decode(file.read(MAX_ANSWER_BYTES + 1), Kept)
    except FileNotFoundError:
        return None
    except (OSError, ProtocolViolation) as error:
        log.warning("the table that was kept cannot be read", extra={"error": str(error)[:400]})
        return None
    return kept if kept.source == source else None
