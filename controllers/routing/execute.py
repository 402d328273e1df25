"""Carries out the plan of the routing loop: the table object, its status, then the word on the pool.

The table's status is guarded by its resourceVersion, so that a leader which has been stopped and wakes up late cannot publish.
"""

from __future__ import annotations

from typing import Any

from controllers.announce import post
from controllers.routing.decide import Plan
from controllers.routing.observe import Observation
from controllers.runtime.kube import ABSENT
from controllers.runtime.loop import Context
from controllers.runtime.resources import POOL_LABEL, POOLS, ROUTING_TABLES, Object, identity, key_of, owner_reference, uid_of
from controllers.status import write_status
from crds.reasons import FieldManager


async def execute(plan: Plan, seen: Observation, ctx: Context) -> bool:
    """Do what the plan says; returns whether the pool's status was written."""
    table = seen.stored_table
    if plan.apply_table:
        table = await _apply_table(seen, ctx)
    if plan.table_status is not None and table is not None:
        await write_status(ctx, ROUTING_TABLES, table, plan.table_status, field_manager=FieldManager.ROUTING)
    if plan.pool_status is None:
        return False
    await write_status(ctx, POOLS, seen.stored, plan.pool_status, field_manager=FieldManager.ROUTING)
    post(ctx.events, seen.stored, plan.announce, action="Publish", controller="routing")
    return True


async def _apply_table(seen: Observation, ctx: Context) -> Object:
    current = seen.stored_table
    answer = await ctx.kube.apply(
        ROUTING_TABLES,
        table_body(seen.stored),
        field_manager=FieldManager.ROUTING,
        current=current,
        resource_version=ABSENT if current is None else None,
        uid=None if current is None else uid_of(current),
    )
    ctx.store.upsert(ROUTING_TABLES, answer)
    return answer


def table_body(pool: Object) -> dict[str, Any]:
    """The GRRoutingTable object without its status."""
    where = key_of(pool)
    body = identity(ROUTING_TABLES, where)
    body["metadata"]["labels"] = {POOL_LABEL: where.name}
    body["metadata"]["ownerReferences"] = [owner_reference(POOLS, pool, controller=True)]
    body["spec"] = {"poolRef": where.name}
    return body
