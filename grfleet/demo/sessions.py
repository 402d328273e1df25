"""Engines and gateways as the driver sees them: HTTP connection pools, and each engine's clock set against ours.

`contract.engine_client` is the client for agents and tests; under hundreds of requests a second httpx costs several times what
aiohttp does, and what the driver spends is missing in the engines, so the driver has these narrow ones.
"""

import time
from collections.abc import Mapping

import aiohttp
import msgspec

from contract import answers, engine
from contract.errors import ProtocolViolation
from contract.table import INSTANCE_HEADER, USER_KEY_HEADER

CLOCK_PROBES = 5
TIMEOUT = aiohttp.ClientTimeout(total=15.0)


class RequestFailed(Exception):
    """There was no answer, or not one that the contract knows."""


class HttpSession:
    """Keeps connections to one address (`http://host:port` or `unix:/path`)."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._http: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, path: str, body: msgspec.Struct | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return content and headers of an answer of status 200.

        Raises
        ------
        RequestFailed
            When there is none.
        """
        if self._http is None:
            self._http = _client(self._address)
        data = msgspec.json.encode(body) if body is not None else None
        try:
            async with self._http.request(method, engine.PREFIX + path, data=data, headers=headers) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RequestFailed(f"{type(error).__name__}") from error
        if response.status != 200:
            raise RequestFailed(f"status {response.status}: {content[:120]!r}")
        return content, response.headers

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.close()


class EngineSession:
    """Sends ranking requests to one engine, and stamps them on its clock.

    Parameters
    ----------
    address
        Where the engine serves, as the routing table has it.
    clock_address
        Where it tells its clock, if not there.
    """

    def __init__(self, address: str, *, clock_address: str | None = None) -> None:
        self._http = HttpSession(address)
        self._clock_address = clock_address
        self._clock_offset_ms: float | None = None

    async def ready(self) -> None:
        """Set the clocks, once.

        Raises
        ------
        RequestFailed
            When the engine does not tell its clock.
        """
        if self._clock_offset_ms is not None:
            return
        if self._clock_address is None:
            self._clock_offset_ms = await _clock_offset_ms(self._http)
            return
        http = HttpSession(self._clock_address)
        try:
            self._clock_offset_ms = await _clock_offset_ms(http)
        finally:
            await http.aclose()

    def stamped(self, request: engine.RankRequest, *, start_s: float) -> engine.RankRequest:
        """Return a request whose `arrival_ms` is trace time, 0 being `start_s` of our monotonic clock, with the engine's time."""
        offset_ms = (self._clock_offset_ms or 0.0) + start_s * 1000.0
        return msgspec.structs.replace(request, arrival_ms=(request.arrival_ms or 0.0) + offset_ms)

    async def rank(self, stamped: engine.RankRequest) -> engine.RankAnswer:
        """Send a stamped request; RequestFailed when there is no answer, or a bad one."""
        content, _ = await self._http.call("POST", "/rank", stamped)
        return _decoded(content, engine.RankAnswer)

    async def aclose(self) -> None:
        await self._http.aclose()


class GatewaySession:
    """Sends ranking requests to a pool's gateway, which chooses the instance."""

    def __init__(self, address: str) -> None:
        self._http = HttpSession(address)

    async def rank(self, stamped: engine.RankRequest) -> tuple[engine.RankAnswer, str]:
        """Return the answer and the name of the instance that gave it; RequestFailed when there is no answer, or a bad one."""
        content, headers = await self._http.call("POST", "/rank", stamped, {USER_KEY_HEADER: stamped.user_key})
        return _decoded(content, engine.RankAnswer), headers.get(INSTANCE_HEADER, "")

    async def aclose(self) -> None:
        await self._http.aclose()


async def _clock_offset_ms(http: HttpSession) -> float:
    """What to add to our monotonic clock to have an engine's; from the quickest of a few looks."""
    best_s, offset_ms = float("inf"), 0.0
    for _ in range(CLOCK_PROBES):
        sent_s = time.monotonic()
        seen = _decoded((await http.call("GET", "/observe"))[0], engine.Observe)
        took_s = time.monotonic() - sent_s
        if took_s < best_s:
            best_s = took_s
            offset_ms = seen.clock_ms - (sent_s + took_s / 2.0) * 1000.0
    return offset_ms


def _decoded(body: bytes, kind: type[answers.Answer]) -> answers.Answer:
    try:
        return answers.decode(body, kind)
    except ProtocolViolation as error:
        raise RequestFailed(f"answered something else: {error}") from error


def _client(address: str) -> aiohttp.ClientSession:
    headers = {"content-type": "application/json"}
    if address.startswith("unix:"):
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path=address.removeprefix("unix:"), limit=0)
        base = "http://engine"
    else:
        connector, base = aiohttp.TCPConnector(limit=0), address
    return aiohttp.ClientSession(base, connector=connector, timeout=TIMEOUT, headers=headers, trust_env=False)
