"""Many hot users at once into HAProxy, by the protocol in which its replicas teach each other their tables.

An entry costs HAProxy a third of what it costs as a command, and its agent a tenth. The agent says that it is the peer
`grfleet-agent` of HAProxy's configuration, sends the entries, and waits until HAProxy has confirmed the last one; what HAProxy
would teach a peer is taken and dropped. HAProxy hands such entries on to a replica that starts, and to its own successor, but not
as they come: each replica's agent fills its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence

from contract.keys import USER_KEY_HEX_LENGTH
from dataplane.gateway.runtime_api import RuntimeUnavailable

AGENT_PEER = "grfleet-agent"
_BLOCK = 4096
_READ_BYTES = 262_144
_ENTRIES_A_SECOND = 5000  # far below what a busy HAProxy takes; bounds the wait
_MAX_MESSAGE_BYTES = 65_536
_CONTROL, _UPDATES = 0, 10
_RESYNC_REQUEST, _RESYNC_PARTIAL = 0, 2
_UPDATE, _NEXT_UPDATE, _DEFINITION, _SWITCH, _ACK = 128, 129, 130, 131, 132
_STRING, _GPT0 = 6, 1 << 1
_TABLE = 1  # our number of the only table we send

Message = tuple[int, int, bytes]


def encoded(number: int) -> bytes:
    """Return a number as HAProxy's peers write it: one byte below 240, else four bits and then seven by seven, lowest first."""
    if number < 240:
        return bytes((number,))
    out = bytearray((number & 0xFF | 0xF0,))
    number = (number - 240) >> 4
    while number >= 128:
        out.append(number & 0xFF | 0x80)
        number = (number - 128) >> 7
    out.append(number)
    return bytes(out)


