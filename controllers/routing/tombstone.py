"""What is left of a deleted pool: a table without instances, which tells gateways and clients to send nothing there any more.

Followers take a table that is missing for a fault and go on with the last one, for days if need be, so that nobody who touches
the wrong object empties them. So a deleted pool has to be said to be deleted. Nothing waits for that: the pool is gone already,
and garbage collection takes its table along; either the tombstone is written before (status first, then the owner reference goes,
so that a crash in between leaves the table to the collector), or a new object is made. It is removed after a week, by whoever
leads then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from contract.keys import SLOTS
from contract.table import NOBODY, pack_slots
from controllers.holder import Holder, owner_in_words
from controllers.routing.observe import table_holder
from controllers.runtime.conditions import Condition, conditions_of, set_conditions, timestamp
from controllers.runtime.errors import Gone
from controllers.runtime.kube import ABSENT
from controllers.runtime.loop import Context
from controllers.runtime.resources import POOL_LABEL, POOLS, ROUTING_TABLES, Key, Object, identity, key_of, uid_of
from controllers.runtime.ssa import owns
from controllers.runtime.stamps import moment_of
from controllers.runtime.store import Store
from controllers.status import write_status
from crds.reasons import FieldManager

TOMBSTONE_SECONDS = 7 * 86_400.0
"""So long a gateway may be cut off from the API server and still learn that its pool is gone."""
COLLECTOR_SECONDS = 60.0
"""A tombstone that goes within this time was taken by a collector that had looked before it was written, and is made again."""
_ORPHANING = "orphan"


class LastGenerations:
    """Remembers the highest generation of each pool's table, for as long as the pool lives and a moment longer."""

    def __init__(self) -> None:
        self._known: dict[Key, int] = {}
        self._buried_s: dict[Key, float] = {}

    def note(self, key: Key, generation: int | None) -> None:
        """The pool lives, and its status names this generation."""
        self._buried_s.pop(key, None)
        if generation is not None:
            self._known[key] = generation

    def buried(self, key: Key, generation: int, *, now_s: float) -> None:
        """A tombstone was written, at monotonic second `now_s`."""
        self._known[key] = generation
        self._buried_s[key] = now_s

    def of(self, key: Key, *, now_s: float) -> int | None:
        """The generation, or None: nothing is known, or the tombstone has stood for a while and is not to come again."""
        if now_s - self._buried_s.get(key, now_s) > COLLECTOR_SECONDS:
            del self._buried_s[key]
            self._known.pop(key, None)
        return self._known.get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burial:
    """What to do about the table of a pool that is gone.

    Attributes
    ----------
    generation
        Generation of the tombstone to write; None: none is to be written.
    remove
        Whether the tombstone has stood long enough.
    requeue_after
        Seconds until it has.
    """

    generation: int | None = None
    remove: bool = False
    requeue_after: float | None = None


def decide_burial(*, pool: Object | None, table: Object | None, known: int | None, now: datetime) -> Burial:
    """Choose for a pool that is deleted, or about to be.

    Parameters
    ----------
    pool
        What is left of the pool in the store.
    table
        The table of its name, whoever's it is.
    known
        Highest generation that this process saw in the status of the pool while it lived; None: it saw no table.
    """
    if pool is not None and _ORPHANING in (pool["metadata"].get("finalizers") or ()):
        return Burial()  # deleted with --cascade=orphan: somebody wants the fleet to go on without the pool
    if table is None:
        return Burial() if known is None else Burial(generation=known + 1)
    status = table.get("status") or {}
    generation = max(int(status.get("generation") or 0), known or 0) + 1
    if table["metadata"].get("deletionTimestamp"):
        return Burial()  # its DELETED event brings us back
    if table["metadata"].get("ownerReferences"):
        return Burial(generation=generation) if _of_the_pool(table) else Burial()
    if not owns(table, ("spec", "poolRef"), field_manager=FieldManager.ROUTING):
        return Burial()  # made by hand
    if not status.get("generation"):
        return Burial(generation=generation)  # made a moment ago, by one who did not get to its status
    if not is_tombstone(status):
        return Burial()  # the collector took its owner away, as --cascade=orphan asked it to
    left = TOMBSTONE_SECONDS - (now - _written_at(table, now)).total_seconds()
    return Burial(requeue_after=left) if left > 0 else Burial(remove=True)


