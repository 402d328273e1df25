"""Carries out the plan of the pre-inference loop: capacity into the instances, the word on the pool, then the pool's scale.

Every write is guarded by the version that was read, so that a leader which has been stopped and wakes up late changes nothing.
The scale comes last: it makes a new generation of the pool, which the words before it do not speak of.
"""

from __future__ import annotations

from controllers.announce import post
from controllers.preinference.decide import Plan, SetCapacity, SetReplicas
from controllers.preinference.observe import Observation
from controllers.runtime.errors import Conflict
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, Object, identity, key_of, uid_of
from controllers.status import write_status
from crds.reasons import FieldManager


async def execute(plan: Plan, seen: Observation, ctx: Context) -> tuple[bool, bool]:
    """Do what the plan says; returns whether the pool's status and whether its scale was written.

    Raises
    ------
    Conflict
        When an object has changed since it was read; the others have been written.
    """
    moved = [each for each in [await _set_capacity(write, ctx) for write in plan.capacities] if each is not None]
    written = False
    if plan.status is not None:
        await write_status(ctx, POOLS, seen.stored, plan.status, field_manager=FieldManager.PRE_INFERENCE)
        post(ctx.events, seen.stored, plan.announce, action="Size", controller="preinference")
        written = True
    scaled = plan.replicas is not None and await _set_replicas(plan.replicas, seen.stored, ctx)
    if moved:
        raise moved[0]
    return written, scaled


async def _set_capacity(write: SetCapacity, ctx: Context) -> Conflict | None:
    """Apply spec.preInfer; an instance that has moved on is left for the next look and must not hold up the others."""
    stored = write.current
    body = {**identity(INSTANCES, key_of(stored)), "spec": {"preInfer": {"slots": write.slots, "bytes": write.prefix_bytes}}}
    try:
        answer = await ctx.kube.apply(
            INSTANCES,
            body,
            field_manager=FieldManager.PRE_INFERENCE,
            current=stored,
            resource_version=stored["metadata"]["resourceVersion"],
            uid=uid_of(stored),
        )
    except Conflict as conflict:
        return conflict
    ctx.store.upsert(INSTANCES, answer)
    return None


async def _set_replicas(what: SetReplicas, seen: Object, ctx: Context) -> bool:
    """Write the scale of the pool as it was decided about; False when somebody has written its spec meanwhile."""
    latest = ctx.store.get(POOLS, key_of(seen))
    if latest is None or uid_of(latest) != uid_of(seen) or latest["metadata"]["generation"] != seen["metadata"]["generation"]:
        return False
    await ctx.kube.apply_scale(
        POOLS,
        key_of(seen),
        what.after,
        field_manager=FieldManager.PRE_INFERENCE,
        resource_version=latest["metadata"]["resourceVersion"],
    )
    return True
