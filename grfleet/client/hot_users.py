"""Keeps a router's overrides what a gateway chose: polls the gateway, never the agents, and never on the path of a pick.

A gateway weighs the reports of all agents anyway; a client that did so too would ask every agent of the fleet. What the gateway
says holds for the time that it gives, counted anew at every answer, so a gateway that is gone leaves its overrides in force for
so long, and then each user goes where its slot says.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import httpx
import msgspec

from contract.answers import MAX_ANSWER_BYTES, decode, read_bounded
from contract.backoff import Backoff
from contract.clock import Clock, monotonic_ms
from contract.errors import ProtocolViolation
from contract.residency import OVERRIDES_PATH, OverrideTable, unpack_overrides
from contract.table_sources.sources import ANSWER_SECONDS, Sleep
from grfleet.client.metrics import GuardedMetrics, Metric, Metrics, NoMetrics
from grfleet.client.router import Router

POLL_SECONDS = 2.0


class Entry(msgspec.Struct, frozen=True):
    """An override as `Overrides.replace` takes it."""

    user_key: str
    instance_uid: str
    until_ms: float


class GatewayOverrides:
    """The overrides of one gateway.

    Parameters
    ----------
    gateway : str
        Base URL of the gateway's agent (its `--health-bind`), or of several behind one name.
    http : httpx.AsyncClient, optional
        Made, and closed, where none is given.
    """

    def __init__(self, gateway: str, *, http: httpx.AsyncClient | None = None, clock: Clock = monotonic_ms) -> None:
        if not gateway.startswith(("http://", "https://")):
            raise ValueError(f"overrides: {gateway!r} is no http(s) URL of a gateway's agent")
        self._url = gateway.rstrip("/") + OVERRIDES_PATH
        self._http, self._owned = http or httpx.AsyncClient(timeout=httpx.Timeout(10.0)), http is None
        self._clock = clock
        self._revision = ""
        self._users: dict[str, str] = {}
        self._for_ms = 0.0
        self._renew_ms = 0.0

    @property
    def label(self) -> str:
        """What to call it in a message; no credentials."""
        return f"overrides at {httpx.URL(self._url).copy_with(userinfo=b'', query=None)}"

    async def look(self, router: Router) -> None:
        """Ask once and bring what differs, or is about to end, into force.

        Raises
        ------
        httpx.HTTPError, ProtocolViolation
            Nothing has changed then.
        """
        params = {"known": self._revision} if self._revision else {}
        async with asyncio.timeout(ANSWER_SECONDS), self._http.stream("GET", self._url, params=params) as response:
            if response.status_code != httpx.codes.NO_CONTENT:
                response.raise_for_status()
                body = await read_bounded(response.aiter_bytes(), call="GET overrides", limit_bytes=MAX_ANSWER_BYTES)
                await asyncio.to_thread(self._take, body)
        if self._clock() >= self._renew_ms:
            await asyncio.to_thread(self._renew, router)

    def _take(self, body: bytes) -> None:
        table = decode(body, OverrideTable)
        self._users, self._for_ms, self._revision = unpack_overrides(table), table.for_ms, table.revision
        self._renew_ms = 0.0

    def _renew(self, router: Router) -> None:
        now_ms = self._clock()
        until_ms = now_ms + self._for_ms
        router.overrides.replace(Entry(key, uid, until_ms) for key, uid in self._users.items())
        self._renew_ms = now_ms + self._for_ms / 2.0

    async def aclose(self) -> None:
        """Close the connections that are its own."""
        if self._owned:
            await self._http.aclose()


async def keep_overrides(
    router: Router,
    gateway: GatewayOverrides,
    *,
    on_problem: Callable[[str], None] = lambda message: None,
    metrics: Metrics | None = None,
    rng: random.Random | None = None,
    sleep: Sleep = asyncio.sleep,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Feed a router's overrides from a gateway until cancelled; nothing that the gateway says or does ends it."""
    chance = rng or random.Random()
    backoff = Backoff(chance)
    counted = GuardedMetrics(metrics or NoMetrics())
    while True:
        try:
            await gateway.look(router)
        except Exception as error:  # whatever it is, it must not freeze the overrides without a word
            counted.count(Metric.SOURCE_PROBLEMS)
            with contextlib.suppress(Exception):
                on_problem(f"{gateway.label}: {error if isinstance(error, ProtocolViolation) else type(error).__name__}")
            await sleep(max(poll_seconds, backoff.pause_s()))
        else:
            backoff.reset()
            await sleep(poll_seconds * chance.uniform(0.75, 1.25))