def decoded(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the number that stands at a place, and the place after it; IndexError when it is not whole."""
    number, at = data[at], at + 1
    shift = 4
    if number >= 240:
        while True:
            number += data[at] << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                break
            if shift > 60:
                raise ValueError("a number without end")
    return number, at


def messages(buffer: bytearray) -> Iterator[Message]:
    """Take the whole messages off the front of a buffer: class, type, data.

    Raises
    ------
    ValueError
        When a message is longer than any that HAProxy sends.
    """
    at = 0
    try:
        while len(buffer) - at >= 2:
            kind, number, end = buffer[at], buffer[at + 1], at + 2
            data = b""
            if number >= 128:
                length, start = decoded(buffer, end)
                if length > _MAX_MESSAGE_BYTES:
                    raise ValueError(f"a message of {length} bytes")
                end = start + length
                if end > len(buffer):
                    break
                data = bytes(buffer[start:end])
            at = end
            yield kind, number, data
    except IndexError:
        pass
    finally:
        del buffer[:at]


def definition(table: str) -> bytes:
    """The message that says which table the next entries are for."""
    name = table.encode()
    head = encoded(_TABLE) + encoded(len(name)) + name
    body = head + encoded(_STRING) + encoded(USER_KEY_HEX_LENGTH + 1) + encoded(_GPT0) + encoded(0)
    return bytes((_UPDATES, _DEFINITION)) + encoded(len(body)) + body


def updates(entries: Sequence[tuple[str, int]]) -> Iterator[bytes]:
    """Blocks of messages that set each user key to a number; the first entry has number 1, and each the next.

    Raises
    ------
    ValueError
        When a key is none: a length that is wrong would make something else of all that follows.
    """
    length = encoded(USER_KEY_HEX_LENGTH)
    heads: dict[int, tuple[bytes, bytes]] = {}
    for start in range(0, len(entries), _BLOCK):
        parts = []
        for key, owner in entries[start : start + _BLOCK]:
            found = heads.get(owner)
            if found is None:
                value = encoded(owner)
                size = encoded(len(length) + USER_KEY_HEX_LENGTH + len(value))
                found = heads[owner] = bytes((_UPDATES, _NEXT_UPDATE)) + size + length, value
            if len(key) != USER_KEY_HEX_LENGTH:
                raise ValueError("a user key of another length than the table's")
            parts.append(found[0] + key.encode() + found[1])
        if start == 0:
            key, owner = entries[0]
            body = (1).to_bytes(4, "big") + length + key.encode() + encoded(owner)
            parts[0] = bytes((_UPDATES, _UPDATE)) + encoded(len(body)) + body
        yield b"".join(parts)


class _Taught:
    """What HAProxy teaches us; dropped, but confirmed, so that it does not teach it again next time."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._table = 0

    def take(self, number: int, data: bytes) -> None:
        if number in (_DEFINITION, _SWITCH):
            self._table = decoded(data, 0)[0]
        elif number == _UPDATE:
            self._last[self._table] = int.from_bytes(data[:4], "big")
        elif number == _NEXT_UPDATE and self._table in self._last:
            self._last[self._table] = (self._last[self._table] + 1) % 2**32

    def confirmations(self) -> bytes:
        """Messages that confirm the last entry of each table."""
        bodies = [encoded(table) + last.to_bytes(4, "big") for table, last in self._last.items()]
        return b"".join(bytes((_UPDATES, _ACK)) + encoded(len(body)) + body for body in bodies)


async def push_users(
    address: str, entries: Sequence[tuple[str, int]], *, table: str, local_peer: str, timeout_s: float = 5.0
) -> None:
    """Set each user key to a server id in a HAProxy's table, and return when HAProxy has confirmed the last.

    Parameters
    ----------
    address
        Where HAProxy listens for its peers: `unix@/path` or `host:port`.
    entries
        User keys, 32 hex digits each, with server ids.
    local_peer
        The name by which HAProxy knows itself.

    Raises
    ------
    RuntimeUnavailable
        When HAProxy does not know us as a peer, hangs up, or does not confirm in time; some entries may have been set.
    """
    try:
        async with asyncio.timeout(timeout_s + len(entries) / _ENTRIES_A_SECOND):
            reader, writer = await _opened(address)
            sending: asyncio.Task[None] | None = None
            try:
                writer.write(f"HAProxyS 2.1\n{local_peer}\n{AGENT_PEER} {os.getpid()} 0\n".encode())
                status = await reader.readline()
                if status.strip() != b"200":
                    raise OSError(f"HAProxy's peers answer {status[:20]!r}")
                sending = asyncio.create_task(_send(writer, entries, table))
                await _confirmed(reader, writer, len(entries))
            finally:
                if sending is not None:
                    sending.cancel()
                    with contextlib.suppress(asyncio.CancelledError, OSError, ValueError):
                        await sending
                writer.close()
    except (OSError, EOFError, ValueError, IndexError, TimeoutError) as error:
        raise RuntimeUnavailable(f"{address}: {type(error).__name__} {error}".rstrip()) from error


async def _opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix@"):
        return await asyncio.open_unix_connection(address.removeprefix("unix@"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host.strip("[]").replace("*", "") or "127.0.0.1", int(port))


async def _send(writer: asyncio.StreamWriter, entries: Sequence[tuple[str, int]], table: str) -> None:
    writer.write(definition(table))
    for block in updates(entries):
        writer.write(block)
        await writer.drain()


async def _confirmed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    """Read until HAProxy has confirmed so many entries."""
    buffer, taught = bytearray(), _Taught()
    while True:
        chunk = await reader.read(_READ_BYTES)
        if not chunk:
            raise EOFError("HAProxy hangs up")
        buffer += chunk
        for kind, number, data in messages(buffer):
            if kind == _CONTROL and number == _RESYNC_REQUEST:
                writer.write(bytes((_CONTROL, _RESYNC_PARTIAL)))  # others know more than we do
            elif kind == _UPDATES and number == _ACK:
                if int.from_bytes(data[-4:], "big") >= count:
                    writer.write(taught.confirmations())
                    await writer.drain()
                    return
            elif kind == _UPDATES:
                taught.take(number, data)
