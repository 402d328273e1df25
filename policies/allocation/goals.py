"""Where each strategy wants the split, before any limit on how it may be approached.

Static answers its share, hill climbing and the two-pool ARC rule a step, MissRatioCurve the smoothed anchor. Learned lets the
base speak inside its clamp, adds the residual, and gives way to the anchor when its model is not there, the load is foreign
to it, or refill blocks serving and what the base wants would not pay for that.
"""

from __future__ import annotations

import math

import msgspec

from policies.allocation.anchor import trust_of
from policies.allocation.arc import arc_goal_bytes
from policies.allocation.base import widening
from policies.allocation.core import Outcome
from policies.allocation.features import FEATURES
from policies.allocation.hillclimb import hill_step
from policies.allocation.model_file import TrainedModel
from policies.allocation.path import evaluate_one
from policies.allocation.recovery import Phase, usual_utilisation
from policies.allocation.residual import corrected_points
from policies.allocation.standstill import Price, refill_ms_per_byte
from policies.allocation.static import static_goal_bytes
from policies.allocation.types import (
    AllocationIntent,
    AllocationState,
    Costs,
    Curve,
    EstimatorView,
    GuestWord,
    Layer,
    Observation,
    Reason,
    SplitInForce,
    Strategy,
)
from policies.measurement import Fresh

SMOOTH_MS = 1000.0
"""Time constant of the anchor's smoothing on a steady stream."""
SMOOTH_PER_VOLATILITY = 50.0
"""How many times longer it is for each unit of volatility (miss ratio)."""
_HILL_STEP = 0.03  # of usable


class Goal(msgspec.Struct, frozen=True):
    """What a strategy answered: where to, who says so, why, and what the state keeps of it.

    `anchor_p99_ms` is the least that any split promises: what a split in force is measured by that must not be frozen.
    Where refill blocks serving, `best_pays` says that going there is worth the standstill, and `unpaid` that the anchor stands in
    because what the base wants is not.
    """

    emb_bytes: float
    layer: Layer
    reason: Reason
    smoothed: float | None = None
    current_p99_ms: float | None = None
    goal_p99_ms: float | None = None
    anchor_p99_ms: float | None = None
    guest: GuestWord | None = None
    best_pays: bool = False
    unpaid: bool = False


class Known(msgspec.Struct, frozen=True):
    """A view that can be trusted: nothing in it is missing."""

    emb: Curve
    kv: Curve
    costs: Costs
    volatility: float


def goal_of(
    observation: Observation,
    view: EstimatorView,
    intent: AllocationIntent,
    state: AllocationState,
    *,
    base_bytes: int,
    dt_ms: float,
    model: TrainedModel | None,
) -> Goal | None:
    """Ask the strategy of the intent; None keeps the split because the estimates cannot be trusted now but once could.

    Parameters
    ----------
    base_bytes
        EMB bytes that a move would start from.
    dt_ms
        Time since the last decision.
    model
        What strategy Learned may run; None where there is none.
    """
    usable = observation.usable_bytes
    fallback = static_goal_bytes(usable_bytes=usable, bounds=intent.bounds)
    if intent.strategy is Strategy.STATIC:
        return Goal(fallback, Layer.STATIC, Reason.STATIC_TARGET)
    known = _known(view, base_bytes, usable)
    if known is None:
        if state.goal_emb_bytes is not None:
            return None
        return Goal(fallback, Layer.FALLBACK, Reason.ESTIMATE_NOT_TRUSTED)
    if intent.strategy is Strategy.HILL_CLIMB:
        return _hill(observation, known, base_bytes)
    if intent.strategy is Strategy.TWO_POOL_ARC:
        target = float(base_bytes) if state.goal_emb_bytes is None else state.goal_emb_bytes
        return _ghost_hits(observation, known, base_bytes, target, dt_ms)
    running = model if intent.strategy is Strategy.LEARNED and _is_meant(model, intent) else None
    figures = _figures(observation, known, intent, state, base_bytes=base_bytes, dt_ms=dt_ms)
    found = evaluate_one(known.emb, known.kv, figures, running)
    if running is None:
        goal = _anchor(found, Reason.MODEL_MISSING if intent.strategy is Strategy.LEARNED else Reason.ANCHOR_TARGET)
    else:
        goal = _learned(found, known, intent, state, usable_bytes=usable, dt_ms=dt_ms)
    return _priced(goal, found, observation, known, base_bytes=base_bytes) if intent.refill_blocking else goal


def _priced(goal: Goal, found: Outcome, observation: Observation, known: Known, *, base_bytes: int) -> Goal:
    """The goal where refill blocks serving: what the base wants must be worth the standstill between it and the anchor."""
    busy = observation.utilisation
    price = Price(
        ms_per_byte=refill_ms_per_byte(observation, known.costs),
        utilisation=busy.value if isinstance(busy, Fresh) else math.nan,
    )
    way = found.anchor_emb_bytes - base_bytes
    goal = msgspec.structs.replace(goal, best_pays=price.is_worth(way, found.anchor_p99_ms, found.current_p99_ms))
    offset = found.emb_bytes - found.smoothed_emb_bytes
    if goal.layer is Layer.ANCHOR or price.is_worth(offset, found.p99_ms, found.smoothed_p99_ms):
        return goal
    return _unpaid(goal, found)


def _unpaid(goal: Goal, found: Outcome) -> Goal:
    """The anchor's split in place of the base's: a clamp without width. The model goes on to be heard, the residual is let go."""
    word = None if goal.guest is None else msgspec.structs.replace(goal.guest, residual_points=0.0)
    return msgspec.structs.replace(
        goal,
        emb_bytes=found.smoothed_emb_bytes,
        layer=Layer.BASE,
        goal_p99_ms=found.smoothed_p99_ms,
        guest=word,
        unpaid=True,
    )


