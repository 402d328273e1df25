"""One request as the gateway tells of it: messages in, answers out, no IO and no clock.

A gateway opens a stream for each HTTP request and sends its headers, perhaps its body, then the same of the response, each as one
message; it waits for an answer to each. The picker decides at the request's headers and never waits for a body, which it only
hands back. Whatever transport carries the messages calls `answer` with each and `close` at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from contract.keys import user_key
from contract.table import INSTANCE_HEADER, USER_KEY_HEADER
from dataplane.picker import messages
from dataplane.picker.chooser import Chooser, Refused
from dataplane.picker.fleet import Endpoint

_KEY = re.compile(rb"[0-9a-f]{32}")


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """What the picker does with identities at the edge.

    Attributes
    ----------
    pool_key
        Secret of the pool, at least 16 bytes.
    id_header
        Header with the raw user id, lower case.
    key_id
        Name of the key, handed on to instances; empty for none.
    honour_echo
        Whether a caller may choose an instance by `x-gr-instance`.
    key_header
        Header that carries the user key, from callers that have made it and to instances; None: what the table says.
    """

    pool_key: bytes
    id_header: str = "x-user-id"
    key_id: str = ""
    honour_echo: bool = True
    key_header: str | None = None

    def id_of(self, headers: dict[str, bytes]) -> bytes:
        """Return the raw id of a request, empty for one without; HTTP takes spaces off both ends."""
        return headers.get(self.id_header, b"").strip(b" \t")

    def key_of(self, headers: dict[str, bytes]) -> str:
        """Return the user key of a request, empty for one that has no user: of its id, or the one that its caller has made."""
        raw = self.id_of(headers)
        if raw:
            return user_key(self.pool_key, raw)
        made = headers.get(self.key_header or USER_KEY_HEADER, b"")
        return made.decode() if _KEY.fullmatch(made) else ""


@dataclass
class Counts:
    """What was done since the start, by the label that each is shown with."""

    picks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("slot", "choice", "hot", "spread", "anywhere"), 0))
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("no-endpoint", "shed"), 0))
    retried: int = 0
    broken: int = 0
    streams: int = 0


class Exchange:
    """One stream; `answer` each of its messages, then `close` it."""

    __slots__ = ("_chooser", "_counts", "_edge", "_headers", "_here", "_order", "_streamed")

    def __init__(self, edge: Edge, headers: messages.UserHeaders, chooser: Chooser, counts: Counts) -> None:
        self._edge, self._headers, self._chooser, self._counts = edge, headers, chooser, counts
        self._order: Sequence[Endpoint] = ()
        self._here: Endpoint | None = None
        self._streamed = (True, True)
        counts.streams += 1

    def answer(self, raw: bytes) -> bytes | None:
        """Return the answer to a message, None where it wants none.

        Raises
        ------
        google.protobuf.message.DecodeError
            When it is no `ProcessingRequest`.
        """
        message = messages.parse(raw)
        kind = message.WhichOneof("request")
        if message.HasField("protocol_config"):
            config = message.protocol_config
            self._streamed = (
                config.request_body_mode == messages.FULL_DUPLEX,
                config.response_body_mode == messages.FULL_DUPLEX,
            )
        if kind == "request_headers":
            answer = self._pick(message)
        elif kind == "response_headers":
            answer = self._served(message)
        elif kind == "request_body":
            answer = messages.body_unchanged(message.request_body, response=False, streamed=self._streamed[0])
        elif kind == "response_body":
            answer = messages.body_unchanged(message.response_body, response=True, streamed=self._streamed[1])
        elif kind == "request_trailers":
            answer = messages.REQUEST_TRAILERS
        elif kind == "response_trailers":
            answer = messages.RESPONSE_TRAILERS
        else:
            return None
        return None if message.observability_mode else answer

    def close(self) -> None:
        """The request is over, or the gateway tells no more of it."""
        self._counts.streams -= 1
        self._move_to(None)

    def _pick(self, message: object) -> bytes:
        headers = messages.header_values(message.request_headers)  # type: ignore[attr-defined]  # protobuf has no types
        key, of_id = self._edge.key_of(headers), bool(self._edge.id_of(headers))
        echo = headers.get(INSTANCE_HEADER, b"").decode("latin-1") if self._edge.honour_echo else ""
        try:
            order = self._chooser.choose(key, echo=echo, subset=messages.subset_of(message))
        except Refused as refused:
            self._counts.refused["shed" if refused.status == 429 else "no-endpoint"] += 1
            return messages.refusal(refused.status, str(refused))
        self._counts.picks[self._chooser.reason(order[0], key, echo)] += 1
        self._order = order
        self._move_to(order[0])
        return messages.destination(",".join([each.address for each in order])) + self._headers.of(key, of_id=of_id)

    def _served(self, message: object) -> bytes:
        address = messages.served_address(message)
        served = self._here
        if address:
            served = next((each for each in self._order if each.address == address), None)
            served = served or self._chooser.fleet.by_address.get(address)
        if served is not self._here and self._here is not None:
            self._counts.retried += 1
            self._move_to(served)
        return messages.served_by(served.name if served is not None else "")

    def _move_to(self, endpoint: Endpoint | None) -> None:
        if self._here is not None:
            self._here.in_flight -= 1
        if endpoint is not None:
            endpoint.in_flight += 1
        self._here = endpoint
