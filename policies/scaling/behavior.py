"""How fast a wanted count may be reached: stabilisation windows, rate policies and bounds, as in HorizontalPodAutoscaler.

A window looks at what was recommended, a rate policy at what was really changed. A rate policy counts from the number at the
start of its period, so several small steps inside one period add up to no more than one large step.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.scaling.types import (
    AbleToScale,
    Behavior,
    Bounds,
    History,
    PolicyType,
    RatePolicy,
    Rules,
    ScalingLimited,
    SelectPolicy,
)


def stabilize(wanted: int, *, current: int, history: History, behavior: Behavior, now_s: float) -> tuple[int, AbleToScale]:
    """Hold the count inside what the windows have recommended.

    Returns
    -------
    tuple
        The count: not above the lowest recommendation of the upper window nor below the highest of the lower one, and as near to
        `current` as that allows; and whether a window held it.
    """
    past = history.recommendations
    low = min((r.count for r in past if not r.held and now_s - r.at_s < behavior.up.stabilization_s), default=wanted)
    high = max((r.count for r in past if now_s - r.at_s < behavior.down.stabilization_s), default=wanted)
    low, high = min(low, wanted), max(high, wanted)
    count = min(max(current, low), high)
    if count < wanted:
        return count, AbleToScale.SCALE_UP_STABILIZED
    if count > wanted:
        return count, AbleToScale.SCALE_DOWN_STABILIZED
    return count, AbleToScale.READY_FOR_NEW_SCALE


def limit(
    wanted: int, *, current: int, history: History, behavior: Behavior, bounds: Bounds, now_s: float
) -> tuple[int, ScalingLimited]:
    """Bring the count inside the bounds and what the rate policies allow now; says which of them cut it."""
    if wanted > current:
        allowed = rate_limit_up(current=current, history=history, rules=behavior.up, now_s=now_s)
        most = min(bounds.maximum, allowed)
        if wanted <= most:
            return wanted, ScalingLimited.DESIRED_WITHIN_RANGE
        by_rate = allowed < bounds.maximum
        return most, ScalingLimited.SCALE_UP_LIMIT if by_rate else ScalingLimited.TOO_MANY_REPLICAS
    if wanted < current:
        allowed = rate_limit_down(current=current, history=history, rules=behavior.down, now_s=now_s)
        fewest = max(bounds.minimum, allowed)
        if wanted >= fewest:
            return wanted, ScalingLimited.DESIRED_WITHIN_RANGE
        by_rate = allowed > bounds.minimum
        return fewest, ScalingLimited.SCALE_DOWN_LIMIT if by_rate else ScalingLimited.TOO_FEW_REPLICAS
    return wanted, ScalingLimited.DESIRED_WITHIN_RANGE


def rate_limit_up(*, current: int, history: History, rules: Rules, now_s: float) -> int:
    """Most instances that the rate policies allow now; never below `current`."""
    reach: list[int] = []
    for policy in rules.policies:
        start = _at_start(policy, current=current, history=history, now_s=now_s)
        if policy.type is PolicyType.PODS:
            reach.append(start + policy.value)
        else:
            reach.append(-(-start * (100 + policy.value) // 100))  # rounded up, in whole numbers
    return max(current, _selected(reach, rules.select, widest=max, narrowest=min, none=current))


def rate_limit_down(*, current: int, history: History, rules: Rules, now_s: float) -> int:
    """Fewest instances that the rate policies allow now; never above `current`, never below 0."""
    reach: list[int] = []
    for policy in rules.policies:
        start = _at_start(policy, current=current, history=history, now_s=now_s)
        if policy.type is PolicyType.PODS:
            reach.append(start - policy.value)
        else:
            reach.append(start * (100 - policy.value) // 100)
    return max(0, min(current, _selected(reach, rules.select, widest=min, narrowest=max, none=current)))


def _at_start(policy: RatePolicy, *, current: int, history: History, now_s: float) -> int:
    """The count at the start of the policy's period: what runs now without what was changed since."""
    return current - sum(change.delta for change in history.changes if now_s - change.at_s < policy.period_s)


def _selected(
    reach: list[int],
    select: SelectPolicy,
    *,
    widest: Callable[[list[int]], int],
    narrowest: Callable[[list[int]], int],
    none: int,
) -> int:
    if select is SelectPolicy.DISABLED or not reach:
        return none
    return widest(reach) if select is SelectPolicy.MAX else narrowest(reach)
