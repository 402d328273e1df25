"""The agent's own line to its engine: calls over kept-alive connections, access samples from its ring if it has one.

`contract.EngineClient` speaks the whole contract and is right everywhere else. Here a round is one or two calls, ten times a
second, beside a serving process. The ring spares the second one; it is used only while it agrees with what the engine
says over HTTP, and dropped for good (until the engine restarts) as soon as it breaks a rule.
"""

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from numpy.typing import NDArray

from contract import answers, engine, ring, samples
from contract.errors import ProtocolViolation
from contract.residency import ResidencyReport, decode_report
from dataplane.http.line import HttpLine, Response

AUDIT_EVERY = 128
"""One reading of samples in so many goes over HTTP, to see whether the ring holds what the engine says it does."""
log = logging.getLogger("grfleet.agent")


class EngineLink:
    """Implements `EnginePort` over `unix:/path`, `http://host:port` or `https://host:port`; enter it inside the event loop.

    Parameters
    ----------
    url : str
    token : str, optional
        Bearer token, for TCP.
    timeout_s : float
        Limit of each call in seconds.

    Raises
    ------
    ValueError
        When the URL has another scheme.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 1.0) -> None:
        self._line = HttpLine(url, token=token, timeout_s=timeout_s)
        self._observe = self._line.request("GET", f"{engine.PREFIX}/observe")
        self._folder = Path(url.removeprefix("unix:")).parent if url.startswith("unix:") else None
        self._ring: ring.RingReader | None = None
        self._until_audit = AUDIT_EVERY

    async def __aenter__(self) -> Self:
        await self._line.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._drop_ring()
        await self._line.__aexit__(kind, error, trace)

    @property
    def reads_ring(self) -> bool:
        """Whether access samples come from the engine's ring."""
        return self._ring is not None

    async def describe(self) -> engine.Describe:
        answer = answers.decode((await self._call("GET", "/describe")).body, engine.Describe)
        if answer.contract_version != engine.VERSION:
            raise ProtocolViolation(f"describe: contract {answer.contract_version!r}, this agent speaks {engine.VERSION!r}")
        self._open_ring(answer)
        return answer

    async def observe(self) -> engine.Observe:
        body = self._line.body_in_place(self._observe)
        if body is None:
            body = _accepted(await self._line.send(self._observe, name="GET /observe"), "GET /observe", (200,)).body
        return answers.decode(body, engine.Observe)

    async def put_split(self, request: engine.SplitRequest) -> engine.SplitAnswer:
        response = await self._call("PUT", "/split", body=msgspec.json.encode(request), accept=(200, 409))
        return answers.decode(response.body, engine.SplitAnswer)

    async def put_limits(self, request: engine.LimitsRequest) -> engine.LimitsAnswer:
        response = await self._call("PUT", "/limits", body=msgspec.json.encode(request), accept=(200, 409))
        return answers.decode(response.body, engine.LimitsAnswer)

    async def drain(self, *, draining: bool) -> engine.DrainAnswer:
        content = None if draining else msgspec.json.encode(engine.DrainRequest(draining=False))
        return answers.decode((await self._call("POST", "/drain", body=content)).body, engine.DrainAnswer)

    async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
        response = await self._call("GET", f"/residency?cursor={cursor}&most={most}", accept=(200, 404, 501))
        return decode_report(response.body) if response.status == 200 else None

    async def samples(self, cursor: int) -> tuple[NDArray[Any], int, int]:
        if self._ring is None:
            return await self._samples_by_http(cursor)
        self._until_audit -= 1
        if self._until_audit <= 0:
            return await self._audited(cursor, self._ring)
        try:
            return self._ring.read(cursor)
        except ring.RingBroken as error:
            self._distrust_ring(str(error))
            return await self._samples_by_http(cursor)

    async def _audited(self, cursor: int, reader: ring.RingReader) -> tuple[NDArray[Any], int, int]:
        """Samples over HTTP; the ring must hold all that they hold, since it is written first."""
        self._until_audit = AUDIT_EVERY
        said = await self._samples_by_http(cursor)
        records, following, _ = said
        if self._ring is not reader:  # another process was described meanwhile
            return said
        try:
            found, reached, missed = reader.read(following - len(records))
            if reached < following or (not missed and found[: len(records)].tobytes() != records.tobytes()):
                self._distrust_ring("ring: not what the engine says over HTTP")
        except ring.RingBroken as error:
            self._distrust_ring(str(error))
        return said

    async def _samples_by_http(self, cursor: int) -> tuple[NDArray[Any], int, int]:
        response = await self._call("GET", f"/samples?cursor={cursor}")
        try:
            next_cursor, lost = (int(response.headers[name]) for name in (engine.CURSOR_HEADER, engine.LOST_HEADER))
        except (KeyError, ValueError) as error:
            raise ProtocolViolation(f"samples: {engine.CURSOR_HEADER} and {engine.LOST_HEADER} must be integers") from error
        if next_cursor < 0 or lost < 0:
            raise ProtocolViolation("samples: a cursor or a loss below zero")
        return samples.unpack(response.body), next_cursor, lost

    async def _call(self, method: str, path: str, *, body: bytes | None = None, accept: tuple[int, ...] = (200,)) -> Response:
        return _accepted(await self._line.call(method, engine.PREFIX + path, body), f"{method} {path}", accept)

    def _open_ring(self, described: engine.Describe) -> None:
        """Take the ring that a new process offers; what cannot be used is no fault of the engine's samples."""
        self._drop_ring()
        if described.samples_ring is None or self._folder is None or not ring.SUPPORTED:
            return
        try:
            self._ring = ring.RingReader(self._folder / described.samples_ring, start_id=described.start_id)
            self._until_audit = AUDIT_EVERY
        except ring.RingBroken as error:
            log.info("samples come over HTTP", extra={"why": str(error)})

    def _distrust_ring(self, why: str) -> None:
        log.warning("the ring of samples is dropped, they come over HTTP now", extra={"why": why})
        self._drop_ring()

    def _drop_ring(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None


def _accepted(response: Response, call: str, accept: tuple[int, ...]) -> Response:
    if response.status not in accept:
        raise ProtocolViolation(f"{call}: status {response.status}, {response.body[:200]!r}")
    return response