async def bury_pool(key: Key, ctx: Context, generations: LastGenerations) -> float | None:
    """See to what is left of a pool that is gone or going; returns the seconds until there is more to do, None when never.

    Raises
    ------
    Conflict
        When its table has moved or was collected meanwhile; then the next look makes a new one.
    """
    table, now = ctx.store.get(ROUTING_TABLES, key), ctx.clock.now()
    known = generations.of(key, now_s=ctx.clock.monotonic())
    burial = decide_burial(pool=ctx.store.get(POOLS, key), table=table, known=known, now=now)
    if burial.generation is not None:
        generations.note(key, burial.generation)  # until it stands, whatever the collector does meanwhile
    await _carry_out(burial, key=key, table=table, ctx=ctx, now=now)
    if burial.generation is not None:
        generations.buried(key, burial.generation, now_s=ctx.clock.monotonic())
    return burial.requeue_after


def generation_of(key: Key, store: Store) -> int | None:
    """The highest generation that a pool says, or a table says that is the pool's own; None where there is none."""
    pool, table = store.get(POOLS, key), store.get(ROUTING_TABLES, key)
    if pool is None:
        return None
    said = [(pool.get("status") or {}).get("tableGeneration")]
    if table is not None and table_holder(table, pool) is Holder.POOL:
        said.append((table.get("status") or {}).get("generation"))
    return max((int(generation) for generation in said if generation), default=None)


async def _carry_out(burial: Burial, *, key: Key, table: Object | None, ctx: Context, now: datetime) -> None:
    if burial.remove and table is not None:
        await ctx.kube.delete(ROUTING_TABLES, key, uid=uid_of(table), resource_version=str(table["metadata"]["resourceVersion"]))
        return
    if burial.generation is None:
        return
    if table is None:
        try:
            table = await _apply(ctx, key, None)
        except Gone:
            return  # the namespace is going too, and takes whoever follows the table there along
    status = tombstone_status(table, generation=burial.generation, now=now)
    await write_status(ctx, ROUTING_TABLES, table, status, field_manager=FieldManager.ROUTING)
    await _apply(ctx, key, ctx.store.get(ROUTING_TABLES, key) or table)


def tombstone_status(table: Object, *, generation: int, now: datetime) -> dict[str, Any]:
    """The whole status of a tombstone: a table that has slots and nobody to own them."""
    condition = Condition(
        "TablePublished", "False", "PoolDeleted", "the pool was deleted; gateways that see this send nothing to its instances"
    )
    observed = int(table["metadata"].get("generation", 1))
    return {
        "observedGeneration": observed,
        "generation": generation,
        "instances": [],  # said outright: a document that lacks the field is no table
        "slots": pack_slots([NOBODY] * SLOTS),
        "publishedAt": timestamp(now),
        "conditions": set_conditions(conditions_of(table), (condition,), observed_generation=observed, now=now),
    }


def is_tombstone(status: Mapping[str, Any]) -> bool:
    """Whether the status is that of a published table without instances."""
    return bool(status.get("generation")) and not status.get("instances")


def _of_the_pool(table: Object) -> bool:
    name = key_of(table).name
    return owner_in_words(table) == f"{POOLS.kind} {name}" and table["spec"].get("poolRef") == name


def _written_at(table: Object, now: datetime) -> datetime:
    written = moment_of((table.get("status") or {}).get("publishedAt")) or now
    return min(written, now + timedelta(minutes=5))  # one from the future is that of a clock that was wrong


async def _apply(ctx: Context, key: Key, current: Object | None) -> Object:
    """The object without an owner; applying no reference takes the one away that was applied before."""
    body = identity(ROUTING_TABLES, key)
    body["metadata"]["labels"] = {POOL_LABEL: key.name}
    body["spec"] = {"poolRef": key.name}
    answer = await ctx.kube.apply(
        ROUTING_TABLES,
        body,
        field_manager=FieldManager.ROUTING,
        current=current,
        resource_version=ABSENT if current is None else str(current["metadata"]["resourceVersion"]),
        uid=None if current is None else uid_of(current),
    )
    ctx.store.upsert(ROUTING_TABLES, answer)
    return answer
