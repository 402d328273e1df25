"""What the routing loop looks at: one pool, its RoutingPolicy, its instances, and the table in force; all from the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from controllers.holder import Holder, holder_of
from controllers.lookup import Lookup, routing_policy_of
from controllers.parsed import ParsedObjects
from controllers.runtime.errors import Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, ROUTING_TABLES, Key, Object, key_of
from crds import GRInstance, GRRoutingTable, GRServingPool, RoutingPolicySpec, explain_invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The world of one pool's table.

    Attributes
    ----------
    started
        Since when this process leads. What an earlier leader saw before is not held against an instance at once.
    write_ages_s
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
    write_ages_s: tuple[float, ...] = ()


def observe(
    ctx: Context, key: Key, *, parsed: ParsedObjects, started: datetime, write_ages_s: tuple[float, ...]
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
        holder=table_holder(stored_table, stored),
        started=started,
        write_ages_s=write_ages_s,
    )


def table_holder(table: Object | None, pool: Object) -> Holder:
    """Whose table it is; one that names another pool is a stranger's, whoever owns it or not."""
    holder = holder_of(table, pool)
    if table is not None and holder is not Holder.POOL and table["spec"].get("poolRef") != key_of(pool).name:
        return Holder.STRANGER
    return holder
