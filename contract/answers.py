"""Reading what another part answered, whichever HTTP library carried it: bounded in size, and typed or refused.

An answer is hostile until it is decoded. It may be endless, not JSON, JSON of another shape, or nested so deeply that a parser
gives up; all of that is one ProtocolViolation, so that no caller has to know the ways in which a parser fails.
"""

from collections.abc import AsyncIterable
from typing import Any, TypeVar

import msgspec

from contract.errors import ProtocolViolation

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Largest answer that a client of either contract reads."""
Answer = TypeVar("Answer")
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


async def read_bounded(chunks: AsyncIterable[bytes], *, call: str, limit_bytes: int) -> bytes:
    """Return a whole body from its chunks.

    Parameters
    ----------
    call : str
        Method and path, for the message.

    Raises
    ------
    ProtocolViolation
        As soon as it grows beyond `limit_bytes`; the rest is not read.
    """
    read: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit_bytes:
            raise ProtocolViolation(f"{call}: answer larger than {limit_bytes} bytes")
        read.append(chunk)
    return b"".join(read)


def decode(body: bytes, kind: type[Answer]) -> Answer:
    """Return the typed body of an answer.

    Raises
    ------
    ProtocolViolation
        Names the type and, where there is one, the field that is wrong.
    """
    try:
        answer: Answer = _decoder(kind).decode(body)
        return answer
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"{kind.__name__}: {error}") from error


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    made = _DECODERS.get(kind)
    if made is None:
        made = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return made