def _known(view: EstimatorView, base_bytes: int, usable_bytes: int) -> Known | None:
    trust = trust_of(view, emb_bytes=base_bytes, kv_bytes=usable_bytes - base_bytes)
    if not trust.trusted or view.emb is None or view.kv is None or view.costs is None:
        return None
    return Known(view.emb, view.kv, view.costs, trust.volatility)


def _is_meant(model: TrainedModel | None, intent: AllocationIntent) -> bool:
    return model is not None and model.sha256 == intent.learned.model_sha256


def _hill(observation: Observation, known: Known, base_bytes: int) -> Goal:
    usable, granule = observation.usable_bytes, observation.granule_bytes
    step = max(granule, round(_HILL_STEP * usable / granule) * granule)
    hill = hill_step(known.emb, known.kv, known.costs, usable_bytes=usable, current_emb_bytes=base_bytes, step_bytes=step)
    at_top = hill.goal_emb_bytes == base_bytes
    reason = Reason.HILL_TOP if at_top else Reason.HILL_STEP
    return Goal(float(hill.goal_emb_bytes), Layer.HILL_CLIMB, reason, float(base_bytes))


def _ghost_hits(observation: Observation, known: Known, base_bytes: int, target_bytes: float, dt_ms: float) -> Goal:
    goal = arc_goal_bytes(
        known.emb,
        known.kv,
        known.costs,
        usable_bytes=observation.usable_bytes,
        current_emb_bytes=base_bytes,
        target_emb_bytes=target_bytes,
        emb_row_bytes=observation.emb_row_bytes,
        kv_bytes_per_token=observation.kv_bytes_per_token,
        interval_ms=dt_ms,
    )
    return Goal(goal, Layer.TWO_POOL_ARC, Reason.GHOST_HITS, goal)


def _anchor(found: Outcome, reason: Reason, guest: GuestWord | None = None) -> Goal:
    smoothed, least = found.smoothed_emb_bytes, found.anchor_p99_ms
    return Goal(smoothed, Layer.ANCHOR, reason, smoothed, found.current_p99_ms, least, least, guest)


def _learned(
    found: Outcome,
    known: Known,
    intent: AllocationIntent,
    state: AllocationState,
    *,
    usable_bytes: int,
    dt_ms: float,
) -> Goal:
    """The base's answer with the residual on top, or the anchor's where the load is foreign to the model."""
    base, base_p99_ms, outlier = found.emb_bytes, found.p99_ms, int(found.outlier)
    anchor, points = found.smoothed_emb_bytes, usable_bytes / 100.0
    residual = intent.learned.residual
    correction = state.residual_points if residual.enabled else 0.0
    if residual.enabled and state.burst.phase is not Phase.BURST:
        correction = corrected_points(
            correction,
            base_percent=base / points,
            anchor_percent=anchor / points,
            base_p99_ms=base_p99_ms,
            anchor_p99_ms=found.smoothed_p99_ms,
            widening=widening(known.volatility) if intent.learned.clamp_percent > 0.0 else 1.0,
            dt_ms=dt_ms,
            residual=residual,
        )
    word = GuestWord(
        action=found.action,
        emb_bytes=base,
        p99_ms=base_p99_ms,
        clamped=found.clamped != 0.0,
        residual_points=correction,
        outlier=FEATURES[outlier] if outlier >= 0 else "",
    )
    if outlier >= 0:
        return _anchor(found, Reason.OUT_OF_DISTRIBUTION, msgspec.structs.replace(word, residual_points=0.0))
    return Goal(
        base + correction * points,
        Layer.RESIDUAL if correction else Layer.BASE,
        Reason.LEARNED_TARGET,
        anchor,
        found.current_p99_ms,
        base_p99_ms,
        found.anchor_p99_ms,
        word,
    )


def _figures(
    observation: Observation,
    known: Known,
    intent: AllocationIntent,
    state: AllocationState,
    *,
    base_bytes: int,
    dt_ms: float,
) -> tuple[float, ...]:
    """What the path reads beside the curves, in the order of `path.Figure`."""
    split, costs = observation.split, known.costs
    tau_ms = SMOOTH_MS * (1.0 + SMOOTH_PER_VOLATILITY * known.volatility)
    usual = usual_utilisation(state.burst)
    utilisation = observation.utilisation.value if isinstance(observation.utilisation, Fresh) else math.nan
    return (
        observation.usable_bytes,
        observation.granule_bytes,
        base_bytes,
        intent.bounds.min_emb_percent,
        intent.bounds.max_emb_percent,
        intent.learned.clamp_percent,
        costs.ms_per_emb_miss_row,
        costs.ms_per_kv_miss_token,
        costs.emb_rows_per_kv_miss_token,
        costs.base_service_ms,
        costs.service_variance_ms2,
        costs.arrival_per_s,
        costs.emb_rows_per_request,
        costs.kv_tokens_per_request,
        known.kv.size_cv2,
        math.nan if state.goal_emb_bytes is None else state.goal_emb_bytes,
        1.0 - math.exp(-dt_ms / tau_ms),
        known.emb.volatility,
        known.kv.volatility,
        known.emb.samples,
        known.kv.samples,
        observation.p99_ms.value if isinstance(observation.p99_ms, Fresh) else math.nan,
        utilisation,
        utilisation if usual is None else usual,
        1.0 if intent.refill_blocking else 0.0,
        split.refill_backlog_bytes if isinstance(split, SplitInForce) else 0,
        state.last_action,
    )
