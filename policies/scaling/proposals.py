"""How many instances one metric asks for, in the shapes of HorizontalPodAutoscaler v2: per instance, total, and plain value.

A metric in doubt proposes nothing and says why; the decision then refuses to shrink. So "no data" can never read as "no load".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from policies.measurement import Fresh, Measurement
from policies.scaling.ratio import Reading, direction_of, round_up, times, usage_ratio
from policies.scaling.types import Behavior, Direction, Doubt, doubt_of

_MOST = 1_000_000_000  # a usage far above any real one must not overflow what holds a count


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The wish of one metric.

    Attributes
    ----------
    count
        Instances wanted; None if the metric is in doubt, or abstains because it has nothing to say.
    doubt
        Why it is in doubt; None otherwise.
    """

    metric: str
    count: int | None
    doubt: Doubt | None = None


def per_instance(
    metric: str,
    readings: Sequence[Reading],
    *,
    target: float,
    current: int,
    behavior: Behavior,
    max_doubtful_percent: float = 0.0,
) -> Proposal:
    """Propose from a metric measured on each instance (`Pods` and `Resource` metrics): mean usage against a target.

    Parameters
    ----------
    readings
        The instances that exist and are not being deleted; fewer than `current` means that the rest has yet to come.
    target
        Usage that one instance should have, in the unit of the readings.
    """
    ratio = usage_ratio(
        readings,
        target=target,
        up_tolerance=behavior.up.tolerance,
        down_tolerance=behavior.down.tolerance,
        absent=max(0, current - len(readings)),
        max_doubtful_percent=max_doubtful_percent,
    )
    if ratio.doubt is not None:
        return Proposal(metric=metric, count=None, doubt=ratio.doubt)
    return Proposal(metric=metric, count=min(times(ratio, current=current, base=ratio.instances), _MOST))


def total(metric: str, value: Measurement, *, target_per_instance: float, current: int, behavior: Behavior) -> Proposal:
    """Propose from one number for the whole pool that instances share (`AverageValue` of an external metric).

    With no instance running it is ``ceil(value / target)``: this shape can scale from zero.
    """
    return _single(metric, value, target=target_per_instance, current=current, behavior=behavior, shared=True)


def plain(metric: str, value: Measurement, *, target: float, current: int, behavior: Behavior) -> Proposal:
    """Propose from one number that falls when capacity grows, such as a mean wait (`Value` of an external metric)."""
    return _single(metric, value, target=target, current=current, behavior=behavior, shared=False)


def _single(metric: str, value: Measurement, *, target: float, current: int, behavior: Behavior, shared: bool) -> Proposal:
    if not (math.isfinite(target) and target > 0.0):
        raise ValueError(f"target must be a positive number, not {target}")
    if not isinstance(value, Fresh) or value.value < 0.0:
        return Proposal(metric=metric, count=None, doubt=doubt_of(value) or Doubt.NOT_A_NUMBER)
    ratio = value.value / target
    if current == 0:
        return Proposal(metric=metric, count=round_up(min(ratio, _MOST)))
    relative = ratio / current if shared else ratio
    up, down = behavior.up.tolerance, behavior.down.tolerance
    if direction_of(relative, up_tolerance=up, down_tolerance=down) is Direction.NONE:
        return Proposal(metric=metric, count=current)
    return Proposal(metric=metric, count=round_up(min(relative * current, _MOST)))
