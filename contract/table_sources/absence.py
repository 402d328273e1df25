"""What it means that a published table is not there: that its pool was deleted, if the pool is not there either, for a while.

Deleting a pool while no operator runs takes its table along before anybody could say so in it. One object that is missing is no
word about instances, as it is easily touched by mistake; both are, if the table was the pool's own and whoever asks may read
pools. Without that right nothing is concluded. A name that the API server does not know at all (its kinds are not installed) is
no pool that was deleted.
"""

import asyncio

import httpx
import msgspec

from contract.answers import MAX_ANSWER_BYTES, decode, read_bounded
from contract.clock import Clock
from contract.errors import ProtocolViolation
from contract.keys import SLOTS
from contract.table import NOBODY, RoutingTable, pack_slots
from contract.table_sources.sources import ANSWER_SECONDS, Published, Sighting

POOL_PATH = "/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grservingpools/{pool}"
CONFIRM_SECONDS = 60
"""So long both must have been gone: a pool that is replaced is back by then."""
_POOL_KIND = "GRServingPool"
_NOT_FOUND = 404


class _Details(msgspec.Struct, frozen=True):
    name: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    reason: str = ""
    details: _Details = _Details()


class Absence:
    """Remembers the last table of one source, and judges when it is not there any more.

    Attributes
    ----------
    pending
        Whether its pool was not there either, and a later look is to confirm it.
    """

    def __init__(self, api: httpx.AsyncClient, *, namespace: str, clock: Clock) -> None:
        self._api, self._namespace, self._clock = api, namespace, clock
        self._pool = self._uid = ""
        self._generation = 0
        self._since_ms: float | None = None

    @property
    def pending(self) -> bool:
        return self._since_ms is not None and self._clock() - self._since_ms < CONFIRM_SECONDS * 1000.0

    def over(self, published: Published, table: RoutingTable) -> None:
        """The table is there."""
        owners = published.metadata.owner_references or []
        self._pool = next((each.name for each in owners if each.kind == _POOL_KIND), "")
        self._uid, self._generation, self._since_ms = published.metadata.uid, table.generation, None

    async def look(self, problem: str) -> Sighting:
        """Return what it means that the table is not there: a `problem` mostly, a tombstone when its pool is gone for good.

        Raises
        ------
        httpx.HTTPError, TimeoutError
            When the API server does not answer; nothing is concluded.
        """
        if not self._pool or not await self._pool_is_gone():
            self._since_ms = None
            return Sighting(problem=f"{problem}; the last table stays in use")
        if self._since_ms is None:
            self._since_ms = self._clock()
        if self.pending:
            return Sighting(problem=f"{problem}, nor its pool; if they stay away, nobody is served any more")
        tombstone = RoutingTable(generation=self._generation + 1, instances=[], slots=pack_slots([NOBODY] * SLOTS))
        return Sighting(table=tombstone, incarnation=self._uid)

    async def _pool_is_gone(self) -> bool:
        path = POOL_PATH.format(namespace=self._namespace, pool=self._pool)
        async with asyncio.timeout(ANSWER_SECONDS), self._api.stream("GET", path) as response:
            if response.status_code != _NOT_FOUND:
                return False
            body = await read_bounded(response.aiter_bytes(), call="pool", limit_bytes=MAX_ANSWER_BYTES)
        try:
            refusal = decode(body, _Refusal)
        except ProtocolViolation:
            return False
        return refusal.reason == "NotFound" and refusal.details.name == self._pool
