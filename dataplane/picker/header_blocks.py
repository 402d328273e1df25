"""Header blocks of HTTP/2, of which a gRPC server needs the path alone (RFC 7541).

Header compression is switched off for the peer, so that its blocks mean the same each time and one that was seen before costs a
look-up; what comes before the peer has heard of that is decoded in full.
"""

from __future__ import annotations

from typing import Final

import hpack

MAX_HEADER_BLOCK: Final = 64 * 1024
_KNOWN_BLOCKS, _KNOWN_BYTES = 256, 1024


class HeadersUnclear(ValueError):
    """A block cannot be decoded, and with it none that comes after it."""


class HeaderBlocks:
    """What a peer's header blocks mean, on one connection."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_HEADER_BLOCK)
        self._paths: dict[bytes, str] = {}

    def switch_compression_off(self) -> None:
        """Note that the peer has heard that its table is to be empty: a block that still fills it breaks the protocol."""
        self._decoder.max_allowed_table_size = 0

    def path(self, block: bytes) -> str:
        """Return the path in a header block; empty when it has none.

        Raises
        ------
        HeadersUnclear
            When it cannot be decoded.
        """
        table = self._decoder.header_table
        free = table.maxsize == 0
        if free and block in self._paths:
            return self._paths[block]
        try:
            decoded = self._decoder.decode(block, raw=True)
        except hpack.HPACKError as error:
            raise HeadersUnclear("headers that cannot be decoded") from error
        path = next((value.decode("latin-1") for name, value in decoded if name == b":path"), "")
        if free and table.maxsize == 0 and len(block) <= _KNOWN_BYTES:
            if len(self._paths) >= _KNOWN_BLOCKS:
                self._paths.clear()
            self._paths[block] = path
        return path
