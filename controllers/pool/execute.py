"""Carries out the plan of the pool loop. Every write is guarded: by the uid, by the resourceVersion, or by "must not exist yet".

What the API server answers goes into the store at once, so that the next look does not repeat what was just done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from controllers.announce import post
from controllers.pool.actions import Action, ApplyInstance, DeleteInstance, WriteReadiness
from controllers.pool.decide import Plan
from controllers.pool.workload_execute import WorkloadMemory, carry_out, ensure_budget
from controllers.runtime.kube import ABSENT
from controllers.runtime.loop import Context
from controllers.runtime.resources import (
    INSTANCES,
    POOL_LABEL,
    POOLS,
    Key,
    Object,
    ResourceType,
    identity,
    key_of,
    owner_reference,
    uid_of,
)
from controllers.status import write_status
from crds.reasons import FieldManager

AT_ONCE = 8
"""Writes to different instances under way together: a new pool of hundreds would take minutes otherwise."""


async def execute(plan: Plan, pool: Object, ctx: Context, memory: WorkloadMemory | None = None) -> bool:
    """Do what the plan says, instances first; returns whether the pool's status was written.

    Raises
    ------
    Refused
        When the API server does not take the Deployment; `memory` has the reason, the status is not written.
    """
    memory = memory or WorkloadMemory()
    for kind, actions in groupby(plan.actions, key=type):
        # A row of writes to different instances; everything else waits for what stands before it.
        width = AT_ONCE if issubclass(kind, ApplyInstance | WriteReadiness) else 1
        await _carry_out(actions, pool, ctx, memory, width=width)
    if plan.budget is not None:
        await ensure_budget(plan.budget, pool, ctx, memory)
    if plan.status is None:
        return False
    await _write_status(POOLS, pool, plan.status, ctx)
    post(ctx.events, pool, plan.announce, action="Reconcile", controller="pool")
    return True


async def _carry_out(actions: Iterator[Action], pool: Object, ctx: Context, memory: WorkloadMemory, *, width: int) -> None:
    """Do the actions in order, so many at once; the first error is raised when none is under way any more."""

    async def work() -> None:
        for action in actions:
            if isinstance(action, ApplyInstance):
                await _apply_instance(action, pool, ctx)
            elif isinstance(action, DeleteInstance):
                await ctx.kube.delete(INSTANCES, Key(key_of(pool).namespace, action.name), uid=action.uid)
            elif isinstance(action, WriteReadiness):
                await _write_readiness(action, ctx)
            else:
                await carry_out(action, ctx, memory)

    for outcome in await asyncio.gather(*(work() for _ in range(width)), return_exceptions=True):
        if outcome is not None:
            raise outcome


def instance_body(pool: Object, name: str, source: Mapping[str, Any], drain: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a GRInstance that the pool loop owns."""
    where = key_of(pool)
    body = identity(INSTANCES, Key(where.namespace, name))
    body["metadata"]["labels"] = {POOL_LABEL: where.name}
    body["metadata"]["ownerReferences"] = [owner_reference(POOLS, pool, controller=True)]
    body["spec"] = {"poolRef": where.name, "source": dict(source), **({} if drain is None else {"drain": dict(drain)})}
    return body


async def _apply_instance(action: ApplyInstance, pool: Object, ctx: Context) -> None:
    body, current = instance_body(pool, action.name, action.source, action.drain), action.current
    answer = await ctx.kube.apply(
        INSTANCES,
        body,
        field_manager=FieldManager.POOL,
        current=current,
        resource_version=ABSENT if current is None else current["metadata"]["resourceVersion"],
        uid=None if current is None else uid_of(current),
    )
    ctx.store.upsert(INSTANCES, answer)


async def _write_readiness(action: WriteReadiness, ctx: Context) -> None:
    await _write_status(INSTANCES, action.current, action.status, ctx)
    post(ctx.events, action.current, action.announce, action="Reconcile", controller="pool")


async def _write_status(resource: ResourceType, current: Object, status: Mapping[str, Any], ctx: Context) -> None:
    # The instance may have been written a moment ago in this very plan: take the version that the store has by now.
    latest = ctx.store.get(resource, key_of(current))
    if latest is None or uid_of(latest) != uid_of(current):
        return
    await write_status(ctx, resource, latest, status, field_manager=FieldManager.POOL)
