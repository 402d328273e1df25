"""One answer of HTTP/1.1 as its bytes come in: status line, header lines, and bodies by length, in chunks, or to the end.

The bytes are hostile until they are parsed: everything is bounded, and what a server may not say is `Malformed`.
"""

from __future__ import annotations

from typing import NamedTuple

from contract.answers import MAX_ANSWER_BYTES

MAX_HEAD_BYTES = 64 * 1024
_MAX_CHUNK_LINE = 1024


class Response(NamedTuple):
    """An answer: status code, header lines by lower-case name (the last of equals), and the whole body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Malformed(Exception):
    """The peer does not speak HTTP/1.1 as it should."""


class IncomingAnswer:
    """Takes bytes in and gives the answer once it is whole; `begin` makes it ready for the next one.

    `reusable` turns False for good when the connection cannot carry another call.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._chunks: bytearray | None = None
        self.reusable = True
        self.untouched = True

    @property
    def left_over(self) -> bool:
        """Whether bytes are there that belong to no answer yet."""
        return bool(self._received)

    def begin(self) -> None:
        """Expect an answer from its first byte on."""
        self.untouched = True
        self._head = self._chunks = None

    def take(self, data: bytes) -> None:
        """Add what came in."""
        self._received += data
        self.untouched = False

    def parsed(self, *, ended: bool) -> Response | None:
        """The answer as soon as it is whole."""
        while self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                if len(self._received) > MAX_HEAD_BYTES:
                    raise Malformed(f"more than {MAX_HEAD_BYTES} bytes of header lines")
                return None
            head = _head(bytes(self._received[:end]))
            del self._received[: end + 4]
            if head[0] >= 200:  # others announce that the answer is still to come
                self._head = head
        status, headers = self._head
        if headers.get("connection", "").lower() == "close":
            self.reusable = False
        body = self._body(headers, status=status, ended=ended)
        return None if body is None else Response(status, headers, body)

    def _body(self, headers: dict[str, str], *, status: int, ended: bool) -> bytes | None:
        if status in (204, 304):
            return b""
        coding = headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                raise Malformed(f"transfer-encoding {coding[:40]!r}")
            return self._chunked()
        length = headers.get("content-length")
        if length is None:
            self.reusable = False
            self._bounded(len(self._received))
            return self._take(len(self._received)) if ended else None
        if not (length.isascii() and length.isdigit() and len(length) < 16):
            raise Malformed(f"content-length {length[:40]!r}")
        self._bounded(int(length))
        return self._take(int(length)) if len(self._received) >= int(length) else None

    def _chunked(self) -> bytes | None:
        """The body in chunks, once the last one is there; trailers are dropped."""
        if self._chunks is None:
            self._chunks = bytearray()
        while True:
            end = self._received.find(b"\r\n")
            if end < 0 or end > _MAX_CHUNK_LINE:
                if len(self._received) > _MAX_CHUNK_LINE:
                    raise Malformed("a chunk without a size")
                return None
            digits = bytes(self._received[:end]).split(b";")[0].strip()
            if not digits.isalnum() or len(digits) > 8:
                raise Malformed("a chunk without a size")
            size = int(digits, 16)
            self._bounded(len(self._chunks) + size)
            if size == 0:
                rest = self._received.find(b"\r\n\r\n", end)
                if rest < 0:
                    if len(self._received) > MAX_HEAD_BYTES:
                        raise Malformed(f"more than {MAX_HEAD_BYTES} bytes of trailers")
                    return None
                del self._received[: rest + 4]
                return bytes(self._chunks)
            if len(self._received) < end + 2 + size + 2:
                return None
            if self._received[end + 2 + size : end + 4 + size] != b"\r\n":
                raise Malformed("a chunk longer than its size")
            self._chunks += self._received[end + 2 : end + 2 + size]
            del self._received[: end + 4 + size]

    def _bounded(self, size: int) -> None:
        if size > MAX_ANSWER_BYTES:
            raise Malformed(f"answer larger than {MAX_ANSWER_BYTES} bytes")

    def _take(self, size: int) -> bytes:
        self._bounded(size)
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


class UsualHead:
    """The head of an answer that was parsed, to know the next one by: the same bytes but for the digits of its length.

    Parameters
    ----------
    data
        A whole answer 200, and nothing after it.
    body_bytes
        Length of its body.
    """

    __slots__ = ("_after", "_after_at", "_before", "_body_at")

    def __init__(self, data: bytes, *, body_bytes: int) -> None:
        self._body_at = len(data) - body_bytes
        head = data[: self._body_at]
        digits = b"%d" % body_bytes
        at = head.lower().find(b"\r\ncontent-length: %s\r\n" % digits)
        if at < 0 or b"\r\ntransfer-encoding:" in head.lower():
            self._before = self._after = b""
            self._after_at = self._body_at = 0  # no answer is like this one
            return
        start = at + len(b"\r\ncontent-length: ")
        self._after_at = start + len(digits)
        self._before, self._after = head[:start], head[self._after_at :]

    def body_of(self, data: bytes) -> bytes | None:
        """The body of a whole answer with this head; None when it is another answer, or not whole."""
        before, at, body_at = self._before, self._after_at, self._body_at
        if not before or data[at:body_at] != self._after or not data.startswith(before):
            return None
        digits = data[len(before) : at]
        return data[body_at:] if digits == b"%d" % (len(data) - body_at) else None


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    """Status code and header lines."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit() and len(code) == 3):
        raise Malformed(f"status line {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip():
            raise Malformed(f"header line {line[:60]!r}")
        if name == "content-length" and headers.get(name, value.strip()) != value.strip():
            raise Malformed("two lengths")
        headers[name] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(code), headers
