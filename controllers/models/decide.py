"""What to say about a model: Verified and InUse, its size, its scores and how many run it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controllers.announce import Announcement, announcements, moved_on
from controllers.models.observe import Observation
from controllers.pace import wait_before_write
from controllers.runtime.conditions import Condition, conditions_of, find_condition, set_conditions, standing_items

OWN_CONDITIONS = frozenset({"InUse", "Verified"})
OWN_FIELDS = ("observedGeneration", "sizeBytes", "instances", "scores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The status to write, or None; then `requeue_after` says when a write that must wait may leave."""

    status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float | None = None


def decide(seen: Observation, now: datetime) -> Plan:
    """Choose what to write."""
    verdict, generation = seen.looked.verdict, seen.model.metadata.generation
    before = conditions_of(seen.stored)
    conditions = (in_use(seen.instances), verdict.condition)
    items = set_conditions(before, conditions, observed_generation=generation, now=now)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "instances": seen.instances,
        "conditions": items,
        **({"sizeBytes": verdict.size_bytes} if verdict.size_bytes is not None else {}),
        **({"scores": list(verdict.scores)} if verdict.scores else {}),
    }
    old = standing_items(before, OWN_CONDITIONS)
    stands: Mapping[str, Any] = seen.stored.get("status") or {}
    if old == items and all(stands.get(name) == status.get(name) for name in OWN_FIELDS):
        return Plan()
    wait = wait_before_write(seen.write_ages_s, transition=moved_on(old, items))
    if wait:
        return Plan(requeue_after=wait)
    return Plan(status=status, announce=(*announcements(before, conditions), *_first_words(before, verdict.condition)))


def in_use(instances: int) -> Condition:
    """InUse: whether the intent of at least one instance names the model."""
    if instances:
        # No count: the status has it beside this, and a message that counts would be one more thing to write.
        return Condition("InUse", "True", "NamedByIntents", "intents of instances name this model")
    return Condition("InUse", "False", "NotNamed", "no intent names this model; an HBMPolicy with strategy Learned may")


def _first_words(before: list[Mapping[str, Any]], verified: Condition) -> tuple[Announcement, ...]:
    """That a model may run is news the first time too: somebody waits for it."""
    if verified.status == "True" and find_condition(before, "Verified") is None:
        return (Announcement("Normal", verified.reason, verified.message),)
    return ()
