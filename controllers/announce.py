"""Which Events a change of conditions deserves: one for each transition, none for what merely goes on.

Movements of the split, and users that wait for the churn budget, are not announced: they are the normal life of a pool and would
drown the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controllers.runtime.conditions import Condition, find_condition
from controllers.runtime.events import EventLevel, EventRecorder
from controllers.runtime.resources import Object

UNANNOUNCED_TYPES = frozenset({"SplitSettled", "ChurnLimited"})
CALM_REASONS = frozenset(
    {
        "NotPaused",
        "Progressing",
        "Warming",
        "Draining",
        "Finishing",
        "BudgetExhausted",
        "Terminating",
        "NoRoutingTable",
        "ScalingUp",
        "ScalingDown",
        "NotNamed",
    }
)
# How every new pool begins; what keeps it there is announced by the condition that says why (InstancesReady).
BEGINNINGS = frozenset({("Ready", "NoInstanceReady"), ("TablePublished", "NoInstances")})


@dataclass(frozen=True, slots=True)
class Announcement:
    """An Event to be posted about the object whose condition changed."""

    level: EventLevel
    reason: str
    note: str


def announcements(before: Sequence[Mapping[str, Any]], after: Iterable[Condition]) -> tuple[Announcement, ...]:
    """Events for the conditions in `after` that differ from those in `before` by status, or by reason while not True.

    A condition that appears for the first time, or was unknown, is announced only if it reports a problem that no new pool has.
    """
    found = []
    for condition in after:
        old = find_condition(before, condition.type)
        problem = condition.status == "False" and condition.reason not in CALM_REASONS
        if condition.type in UNANNOUNCED_TYPES or condition.status == "Unknown":
            continue
        if old is None:
            changed = problem and (condition.type, condition.reason) not in BEGINNINGS
        else:
            recovered = condition.status == "True" and old["status"] == "False"
            changed = recovered or (condition.status == "False" and (old["status"], old["reason"]) != ("False", condition.reason))
        if changed:
            note = condition.message or f"{condition.type} is {condition.status}"
            found.append(Announcement("Warning" if problem else "Normal", condition.reason, note))
    return tuple(found)


def post(events: EventRecorder, regarding: Object, words: Iterable[Announcement], *, action: str, controller: str) -> None:
    """Hand the announcements to the recorder; `action` is the CamelCase word for what the loop did."""
    for word in words:
        events.emit(regarding, word.level, word.reason, word.note, action=action, controller=controller)


def moved_on(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> bool:
    """Whether two sets of condition items differ in more than their messages and times."""
    return _words(before) != _words(after)


def _words(items: Iterable[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    return {(item["type"], item["status"], item["reason"], item.get("observedGeneration")) for item in items}
