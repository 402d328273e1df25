"""Async client of the engine contract, for agents, drivers and the conformance suite."""

from types import TracebackType
from typing import Self

import httpx
import numpy as np
from numpy.typing import NDArray

from contract import engine, http, samples
from contract.engine import CURSOR_HEADER, LOST_HEADER
from contract.errors import ProtocolViolation
from contract.residency import ResidencyReport, decode_report


class EngineClient:
    """Speaks the engine contract to one engine.

    Parameters
    ----------
    url : str
        `unix:/run/grfleet/engine.sock`, `http://host:port` or `https://host:port`.
    token : str, optional
        Bearer token, for TCP.
    timeout_s : float
        Limit in seconds of each step of a call, such as connecting, or the next piece of the answer; of the whole of it four
        times as much.

    Every call raises `Unreachable` when there is no answer and `ProtocolViolation` when the answer breaks the contract.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 2.0) -> None:
        base_url, transport = http.transport_for(url)
        headers = {"authorization": f"Bearer {token}"} if token else None
        self._http = httpx.AsyncClient(
            base_url=base_url + engine.PREFIX, transport=transport, headers=headers, timeout=timeout_s, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def describe(self) -> engine.Describe:
        """Return what the engine is; ProtocolViolation when it speaks another version of the contract."""
        answer = http.decode(await http.fetch(self._http, "GET", "/describe"), engine.Describe)
        if answer.contract_version != engine.VERSION:
            raise ProtocolViolation(f"describe: contract {answer.contract_version!r}, this client speaks {engine.VERSION!r}")
        return answer

    async def observe(self) -> engine.Observe:
        """Return counters, gauges, the split in force and the latency histogram."""
        return http.decode(await http.fetch(self._http, "GET", "/observe"), engine.Observe)

    async def put_split(self, request: engine.SplitRequest) -> engine.SplitAnswer:
        """Ask for a split; a refusal is an answer, which carries the split in force."""
        response = await http.fetch(self._http, "PUT", "/split", body=request, accept=(200, 409))
        return http.decode(response, engine.SplitAnswer)

    async def put_limits(self, request: engine.LimitsRequest) -> engine.LimitsAnswer:
        """Ask for limits of pre-inference and lower tiers; a refusal is an answer."""
        response = await http.fetch(self._http, "PUT", "/limits", body=request, accept=(200, 409))
        return http.decode(response, engine.LimitsAnswer)

    async def samples(self, cursor: int) -> tuple[NDArray[np.void], int, int]:
        """Return (records after `cursor`, next cursor, records lost in between)."""
        response = await http.fetch(self._http, "GET", "/samples", params={"cursor": str(cursor)})
        try:
            next_cursor, lost = int(response.headers[CURSOR_HEADER]), int(response.headers[LOST_HEADER])
        except (KeyError, ValueError) as error:
            raise ProtocolViolation(f"samples: headers {CURSOR_HEADER} and {LOST_HEADER} must be integers") from error
        return samples.unpack(response.content), next_cursor, lost

    async def residency(self, cursor: int) -> ResidencyReport | None:
        """Return whose state changed after `cursor`; None from an engine that does not tell."""
        response = await http.fetch(self._http, "GET", "/residency", params={"cursor": str(cursor)}, accept=(200, 404, 501))
        return decode_report(response.content) if response.status_code == 200 else None

    async def rank(self, request: engine.RankRequest) -> engine.RankAnswer:
        """Serve one ranking request."""
        return http.decode(await http.fetch(self._http, "POST", "/rank", body=request), engine.RankAnswer)

    async def pre_infer(self, request: engine.PreInferRequest) -> engine.PreInferAnswer:
        """Ask for a prefix to be computed ahead; a refusal (429) is an answer."""
        response = await http.fetch(self._http, "POST", "/pre-infer", body=request, accept=(200, 202, 429))
        return http.decode(response, engine.PreInferAnswer)

    async def prefetch(self, request: engine.UsersRequest) -> engine.UsersAnswer:
        """Bring the state of users up to HBM, as far as the engine can."""
        return http.decode(await http.fetch(self._http, "POST", "/prefetch", body=request), engine.UsersAnswer)

    async def evict(self, request: engine.UsersRequest) -> engine.UsersAnswer:
        """Drop the state of users that are not in service."""
        return http.decode(await http.fetch(self._http, "POST", "/evict", body=request), engine.UsersAnswer)

    async def invalidate(self, request: engine.InvalidateRequest) -> engine.UsersAnswer:
        """Drop what another model or embedding version computed; everything when none is named."""
        return http.decode(await http.fetch(self._http, "POST", "/invalidate", body=request), engine.UsersAnswer)

    async def drain(self, *, draining: bool = True) -> engine.DrainAnswer:
        """Make the engine say that it is not ready, or is again; it serves what still arrives.

        Send `draining=False` only to an engine that was told to drain, see `engine.DrainRequest`.
        """
        body = None if draining else engine.DrainRequest(draining=False)
        return http.decode(await http.fetch(self._http, "POST", "/drain", body=body), engine.DrainAnswer)

    async def ready(self) -> engine.ReadyAnswer:
        """Return whether the engine wants requests; a no (503) is an answer with reasons."""
        return http.decode(await http.fetch(self._http, "GET", "/ready", accept=(200, 503)), engine.ReadyAnswer)
