"""How much pre-inference capacity a pool gets, as a pure function over `policies.preinference`.

Slots and memory go into the instances, the number of instances into the pool's scale where scaling.mode names us. While a
measurement that matters is in doubt everything stays as it is. A pool that nobody has asked for a prefix yet is left alone
altogether: its engines keep the limits that they started with, and no memory is taken from the caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from msgspec import structs

from controllers.announce import Announcement
from controllers.lookup import Found
from controllers.preinference.observe import InstanceSeen, Memory, Observation
from controllers.preinference.report import Word, report
from controllers.preinference.rules import for_a_quiet_pool, rules_of, turned_off, without_shrinking
from controllers.preinference.verdicts import Decided, hold
from controllers.runtime.resources import Object
from policies.measurement import Fresh
from policies.preinference.capacity import CapacityHistory, CapacityPlan, plan_capacity
from policies.preinference.rules import CapacityRules, PoolLoad

PERIOD_SECONDS = 15.0
QUIET_SECONDS = 1800.0
"""A pool that nobody has asked for a prefix for so long keeps none ready: memory is for what is used."""
MOST_WRITES = 64
"""Instances written in one round; the next round writes the others."""
REST_SECONDS = 5.0
"""Between two looks, and before the next instances are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCapacity:
    """Write spec.preInfer of an instance."""

    current: Object
    slots: int
    prefix_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReplicas:
    """Write the pool's scale, if spec.replicas is still the number that the decision was made from."""

    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to carry out.

    Attributes
    ----------
    memory
        To be remembered whatever becomes of the writes: they are repeated until they stand.
    memory_once_scaled
        To be remembered once the pool's scale was really written.
    status
        The loop's whole part of the pool's status, or None when it stands as it should.
    requeue_after
        Seconds until the next look.
    """

    memory: Memory
    memory_once_scaled: Memory | None = None
    capacities: tuple[SetCapacity, ...] = ()
    replicas: SetReplicas | None = None
    status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float


def decide(seen: Observation, now: datetime) -> Plan:
    """Choose for what was seen."""
    held = hold(seen)
    decided = _decide_capacity(seen) if isinstance(seen.policy, Found) else None
    if held is not None or decided is None:
        # What was in force holds for a window when it goes on: evidence from before the hold is none.
        memory = replace(seen.memory, history=None)
        return _with_word(Plan(memory=memory, requeue_after=PERIOD_SECONDS), report(seen, held, decided, memory.steady, now))
    plan, rules = decided.plan, decided.rules
    writes = _capacities(seen, plan) if decided.in_use else []
    memory = replace(
        seen.memory,
        history=plan.history,
        slots=plan.slots if decided.in_use else None,
        prefix_bytes=plan.prefix_bytes if decided.in_use else None,
        scaling=rules.scale_replicas,
        asked_s=decided.asked_s,
    )
    made = Plan(
        memory=memory,
        capacities=tuple(writes[:MOST_WRITES]),
        requeue_after=REST_SECONDS if len(writes) > MOST_WRITES else PERIOD_SECONDS,
    )
    if rules.scale_replicas and plan.replicas != seen.pool.spec.replicas:
        made = _with_replicas(made, plan, rules, before=seen.pool.spec.replicas, now_s=seen.now_s)
    return _with_word(made, report(seen, None, decided, memory.steady, now))


def rest_left(looked_s: float | None, *, now_s: float) -> float:
    """Seconds until a pool may be looked at again: events come in crowds, measurements do not."""
    return 0.0 if looked_s is None else max(0.0, looked_s + REST_SECONDS - now_s)


def load_of(seen: Observation) -> PoolLoad:
    """What is in force and what was measured, as the arithmetic takes it.

    The first decision of a new leader starts from the largest capacity that any instance has: a predecessor may have been stopped
    between two writes, and more than wanted for a while is the safe side.
    """
    memory, managed = seen.memory, seen.pool.spec.instances.managed is not None
    standing = [each.model.spec.pre_infer for each in seen.instances if each.model.spec.pre_infer is not None]
    given = {each.name: each.model.spec.pre_infer.slots for each in seen.instances if each.model.spec.pre_infer is not None}
    slots, prefix_bytes = memory.slots, memory.prefix_bytes
    if slots is None or prefix_bytes is None:
        slots = max((each.slots for each in standing), default=None)
        prefix_bytes = max((each.bytes for each in standing), default=None)
    return PoolLoad(
        replicas=seen.pool.spec.replicas if managed else len(seen.staying),
        slots=slots,
        prefix_bytes=prefix_bytes,
        instances=tuple(structs.replace(each, slots=given.get(each.name)) for each in seen.metrics.instances),
        window_s=seen.metrics.window_s,
    )


def _decide_capacity(seen: Observation) -> Decided:
    assert isinstance(seen.policy, Found)
    rules, load = rules_of(seen.pool, seen.policy.spec), load_of(seen)
    asked, doubt = _asked_for(load), seen.metrics.doubt is not None
    asked_s = seen.now_s if asked or doubt else seen.memory.asked_s
    if doubt:
        rules = without_shrinking(rules)
    if seen.now_s - asked_s >= QUIET_SECONDS:
        rules = for_a_quiet_pool(rules)
    start = CapacityHistory.starting_at(load, rules, now_s=seen.now_s)
    history = seen.memory.history or start
    if rules.scale_replicas and not seen.memory.scaling:  # until now somebody else's number: it holds for a window
        history = CapacityHistory(slots=history.slots, replicas=start.replicas, memory=history.memory)
    plan = plan_capacity(load, rules=rules, history=history, now_s=seen.now_s)
    # Set once they were set before, a prefix is asked for, or people have forbidden any.
    in_use = load.slots is not None or asked or turned_off(rules)
    return Decided(rules=rules, plan=plan, in_use=in_use, asked_s=asked_s)


def _asked_for(load: PoolLoad) -> bool:
    """Whether a prefix was asked for within the window, or lives."""
    signs = (
        measured
        for each in load.instances
        for measured in (each.rates.accepted, each.rates.rejected, each.live_prefix_bytes)
        if each.ready
    )
    return any(isinstance(sign, Fresh) and sign.value > 0.0 for sign in signs)


def _capacities(seen: Observation, plan: CapacityPlan) -> list[SetCapacity]:
    """The instances whose capacity differs from the plan."""
    staying = seen.staying
    writes = []
    for position, instance in enumerate(staying):
        slots = plan.slots_of(position, instances=len(staying))
        if not _stands(instance, slots=slots, prefix_bytes=plan.prefix_bytes):
            writes.append(SetCapacity(current=instance.stored, slots=slots, prefix_bytes=plan.prefix_bytes))
    return writes


def _stands(instance: InstanceSeen, *, slots: int, prefix_bytes: int) -> bool:
    found = instance.model.spec.pre_infer
    return found is not None and (found.slots, found.bytes) == (slots, prefix_bytes)


def _with_replicas(made: Plan, plan: CapacityPlan, rules: CapacityRules, *, before: int, now_s: float) -> Plan:
    """The plan with a new number of instances, and what the windows look back on once that stands."""
    changed = plan.history.replicas.changed(before=before, after=plan.replicas, now_s=now_s, behavior=rules.behavior)
    history = CapacityHistory(slots=plan.history.slots, replicas=changed, memory=plan.history.memory)
    return replace(
        made,
        replicas=SetReplicas(before=before, after=plan.replicas),
        memory_once_scaled=replace(made.memory, history=history),
    )


def _with_word(plan: Plan, word: Word) -> Plan:
    """The plan with what is to be said about it, or with a look at the moment when that may be said."""
    wait = plan.requeue_after if word.wait is None else min(plan.requeue_after, word.wait)
    scaled = plan.memory_once_scaled
    return replace(
        plan,
        memory=replace(plan.memory, steady=word.steady),
        memory_once_scaled=None if scaled is None else replace(scaled, steady=word.steady),
        status=word.status,
        announce=word.announce,
        requeue_after=wait,
    )
