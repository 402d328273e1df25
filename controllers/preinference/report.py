"""What the pre-inference loop says on its pool: two conditions and a summary, held still against noise and paced like all status.

Doubt holds capacity at once, but is said only when it has lasted: one answer that did not come proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contract.engine import MAX_PRE_INFER_SLOTS
from controllers.announce import Announcement, announcements, moved_on
from controllers.metrics_source.port import SourceState
from controllers.pace import wait_before_write
from controllers.preinference.observe import Observation
from controllers.preinference.steady import Steady
from controllers.preinference.verdicts import Decided, fresh, scaled
from controllers.rounding import steady_points
from controllers.runtime.conditions import Condition, conditions_of, find_condition, set_conditions, standing_items
from policies.measurement import Fresh
from policies.scaling.types import Doubt

WORD_SECONDS = 12.0
"""A word that only measurements have changed must have been true for so long; with looks each 15 s: twice in a row."""
NUMBER_SECONDS = 60.0
"""The same for a number that has moved by one, or has gone, and for the details of a doubt."""
FIRST_SECONDS = 60.0
"""So long after the first look missing measurements, and missing instances, are no news: rates need two samples."""
TYPES = ("MetricsFresh", "PreInferenceScaled")
MEASURED = frozenset({"AtTarget", "Stabilizing", "NotManaged", "NotEnforced", "LimitReached", "HoldingStale"})
"""Reasons that follow from measurements alone."""
MOVING = frozenset({"ScalingUp", "ScalingDown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """The status to write, or None; then `wait` says when it may be written, if there is anything to write."""

    steady: Steady
    status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    wait: float | None = None


def report(seen: Observation, held: Condition | None, decided: Decided | None, steady: Steady, now: datetime) -> Word:
    """Say how things stand."""
    before = conditions_of(seen.stored)
    said, steady = _fresh(seen, before, steady)
    verdict = held
    if verdict is None and decided is not None:
        verdict, steady = _scaled(seen, decided, before, steady)
    conditions = [each for each in (said, verdict) if each is not None]
    items = set_conditions(before, conditions, observed_generation=seen.pool.metadata.generation, now=now)
    status: dict[str, Any] = {"conditions": items}
    trusted = said is not None and said.status == "True"
    summary, steady = _summary(seen, decided, steady, held=held is not None, trusted=trusted)
    if summary is not None:
        status["preInference"] = summary
    old_items = standing_items(before, TYPES)
    if old_items == items and _published(seen) == summary:
        return Word(steady=steady)
    wait = wait_before_write(seen.write_ages_s, transition=moved_on(old_items, items))
    if wait:
        return Word(steady=steady, wait=wait)
    return Word(steady=steady, status=status, announce=announcements(before, conditions))


def _fresh(seen: Observation, before: Sequence[Mapping[str, Any]], steady: Steady) -> tuple[Condition | None, Steady]:
    """MetricsFresh; the word that stands while a new one has not lasted, None where there is none yet."""
    old, new = _standing(before, "MetricsFresh"), fresh(seen)
    if new.status != "True" and _no_news(seen):
        return old, steady
    if old is None or new.status == "Unknown" or old.status == "Unknown":
        return new, steady.without("MetricsFresh", "doubt")
    status, steady = steady.settle("MetricsFresh", new.status, old.status, now_s=seen.now_s, hold_s=WORD_SECONDS)
    if new.status != old.status:
        return (new if status == new.status else old), steady
    details = (new.reason, new.message)
    chosen, steady = steady.settle("doubt", details, (old.reason, old.message), now_s=seen.now_s, hold_s=NUMBER_SECONDS)
    return (new if chosen == details else old), steady


def _scaled(
    seen: Observation, decided: Decided, before: Sequence[Mapping[str, Any]], steady: Steady
) -> tuple[Condition | None, Steady]:
    """PreInferenceScaled; what follows from measurements alone must last before it replaces another such word."""
    old, new = _standing(before, "PreInferenceScaled"), scaled(seen, decided)
    if new.reason in ("HoldingStale", "NoInstances") and _no_news(seen):
        return old, steady
    slow = new.reason == "NotEnforced"  # a split has to shrink before prefixes get its bytes
    if old is None or not (new.reason in MEASURED and old.reason in (MEASURED | MOVING if slow else MEASURED)):
        return new, steady.without("PreInferenceScaled", "words")
    hold_s = NUMBER_SECONDS if slow else WORD_SECONDS
    reason, steady = steady.settle("PreInferenceScaled", new.reason, old.reason, now_s=seen.now_s, hold_s=hold_s)
    if old.reason != new.reason:
        return (new if reason == new.reason else old), steady
    message, steady = steady.settle("words", new.message, old.message, now_s=seen.now_s, hold_s=WORD_SECONDS)
    return (new if message == new.message else old), steady


def _no_news(seen: Observation) -> bool:
    """Whether something is missing that will come by itself: the pool, or this leader, has just begun."""
    young = seen.now_s - seen.memory.since_s < FIRST_SECONDS
    return young and seen.metrics.doubt is Doubt.MISSING and seen.metrics.state is not SourceState.UNREACHABLE


def _standing(before: Sequence[Mapping[str, Any]], type_: str) -> Condition | None:
    """The condition that stands; None too for one whose reason this version does not know."""
    item = find_condition(before, type_)
    if item is None:
        return None
    try:
        return Condition(type_, item["status"], item["reason"], item.get("message", ""))
    except (KeyError, ValueError):
        return None


def _published(seen: Observation) -> dict[str, Any] | None:
    found: dict[str, Any] | None = (seen.stored.get("status") or {}).get("preInference")
    return found


def _summary(
    seen: Observation, decided: Decided | None, steady: Steady, *, held: bool, trusted: bool
) -> tuple[dict[str, Any] | None, Steady]:
    """status.preInference; None for a pool of which there is nothing to say."""
    old = _published(seen)
    if decided is None:
        return old, steady
    plan, ours = decided.plan, decided.rules.scale_replicas
    if not decided.in_use and not ours:
        return None, steady
    fields: dict[str, Any] = {"slots": plan.total_slots if decided.in_use else 0}
    if held:
        fields["slots"] = sum(each.model.spec.pre_infer.slots for each in seen.staying if each.model.spec.pre_infer is not None)
    demand, steady = _demand(seen, plan.demand_slots, old, steady, trusted=trusted)
    if demand is not None:
        fields["demandSlots"] = demand
    if ours:
        fields["desiredReplicas"] = seen.pool.spec.replicas if held else plan.replicas
    hit, steady = _hit(seen, decided, old, steady, trusted=trusted)
    if hit is not None:
        fields["hitBeforeRankPercent"] = hit
    return fields, steady


def _demand(
    seen: Observation, measured: int | None, old: Mapping[str, Any] | None, steady: Steady, *, trusted: bool
) -> tuple[int | None, Steady]:
    """Slots wanted on each instance; one more or less must have lasted."""
    published: int | None = (old or {}).get("demandSlots")
    if not trusted:
        return None, steady
    wanted = published if measured is None else min(measured, MAX_PRE_INFER_SLOTS)
    if wanted is None or published is None or abs(wanted - published) > max(1, published // 10):
        return wanted, steady
    return steady.settle("demandSlots", wanted, published, now_s=seen.now_s, hold_s=NUMBER_SECONDS)


def _hit(
    seen: Observation, decided: Decided, old: Mapping[str, Any] | None, steady: Steady, *, trusted: bool
) -> tuple[int | None, Steady]:
    """Share of prefixes in time; a window without any keeps the last word for a while."""
    published: int | None = (old or {}).get("hitBeforeRankPercent")
    if not trusted:
        return None, steady
    share = decided.plan.shares.hit_percent
    wanted = steady_points(share.value if isinstance(share, Fresh) else None, published)
    if wanted is None and published is not None:
        return steady.settle("hitBeforeRankPercent", wanted, published, now_s=seen.now_s, hold_s=NUMBER_SECONDS)
    return wanted, steady
