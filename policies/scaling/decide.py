"""From the wishes of several metrics to one count, with reasons: the whole decision of HorizontalPodAutoscaler v2.

The largest wish wins. A metric in doubt can neither shrink the pool nor stop another from growing it. A count outside its
bounds is brought inside at once, whatever the metrics say, because bounds are a person's word.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policies.scaling.behavior import limit, stabilize
from policies.scaling.proposals import Proposal
from policies.scaling.types import (
    AbleToScale,
    Behavior,
    Bounds,
    Direction,
    Doubt,
    History,
    Recommendation,
    ScalingActive,
    ScalingLimited,
    gravest,
)

_ACTIVE = {
    Doubt.STALE: ScalingActive.METRIC_STALE,
    Doubt.MISSING: ScalingActive.METRIC_MISSING,
    Doubt.NOT_A_NUMBER: ScalingActive.METRIC_NOT_A_NUMBER,
}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the metrics want together.

    Attributes
    ----------
    count
        Instances wanted, before windows, rates and bounds.
    metric
        Name of the metric that decided; empty if none did.
    doubt
        The gravest doubt of any metric, also when another metric decided.
    held
        Whether doubt decided: the count is the one in force.
    """

    count: int
    metric: str = ""
    doubt: Doubt | None = None
    held: bool = False


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A count with its reasons.

    Attributes
    ----------
    current, count
        Instances now and from now on.
    wish
        What the metrics wanted before windows and limits.
    active, able, limited
        The reasons that HorizontalPodAutoscaler shows in ScalingActive, AbleToScale and ScalingLimited.
    history
        To be passed to the next decision; the executor adds the change once it is carried out (`History.changed`).
    """

    current: int
    count: int
    wish: Wish
    active: ScalingActive
    able: AbleToScale
    limited: ScalingLimited
    history: History

    @property
    def direction(self) -> Direction:
        """Which way the count goes."""
        if self.count == self.current:
            return Direction.NONE
        return Direction.UP if self.count > self.current else Direction.DOWN


def combine(proposals: Sequence[Proposal], *, current: int) -> Wish:
    """The largest wish; the count in force if a metric is in doubt and the others would shrink, or if there is no wish at all."""
    doubt = gravest([p.doubt for p in proposals if p.doubt is not None])
    largest: Proposal | None = None
    most = current
    for proposal in proposals:
        if proposal.count is not None and (largest is None or proposal.count > most):
            largest, most = proposal, proposal.count
    if largest is None:
        return Wish(count=current, doubt=doubt or Doubt.MISSING, held=True)
    if doubt is not None and most < current:
        return Wish(count=current, doubt=doubt, held=True)
    return Wish(count=most, metric=largest.metric, doubt=doubt)


def decide_count(
    proposals: Sequence[Proposal],
    *,
    current: int,
    bounds: Bounds,
    behavior: Behavior,
    history: History,
    now_s: float,
) -> ScalingDecision:
    """Decide how many instances there should be.

    Parameters
    ----------
    proposals
        One for each metric; none at all counts as missing data.
    current
        The count in force (`spec.replicas` of what is scaled).
    bounds
        `minimum` 0 allows zero; a count of 0 under a higher minimum means that somebody has switched scaling off.
    history
        What earlier decisions returned; `History.starting_at` for a scaler that has just started.

    Raises
    ------
    ValueError
        The bounds are not 0 <= minimum <= maximum.
    """
    if not 0 <= bounds.minimum <= bounds.maximum:
        raise ValueError(f"bounds must satisfy 0 <= minimum <= maximum, not {bounds.minimum} and {bounds.maximum}")
    wish = combine(proposals, current=current)
    active = ScalingActive.VALID_METRIC_FOUND if wish.doubt is None else _ACTIVE[wish.doubt]
    able, limited = AbleToScale.READY_FOR_NEW_SCALE, ScalingLimited.DESIRED_WITHIN_RANGE
    if current == 0 and bounds.minimum > 0:
        return ScalingDecision(
            current=0,
            count=0,
            wish=Wish(count=0),
            active=ScalingActive.SCALING_DISABLED,
            able=able,
            limited=limited,
            history=history,
        )
    if current != bounds.clamp(current):
        limited = ScalingLimited.TOO_MANY_REPLICAS if current > bounds.maximum else ScalingLimited.TOO_FEW_REPLICAS
        return ScalingDecision(
            current=current, count=bounds.clamp(current), wish=wish, active=active, able=able, limited=limited, history=history
        )
    noted = history.noted(Recommendation(at_s=now_s, count=wish.count, held=wish.held), behavior=behavior)
    count = wish.count
    if not wish.held:
        count, able = stabilize(count, current=current, history=noted, behavior=behavior, now_s=now_s)
        count, limited = limit(count, current=current, history=noted, behavior=behavior, bounds=bounds, now_s=now_s)
    return ScalingDecision(current=current, count=count, wish=wish, active=active, able=able, limited=limited, history=noted)
