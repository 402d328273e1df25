"""One decision about the split: freezes first, then the strategy's goal, then the limits on how it may be approached.

`decide` is a pure function of its arguments, which it returns inside the decision (of the model its digest); `replay` runs a
recorded decision again. On doubtful data the split is held: nothing shrinks or grows because of a number that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from policies.allocation.goals import Goal, goal_of
from policies.allocation.model_file import TrainedModel
from policies.allocation.path import kernel
from policies.allocation.recovery import BLOCKING_PERCENT_PER_SECOND, BURST_LINK_PERCENT, Phase, freezes, watch
from policies.allocation.types import (
    AllocationIntent,
    AllocationState,
    Clip,
    Decision,
    DecisionInputs,
    Enforcement,
    EstimatorView,
    Layer,
    Observation,
    Reason,
    SplitInForce,
    Strategy,
)
from policies.measurement import Fresh, Missing, NotANumber, Stale

_required_of: Callable[[Observation], tuple[Any, ...]] = attrgetter(
    "kv_tokens_asked", "kv_tokens_hit", "emb_rows_asked", "emb_rows_hit", "demand_bytes", "p99_ms", "utilisation"
)
# Freezes under which a move already begun may still be completed: the engine's own pace, not bad data.
_PACED = frozenset(
    {Reason.ENGINE_DEFERRING, Reason.REFILL_BACKLOG, Reason.IDLE, Reason.ESTIMATE_NOT_TRUSTED, Reason.BURST_FREEZE}
)


def decide(
    observation: Observation,
    view: EstimatorView,
    intent: AllocationIntent | None,
    state: AllocationState,
    now_ms: float,
    model: TrainedModel | None = None,
) -> tuple[Decision, AllocationState]:
    """Choose the split to go to now.

    Parameters
    ----------
    observation
        What was measured over the last interval.
    view
        Curves and costs as the estimators have them.
    intent
        The resolved policy; None while none was ever accepted.
    state
        What the previous call returned; `AllocationState()` at first.
    now_ms
        A monotone time.
    model
        What strategy Learned runs if the intent names its digest; else the anchor decides in its place.

    Returns
    -------
    (Decision, AllocationState)
        The decision with all inputs, and the state for the next call. Same arguments, same result.
    """
    inputs = DecisionInputs(observation=observation, view=view, intent=intent, state=state, now_ms=now_ms)
    split = observation.split
    dt_ms = _elapsed_ms(state, intent, now_ms)
    state = _begin(observation, intent, state, dt_ms, now_ms)
    reason = _freeze(observation, view, intent)
    if reason not in (None, Reason.IDLE) or intent is None or not isinstance(split, SplitInForce):
        return _hold(inputs, state, reason or Reason.MISSING_DATA)
    base = _base_bytes(split, state, observation)
    goal = goal_of(observation, view, intent, state, base_bytes=base, dt_ms=dt_ms, model=model) if reason is None else None
    if goal is not None and not math.isfinite(goal.emb_bytes):
        return _hold(inputs, state, Reason.NOT_A_NUMBER)
    if goal is not None:
        state = _remember(state, goal)
        if _freezes(goal, intent, state, now_ms):
            reason = Reason.BURST_FREEZE
    if goal is None or reason is not None:
        reason = reason or Reason.ESTIMATE_NOT_TRUSTED
        if _inside(base, observation.usable_bytes, intent):
            return _hold(inputs, state, reason)
        goal = Goal(float(base), Layer.FALLBACK, reason)  # bounds are an order, which needs no estimate: to the nearest one
    return _approach(inputs, intent, state, base, goal)


def replay(decision: Decision, model: TrainedModel | None = None) -> tuple[Decision, AllocationState]:
    """Decide again from the recorded inputs; the result equals the record as long as code, kernel and model are the same."""
    i = decision.inputs
    return decide(i.observation, i.view, i.intent, i.state, i.now_ms, model)


def _begin(
    observation: Observation, intent: AllocationIntent | None, state: AllocationState, dt_ms: float, now_ms: float
) -> AllocationState:
    """State at the start of a decision: without what belonged to another engine process or model, and with the load looked at."""
    split = observation.split
    if isinstance(split, SplitInForce) and split.start_id != state.start_id:
        state = AllocationState(start_id=split.start_id, goal_emb_bytes=state.goal_emb_bytes, burst=state.burst)
    state = _on_the_pool(state, observation.usable_bytes)
    if intent is None:
        return state
    named = intent.learned.model_sha256 or ""
    if named != state.model_sha256:
        state = msgspec.structs.replace(state, model_sha256=named, residual_points=0.0, last_action=0.0)
    if isinstance(observation.utilisation, Fresh):
        burst = watch(
            state.burst, utilisation=observation.utilisation.value, dt_ms=dt_ms, now_ms=now_ms, recovery=intent.recovery
        )
        state = msgspec.structs.replace(state, burst=burst)
    return state


def _on_the_pool(state: AllocationState, usable_bytes: int) -> AllocationState:
    """State whose goal has the same share of a pool that has become smaller or larger: bytes of the old one say nothing."""
    if usable_bytes <= 0 or usable_bytes == state.usable_bytes:
        return state
    goal = state.goal_emb_bytes
    if goal is not None and state.usable_bytes > 0:
        goal *= usable_bytes / state.usable_bytes
    return msgspec.structs.replace(state, usable_bytes=usable_bytes, goal_emb_bytes=goal)


def _remember(state: AllocationState, goal: Goal) -> AllocationState:
    """State with what the strategy wants to find again at its next decision."""
    guest = goal.guest
    return msgspec.structs.replace(
        state,
        goal_emb_bytes=goal.smoothed if goal.smoothed is not None else state.goal_emb_bytes,
        residual_points=guest.residual_points if guest is not None else 0.0,
        last_action=guest.action if guest is not None and not guest.outlier else 0.0,
    )


def _freezes(goal: Goal, intent: AllocationIntent, state: AllocationState, now_ms: float) -> bool:
    """Whether a burst holds the split; never a static one, nor one that a load foreign to the model sends back to the anchor."""
    if intent.strategy is Strategy.STATIC or goal.reason is Reason.OUT_OF_DISTRIBUTION:
        return False
    return freezes(
        state.burst,
        recovery=intent.recovery,
        refill_blocking=intent.refill_blocking,
        current_p99_ms=goal.current_p99_ms,
        least_p99_ms=goal.anchor_p99_ms,
        pays=goal.best_pays,
        now_ms=now_ms,
    )


def _freeze(observation: Observation, view: EstimatorView, intent: AllocationIntent | None) -> Reason | None:
    """First rule that forbids a new move, in order of precedence."""
    if intent is None:
        return Reason.NO_INTENT
    if intent.paused:
        return Reason.PAUSED
    if observation.second_writer:
        return Reason.SECOND_WRITER
    if not observation.resizable:
        return Reason.NOT_RESIZABLE
    doubt = _doubt(observation.split) or _doubt(observation.requests)
    if doubt is not None:
        return doubt
    if observation.granule_bytes <= 0 or observation.usable_bytes < 2 * observation.granule_bytes:
        return Reason.POOL_TOO_SMALL
    split = observation.split
    if isinstance(split, SplitInForce):
        if split.deferring:
            return Reason.ENGINE_DEFERRING
        if intent.freeze_on_backlog and split.refill_backlog_bytes > 0:
            return Reason.REFILL_BACKLOG
    if intent.strategy is Strategy.STATIC:
        return None
    if isinstance(observation.requests, Fresh) and observation.requests.value <= 0.0:
        return Reason.IDLE  # no requests is a fact; without them nothing else of this interval means anything
    for figure in _required_of(observation):
        if type(figure) is not Fresh:
            return _doubt(figure)
    return None


def _doubt(value: object) -> Reason | None:
    kind = type(value)
    if kind is Missing:
        return Reason.MISSING_DATA
    if kind is Stale:
        return Reason.STALE_DATA
    if kind is NotANumber:
        return Reason.NOT_A_NUMBER
    return None


def _base_bytes(split: SplitInForce, state: AllocationState, observation: Observation) -> int:
    """Where a move starts from: the split in force, or the target of a move half done (one side shrunk, none grown)."""
    low = split.emb_bytes
    high = observation.usable_bytes - split.kv_bytes
    if low >= high:  # full, or above the pool because the pool became smaller
        granule = observation.granule_bytes
        return max(min(low, (observation.usable_bytes // granule - 1) * granule), 0) if granule > 0 else low
    wanted = low if state.target_emb_bytes is None else state.target_emb_bytes
    return min(max(wanted, low), high)


def _elapsed_ms(state: AllocationState, intent: AllocationIntent | None, now_ms: float) -> float:
    if state.decided_at_ms is None:
        return intent.step.interval_ms if intent is not None else 0.0
    return max(now_ms - state.decided_at_ms, 0.0)


def _hold(inputs: DecisionInputs, state: AllocationState, reason: Reason) -> tuple[Decision, AllocationState]:
    """Keep the split; under bad data and orders to stop nothing may be sent at all.

    The time of a hold earns no slew credit, and what was earned before stays: a quiet instance still gets somewhere.
    """
    split = inputs.observation.split
    target = _base_bytes(split, state, inputs.observation) if isinstance(split, SplitInForce) else None
    active = inputs.intent is not None and inputs.intent.enforcement is Enforcement.ACTIVE
    decision = Decision(
        target_emb_bytes=target,
        goal_emb_bytes=None,
        layer=Layer.HOLD,
        reason=reason,
        may_apply=active and reason in _PACED and target is not None,
        phase=state.burst.phase,
        refill_link_percent=_refill_link_percent(state),
        kernel=kernel(),
        inputs=inputs,
    )
    kept = msgspec.structs.replace(
        state,
        decided_at_ms=inputs.now_ms,
        target_emb_bytes=target if target is not None else state.target_emb_bytes,
    )
    return decision, kept


def _approach(
    inputs: DecisionInputs, intent: AllocationIntent, state: AllocationState, base: int, goal: Goal
) -> tuple[Decision, AllocationState]:
    """Bounds, whole granules, deadband and slew, in this order; every limit that changed the target is named."""
    observation = inputs.observation
    usable, granule = observation.usable_bytes, observation.granule_bytes
    clips: list[Clip] = [Clip.CLAMP] if goal.guest is not None and goal.guest.clamped and not goal.guest.outlier else []
    if goal.unpaid:
        clips.append(Clip.STANDSTILL)
    wanted = _legal(goal.emb_bytes, usable, granule, intent, clips)
    distance = wanted - base
    deadband = intent.step.deadband_percent * usable / 100.0
    outside = not _inside(base, usable, intent)  # the split in force breaks the bounds: no deadband then
    moving = abs(distance) >= granule and (state.moving or outside or abs(distance) > deadband)
    credit = _credit(state, intent, usable, granule, inputs.now_ms)
    target = base
    if moving:
        allowed = math.floor(credit / granule + 1e-9) * granule
        step = min(max(distance, -allowed), allowed)
        if step != distance:
            clips.append(Clip.SLEW)
        target = _towards_granule(base, base + step, granule)
        credit -= abs(target - base)
    elif distance:
        clips.append(Clip.DEADBAND)
    decision = Decision(
        target_emb_bytes=target,
        goal_emb_bytes=wanted,
        layer=goal.layer,
        reason=goal.reason,
        may_apply=intent.enforcement is Enforcement.ACTIVE,
        clips=tuple(clips),
        predicted_p99_ms=goal.current_p99_ms,
        goal_p99_ms=goal.goal_p99_ms,
        phase=state.burst.phase,
        refill_link_percent=_refill_link_percent(state),
        guest=goal.guest,
        kernel=kernel(),
        inputs=inputs,
    )
    return decision, msgspec.structs.replace(
        state,
        decided_at_ms=inputs.now_ms,
        target_emb_bytes=target,
        moving=moving and target != wanted,
        slew_credit_bytes=credit,
    )


def _refill_link_percent(state: AllocationState) -> float | None:
    return None if state.burst.phase is Phase.CALM else BURST_LINK_PERCENT


def _legal(wanted: float, usable: int, granule: int, intent: AllocationIntent, clips: list[Clip]) -> int:
    """Nearest whole number of granules inside the bounds that leaves a granule on each side."""
    low = usable * intent.bounds.min_emb_percent / 100.0
    high = usable * intent.bounds.max_emb_percent / 100.0
    bounded = min(max(wanted, low), high)
    if bounded != wanted:
        clips.append(Clip.BOUNDS)
    last = usable // granule - 1
    granules = round(bounded / granule)
    if granules * granule < low:
        granules += 1
    elif granules * granule > high:
        granules -= 1
    legal = min(max(granules, 1), last)
    if legal != granules:
        clips.append(Clip.MINIMUM_GRANULE)
    if legal * granule != bounded and legal == granules:
        clips.append(Clip.GRANULE)
    return legal * granule


def _inside(emb_bytes: int, usable: int, intent: AllocationIntent) -> bool:
    percent = 100.0 * emb_bytes / usable
    return intent.bounds.min_emb_percent <= percent <= intent.bounds.max_emb_percent


def _credit(state: AllocationState, intent: AllocationIntent, usable: int, granule: int, now_ms: float) -> float:
    """Bytes the slew limit allows by now: a token bucket one second (at least one granule) deep."""
    per_second = intent.step.max_percent_per_second
    if intent.refill_blocking:
        per_second = min(per_second, BLOCKING_PERCENT_PER_SECOND)
    per_ms = per_second * usable / 100.0 / 1000.0
    deepest = max(float(granule), per_ms * max(1000.0, intent.step.interval_ms)) if per_ms > 0.0 else 0.0
    return min(state.slew_credit_bytes + per_ms * _elapsed_ms(state, intent, now_ms), deepest)


def _towards_granule(base: int, target: int, granule: int) -> int:
    """Round to a whole granule in the direction of `base`, never past it."""
    if target >= base:
        return max(target // granule * granule, base)
    return min(-(-target // granule) * granule, base)
