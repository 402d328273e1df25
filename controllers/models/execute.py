"""Carries out the plan of the models loop: one status write, guarded by the version that was read, and the Events about it."""

from __future__ import annotations

from controllers.announce import post
from controllers.models.decide import Plan
from controllers.models.observe import Observation
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS
from controllers.status import write_status
from crds.reasons import FieldManager


async def execute(plan: Plan, seen: Observation, ctx: Context) -> bool:
    """Do what the plan says; returns whether the status was written."""
    if plan.status is None:
        return False
    await write_status(ctx, ALLOCATOR_MODELS, seen.stored, plan.status, field_manager=FieldManager.MODELS)
    post(ctx.events, seen.stored, plan.announce, action="Verify", controller="models")
    return True
