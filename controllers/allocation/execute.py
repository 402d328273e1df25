"""Carries out the plan of the allocation loop: the intent into the object, the signed intent to the agent, its word into status.

The generation that the API server gave the intent is what the agent orders by, so a late push of a former leader changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from contract import signing
from contract.agent import Intent, IntentAnswer, IntentStatus, ModelStatus
from controllers.allocation.agents import Agents
from controllers.allocation.decide import Plan, Push, PushModel
from controllers.allocation.intent import audience_of
from controllers.allocation.memory import Memory, ModelPushed, Pushed, Refusal
from controllers.allocation.observe import Observation
from controllers.allocation.rollup import RollupPlan
from controllers.announce import post
from controllers.model_bytes import ModelBytes
from controllers.runtime.errors import ReconcileError, Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, Object, identity, key_of, uid_of
from controllers.signing_key import SigningKey
from controllers.status import write_status
from crds.reasons import FieldManager

_logger = logging.getLogger(__name__)

ACCEPTANCE_SECONDS = 600
"""An intent must be accepted within this time of being signed; once accepted it holds until replaced."""
DRAIN_SECONDS = 2.0
"""How often the agent of a draining instance is asked until nothing is in flight; a silent one by its own rhythm."""
FOLLOW_UP_SECONDS = 3.0
"""How soon after a new intent the agent is asked where it leads."""
TAKEN = frozenset({IntentStatus.ACCEPTED, IntentStatus.UNCHANGED})
MODEL_TAKEN = frozenset({ModelStatus.HELD, ModelStatus.UNCHANGED})


async def execute(
    plan: Plan, seen: Observation, agents: Agents, memory: Memory, signing_key: SigningKey, models: ModelBytes, ctx: Context
) -> None:
    """Do what the plan says and remember what must not be repeated too soon."""
    key = key_of(seen.stored)
    if plan.intent is not None:
        await _write_intent(seen.stored, plan.intent, ctx)
    if plan.status is not None:
        await _write_status(seen.stored, plan, ctx)
        memory.wrote(key, now_s=ctx.clock.monotonic())
    if plan.push is not None:
        answered = await _push(seen, plan.push, agents, signing_key, ctx)
        memory.pushed(key, answered, generation=plan.push.generation)
    elif seen.push_age_s is not None and seen.push_age_s < FOLLOW_UP_SECONDS:
        agents.hurry(seen.instance.metadata.uid, seconds=FOLLOW_UP_SECONDS)
    if plan.push_model is not None:
        memory.pushed_model(key, await _push_model(seen, plan.push_model, agents, models, ctx))
    if plan.finishing:
        agents.hurry(seen.instance.metadata.uid, seconds=DRAIN_SECONDS)


async def execute_rollup(plan: RollupPlan, pool: Object, ctx: Context) -> bool:
    """Write the conditions of the pool, if there is anything new; returns whether it was written."""
    if plan.status is None:
        return False
    await write_status(ctx, POOLS, pool, plan.status, field_manager=FieldManager.ALLOCATION)
    post(ctx.events, pool, plan.announce, action="Report", controller="allocation")
    return True


async def _write_intent(stored: Object, intent: Mapping[str, Any], ctx: Context) -> None:
    """Apply spec.intent to exactly this instance as it was read: a former leader's late word must not replace a newer one."""
    body = {**identity(INSTANCES, key_of(stored)), "spec": {"intent": dict(intent)}}
    answer = await ctx.kube.apply(
        INSTANCES,
        body,
        field_manager=FieldManager.ALLOCATION,
        current=stored,
        resource_version=stored["metadata"]["resourceVersion"],
        uid=uid_of(stored),
    )
    ctx.store.upsert(INSTANCES, answer)


async def _push(seen: Observation, what: Push, agents: Agents, key: SigningKey, ctx: Context) -> Pushed | None:
    """Sign the intent and hand it over; None when the agent did not answer.

    Without a usable key everything else goes on: the status says what is wrong, and the Secret is read again at the next try.
    """
    ctx.fence.check()  # agents have no resourceVersion to refuse a former leader by; the generation does the rest
    try:
        private = await key.private(ctx)
    except Terminal as error:
        _logger.error("an intent cannot be signed: %s", error, extra={"reason": error.reason})
        return Pushed(generation=what.generation, at_s=ctx.clock.monotonic(), refusal=Refusal(status=None, reason=str(error)))
    now_s = int(ctx.clock.now().timestamp())
    intent = Intent(
        uid=seen.instance.metadata.uid,
        generation=what.generation,
        issued=now_s,
        expires=now_s + ACCEPTANCE_SECONDS,
        spec={**what.spec, "audience": audience_of(seen.instance)},
    )
    signed = signing.sign(intent, private)
    answer = await agents.push(seen.instance.metadata.uid, seen.instance.spec.source.agent_url, signed)
    if answer is None:
        return None
    if answer.status is IntentStatus.FORGED:
        key.forget()  # perhaps the Secret was replaced while we led
    return Pushed(generation=what.generation, at_s=ctx.clock.monotonic(), refusal=_refusal(answer))


async def _push_model(seen: Observation, what: PushModel, agents: Agents, models: ModelBytes, ctx: Context) -> ModelPushed:
    """Hand over the bytes of a model; an agent takes only what the intent it holds names, so a former leader can do no harm."""
    refusal, taken, data = None, False, None
    try:
        data = await models.of(ctx, what.where, what.sha256)
    except ReconcileError as error:  # the agent is looked after all the same; the next attempt comes soon
        _logger.warning("the bytes of AllocatorModel %s cannot be read: %s", what.where, error, extra={"reason": error.reason})
    if data is not None:
        ctx.fence.check()
        answer = await agents.push_model(seen.instance.metadata.uid, seen.instance.spec.source.agent_url, what.sha256, data)
        taken = answer is not None and answer.status in MODEL_TAKEN
        if answer is not None and not taken:
            refusal = f"{answer.reason}: {answer.message}"
    now_s = ctx.clock.monotonic()
    return ModelPushed(sha256=what.sha256, at_s=now_s, since_s=now_s, taken=taken, refusal=refusal)


async def _write_status(stored: Object, plan: Plan, ctx: Context) -> None:
    """Apply the loop's part of the status, guarded by the version that was read."""
    assert plan.status is not None
    await write_status(ctx, INSTANCES, stored, plan.status, field_manager=FieldManager.ALLOCATION)
    post(ctx.events, stored, plan.announce, action="Report", controller="allocation")


def _refusal(answer: IntentAnswer) -> Refusal | None:
    return None if answer.status in TAKEN else Refusal(status=answer.status, reason=answer.reason)
