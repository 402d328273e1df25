"""What to do for an instance, as a pure function: write its intent, push it to the agent, say how things stand.

An intent is first written and only pushed once the API server has numbered it. The agent's own split is never touched from
here: an agent that does not answer goes on with what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from contract.agent import Strategy
from controllers.allocation.drained import is_finishing
from controllers.allocation.intent import pushed_spec, wanted_intent
from controllers.allocation.observe import Observation
from controllers.allocation.report import status_of
from controllers.allocation.rollout import permitted_intent
from controllers.allocation.sightings import Answered, Silent
from controllers.allocation.verdicts import holds_intent, proving_failures, takes_no_intent
from controllers.announce import Announcement, announcements, moved_on
from controllers.pace import wait_before_write
from controllers.runtime.conditions import conditions_of, find_condition, standing_items
from controllers.runtime.resources import Key, Object

REPEAT_SECONDS = 5.0
"""An intent that was refused, or taken and lost again, is handed over anew after this time at the earliest."""
REPEAT_MODEL_SECONDS = 10.0
"""Bytes of a model that were not taken, or taken and lost again, are handed over anew after this time at the earliest."""
REFUSED_MODEL_SECONDS = 60.0
"""The same when the agent refused them: it would most likely do so again."""
OWN_CONDITIONS = frozenset({"Drained", "PolicyHealthy", "SplitSettled"})
OWN_FIELDS = ("split", "preInfer", "strategyInForce", "reason", "caches", "p99Ms", "sloPercent", "forecast", "agent")
"""What is worth a write. `message` and `lastObservedTime` are written along with them and never a cause to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Hand this intent to the agent: what the instance says as it stands, under its generation."""

    generation: int
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushModel:
    """Hand the agent the bytes with this digest; where they are, the AllocatorModel `where` says."""

    where: Key
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to carry out; None everywhere means that all is as it should be.

    Attributes
    ----------
    finishing
        The instance drains and its agent is to be asked again soon.
    """

    intent: Mapping[str, Any] | None = None
    push: Push | None = None
    push_model: PushModel | None = None
    status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float | None = None
    finishing: bool = False


def decide(seen: Observation, now: datetime) -> Plan:
    """Choose for what was seen."""
    return replace(_choose(seen, now), finishing=is_finishing(seen))


def _choose(seen: Observation, now: datetime) -> Plan:
    wanted = wanted_intent(seen.pool, seen.instance, seen.stored_intent, seen.policy, seen.model)
    wanted = permitted_intent(seen.pool, seen.stored, wanted)
    if wanted is not None and wanted != seen.stored_intent:
        return Plan(intent=wanted)  # the write brings us back with the new generation
    push = _push(seen)
    if push is not None and seen.push_age_s is None and not takes_no_intent(seen):
        return Plan(push=push)  # the agent's answer is worth more than what it said before
    if isinstance(seen.sighting, Silent) and seen.sighting.failures < proving_failures(seen):
        return Plan()  # a missed call or two prove nothing; they are repeated soon
    plan = Plan(push=push, push_model=_push_model(seen))
    status, conditions = status_of(seen, now)
    if not _differs(seen.stored, status):
        return plan
    wait = wait_before_write(seen.write_ages_s, transition=_drain_moves_on(seen.stored, status))
    if wait:
        return replace(plan, requeue_after=wait)
    return replace(plan, status=status, announce=announcements(conditions_of(seen.stored), conditions))


def _push(seen: Observation) -> Push | None:
    if seen.stored_intent is None or not isinstance(seen.sighting, Answered) or seen.holder is not None:
        return None
    status, metadata = seen.sighting.status, seen.instance.metadata
    if holds_intent(seen, status) or (seen.push_age_s is not None and seen.push_age_s < REPEAT_SECONDS):
        return None
    if status.uid == metadata.uid and status.generation > metadata.generation:
        return None  # what we read is older than what the agent holds; the watch will catch up
    return Push(generation=metadata.generation, spec=pushed_spec(seen.stored["spec"]))


def _push_model(seen: Observation) -> PushModel | None:
    """The bytes that the agent lacks of the model in the intent it holds; before that it would refuse them."""
    intent = seen.instance.spec.intent
    if (
        intent is None
        or intent.model_ref is None
        or intent.strategy is not Strategy.LEARNED
        or intent.policy_ref.namespace is None
    ):
        return None
    if not isinstance(seen.sighting, Answered) or seen.holder is not None or not holds_intent(seen, seen.sighting.status):
        return None
    if intent.model_ref.sha256 in seen.sighting.status.models:
        return None
    wait = REPEAT_MODEL_SECONDS if seen.model_refusal is None else REFUSED_MODEL_SECONDS
    if seen.model_push_age_s is not None and seen.model_push_age_s < wait:
        return None
    return PushModel(where=Key(intent.policy_ref.namespace, intent.model_ref.name), sha256=intent.model_ref.sha256)


def _drain_moves_on(stored: Object, status: Mapping[str, Any]) -> bool:
    """Whether the condition Drained comes, goes or changes: whoever scales down waits for it."""
    old, new = (find_condition(items, "Drained") for items in (conditions_of(stored), status["conditions"]))
    return moved_on([old] if old is not None else [], [new] if new is not None else [])


def _differs(stored: Object, status: Mapping[str, Any]) -> bool:
    old: Mapping[str, Any] = stored.get("status") or {}
    if any(old.get(name) != status.get(name) for name in OWN_FIELDS):
        return True
    return standing_items(conditions_of(stored), OWN_CONDITIONS) != list(status["conditions"])
