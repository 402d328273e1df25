"""Rules, readings and wishes of which the tests of scaling are made; one call asks for a decision."""

from __future__ import annotations

from policies.measurement import Fresh, Measurement, Missing, NotANumber, Stale
from policies.scaling.decide import ScalingDecision, decide_count
from policies.scaling.proposals import Proposal, per_instance
from policies.scaling.ratio import Reading
from policies.scaling.types import (
    SCALE_DOWN,
    Behavior,
    Bounds,
    Doubt,
    History,
    PolicyType,
    RatePolicy,
    Rules,
)

HPA = Behavior()
NO_WAIT = Behavior(down=Rules(stabilization_s=0.0, policies=SCALE_DOWN.policies))
FREE = (RatePolicy(type=PolicyType.PERCENT, value=100_000, period_s=1.0),)
EMPTYING = (RatePolicy(type=PolicyType.PERCENT, value=100, period_s=1.0),)
AT_ONCE = Behavior(up=Rules(stabilization_s=0.0, policies=FREE), down=Rules(stabilization_s=0.0, policies=EMPTYING))
IN_DOUBT: list[Measurement] = [Missing(), NotANumber(), Stale(age_ms=90_000.0)]


def fleet(*usages: float | Measurement, unready: int = 0) -> list[Reading]:
    ready = [Reading(usage=u if isinstance(u, Fresh | Stale | Missing | NotANumber) else Fresh(value=u)) for u in usages]
    return ready + [Reading(usage=Missing(), ready=False)] * unready


def wish(readings: list[Reading], *, target: float, current: int, as_hpa: bool = True) -> Proposal:
    share = 100.0 if as_hpa else 0.0
    return per_instance("m", readings, target=target, current=current, behavior=HPA, max_doubtful_percent=share)


def want(count: int | None, doubt: Doubt | None = None, metric: str = "m") -> Proposal:
    return Proposal(metric=metric, count=count, doubt=doubt)


def decide(
    *proposals: Proposal,
    current: int,
    bounds: tuple[int, int] = (1, 100),
    behavior: Behavior = NO_WAIT,
    history: History | None = None,
    now_s: float = 1000.0,
) -> ScalingDecision:
    return decide_count(
        proposals,
        current=current,
        bounds=Bounds(minimum=bounds[0], maximum=bounds[1]),
        behavior=behavior,
        history=history or History(),
        now_s=now_s,
    )
