"""One engine as the driver sees it: an HTTP connection pool, and the engine's clock set against ours.

`contract.engine_client` is the client for agents and tests; under hundreds of requests a second httpx costs several times what
aiohttp does, and what the driver spends is missing in the engines, so the driver has this narrow one.
"""

import time

import aiohttp
import msgspec

from contract import answers, engine
from contract.errors import ProtocolViolation

CLOCK_PROBES = 5
TIMEOUT = aiohttp.ClientTimeout(total=15.0)


class RequestFailed(Exception):
    """The engine did not answer, or not with what the contract says."""


class EngineSession:
    """Sends ranking requests to one engine (`http://host:port` or `unix:/path`), stamped on the engine's clock."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._http: aiohttp.ClientSession | None = None
        self._clock_offset_ms: float | None = None

    async def ready(self) -> None:
        """Connect and set the clocks, once.

        Raises
        ------
        RequestFailed
            When the engine does not tell its clock.
        """
        if self._clock_offset_ms is not None:
            return
        if self._http is None:
            self._http = _session(self._address)
        best_s = float("inf")
        for _ in range(CLOCK_PROBES):
            sent_s = time.monotonic()
            seen = _decoded(await self._call("GET", "/observe"), engine.Observe)
            took_s = time.monotonic() - sent_s
            if took_s < best_s:
                best_s = took_s
                offset_ms = seen.clock_ms - (sent_s + took_s / 2.0) * 1000.0
        self._clock_offset_ms = offset_ms

    async def rank(self, request: engine.RankRequest, *, start_s: float) -> engine.RankAnswer:
        """Send a request whose `arrival_ms` is trace time, with trace time 0 at `start_s` of our monotonic clock.

        Raises
        ------
        RequestFailed
            When there is no answer, or a bad one.
        """
        offset_ms = (self._clock_offset_ms or 0.0) + start_s * 1000.0
        stamped = msgspec.structs.replace(request, arrival_ms=(request.arrival_ms or 0.0) + offset_ms)
        return _decoded(await self._call("POST", "/rank", stamped), engine.RankAnswer)

    async def _call(self, method: str, path: str, body: msgspec.Struct | None = None) -> bytes:
        if self._http is None:
            raise RequestFailed("not connected")
        data = msgspec.json.encode(body) if body is not None else None
        try:
            async with self._http.request(method, engine.PREFIX + path, data=data) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RequestFailed(f"{type(error).__name__}") from error
        if response.status != 200:
            raise RequestFailed(f"status {response.status}: {content[:120]!r}")
        return content

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.close()


def _decoded(body: bytes, kind: type[answers.Answer]) -> answers.Answer:
    try:
        return answers.decode(body, kind)
    except ProtocolViolation as error:
        raise RequestFailed(f"answered something else: {error}") from error


def _session(address: str) -> aiohttp.ClientSession:
    headers = {"content-type": "application/json"}
    if address.startswith("unix:"):
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path=address.removeprefix("unix:"), limit=0)
        base = "http://engine"
    else:
        connector, base = aiohttp.TCPConnector(limit=0), address
    return aiohttp.ClientSession(base, connector=connector, timeout=TIMEOUT, headers=headers, trust_env=False)
