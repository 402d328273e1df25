"""What the routing loop looks at: one pool, its RoutingPolicy, its instances, and the table in force; all from the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from pydantic import ValidationError

from controllers.lookup import Lookup, routing_policy_of
from controllers.parsed import ParsedObjects
from controllers.runtime.errors import Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, ROUTING_TABLES, Key, Object
from crds import GRInstance, GRRoutingTable, GRServingPool, RoutingPolicySpec, explain_invalid


class Holder(Enum):
    """Whose GRRoutingTable stands under the pool's name."""

    NOBODY = auto()
    """There is none."""
    POOL = auto()
    """It is this pool's."""
    ORPHAN = auto()
    """It names this pool and has no owner: made by hand, or its owner reference was taken away."""
    PREDECESSOR = auto()
    """It belongs to a deleted pool of the same name and is about to be collected."""
    STRANGER = auto()
    """It belongs to somebody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The world of one pool's table.

    Attributes
    ----------
    started
        Since when this process leads. What an earlier leader saw before is not held against an instance at once.
    write_ages
        Seconds since the last writes of the loop to the pool's status, newest first.
    """

    pool: GRServingPool
    stored: Object
    policy: Lookup[RoutingPolicySpec]
    instances: tuple[GRInstance, ...]
    table: GRRoutingTable | None
    stored_table: Object | None
    holder: Holder
    started: datetime
    write_ages: tuple[float, ...] = ()


def observe(
    ctx: Context, key: Key, *, parsed: ParsedObjects, started: datetime, write_ages: tuple[float, ...]
) -> Observation | None:
    """Read the world of the pool's table; None when the pool is gone or going.

    Raises
    ------
    Terminal
        When this operator cannot read one of the objects.
    """
    store = ctx.store
    stored, stored_table = store.get(POOLS, key), store.get(ROUTING_TABLES, key)
    if stored is None or stored["metadata"].get("deletionTimestamp"):
        return None
    try:
        pool = parsed.read(GRServingPool, stored)
        instances = tuple(parsed.read(GRInstance, each) for each in store.owned_by(INSTANCES, stored))
        table = parsed.read(GRRoutingTable, stored_table) if stored_table is not None else None
    except ValidationError as error:
        raise Terminal("InvalidSpec", f"pool {key}, its table or an instance cannot be read: {explain_invalid(error)}") from error
    return Observation(
        pool=pool,
        stored=stored,
        policy=routing_policy_of(ctx, pool, parsed=parsed),
        instances=tuple(each for each in instances if each.metadata.deletion_timestamp is None),
        table=table,
        stored_table=stored_table,
        holder=holder_of(pool, table),
        started=started,
        write_ages=write_ages,
    )


def holder_of(pool: GRServingPool, table: GRRoutingTable | None) -> Holder:
    """Whose table it is."""
    if table is None:
        return Holder.NOBODY
    owners = table.metadata.owner_references
    if any(owner.uid == pool.metadata.uid for owner in owners):
        return Holder.POOL
    if table.spec.pool_ref != pool.metadata.name:
        return Holder.STRANGER
    if not owners:
        return Holder.ORPHAN
    same_name = any(owner.kind == POOLS.kind and owner.name == pool.metadata.name for owner in owners)
    return Holder.PREDECESSOR if same_name else Holder.STRANGER
