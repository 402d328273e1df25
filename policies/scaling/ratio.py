"""The usage ratio: how far the instances are from their target, corrected for those that could not be measured.

The model is HorizontalPodAutoscaler's documented one: an instance without a measurement counts as idle when the others ask for
more capacity and as exactly at its target when they ask for less; a correction never turns the direction round. It is stricter
in two places. An instance that is not ready, or was asked for and does not exist yet, also counts as at its target when capacity
would shrink, where the original leaves it out. And capacity does not shrink while more than `max_doubtful_percent` of the
instances are in doubt, by default while any is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from policies.measurement import Fresh, Measurement
from policies.scaling.types import Direction, Doubt, doubt_of, gravest

_EPSILON = 1e-9  # so that 1.1 is inside a tolerance of 0.1, and 10 * 1.1 needs 11 and not 12


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One instance: its usage in the unit of the target, and whether it is ready to take load."""

    usage: Measurement
    ready: bool = True


class UsageRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Usage over target.

    Attributes
    ----------
    value
        Corrected ratio; 1.0 where nothing is to be done.
    measured
        Ratio of the instances that were measured, before any correction; None if none was.
    direction
        Where capacity should go; NONE within the tolerance, after a correction that would turn round, and in doubt.
    instances
        How many the corrected ratio counts.
    doubt
        Set when doubt decided: nothing was measured, or too much was missing to shrink.
    """

    value: float
    measured: float | None
    direction: Direction
    instances: int
    doubt: Doubt | None = None


def direction_of(ratio: float, *, up_tolerance: float, down_tolerance: float) -> Direction:
    """Which way a ratio points; a distance of exactly the tolerance is still tolerated."""
    if ratio > 1.0 + up_tolerance + _EPSILON:
        return Direction.UP
    if ratio < 1.0 - down_tolerance - _EPSILON:
        return Direction.DOWN
    return Direction.NONE


def usage_ratio(
    readings: Sequence[Reading],
    *,
    target: float,
    up_tolerance: float,
    down_tolerance: float,
    absent: int = 0,
    max_doubtful_percent: float = 0.0,
) -> UsageRatio:
    """Return the corrected usage ratio of a group of instances.

    Parameters
    ----------
    readings
        The instances that exist and are not being deleted.
    target
        Usage that one instance should have; above 0.
    absent
        Instances that were asked for and do not exist yet; they count as not ready.
    max_doubtful_percent
        Share of the instances that may lack a fresh measurement and capacity still shrinks; 100 is HorizontalPodAutoscaler's way.

    Raises
    ------
    ValueError
        The target is not a positive number.
    """
    if not (math.isfinite(target) and target > 0.0):
        raise ValueError(f"target must be a positive number, not {target}")
    ready = [reading for reading in readings if reading.ready]
    usages = [r.usage.value for r in ready if isinstance(r.usage, Fresh) and r.usage.value >= 0.0]
    # A negative usage is a broken source, not a small number.
    doubts = [doubt_of(r.usage) or Doubt.NOT_A_NUMBER for r in ready if not _is_usage(r.usage)]
    instances = len(readings) + max(absent, 0)
    if not usages:
        return UsageRatio(
            value=1.0,
            measured=None,
            direction=Direction.NONE,
            instances=instances,
            doubt=gravest(doubts) or Doubt.MISSING,
        )
    measured = _mean(usages) / target
    wanted = direction_of(measured, up_tolerance=up_tolerance, down_tolerance=down_tolerance)
    unknown = instances - len(usages)
    corrected = measured
    if unknown:
        assumed = 0.0 if wanted is Direction.UP else 1.0
        corrected = (measured * len(usages) + assumed * unknown) / instances
    direction = direction_of(corrected, up_tolerance=up_tolerance, down_tolerance=down_tolerance)
    doubt = None
    if direction is Direction.DOWN and 100.0 * len(doubts) > max_doubtful_percent * instances:
        doubt = gravest(doubts)
    if direction is not wanted or doubt is not None:
        direction = Direction.NONE
    return UsageRatio(
        value=corrected if direction is not Direction.NONE else 1.0,
        measured=measured,
        direction=direction,
        instances=instances,
        doubt=doubt,
    )


def times(ratio: UsageRatio, *, current: int, base: int) -> int:
    """Return `ratio` times `base`, rounded up, and never on the other side of `current` than the ratio's direction.

    Parameters
    ----------
    current
        The count in force, returned where the ratio asks for nothing.
    base
        The count that produced the measured usage.
    """
    if ratio.direction is Direction.NONE:
        return current
    wanted = round_up(ratio.value * base)
    return max(wanted, current) if ratio.direction is Direction.UP else min(wanted, current)


def round_up(count: float) -> int:
    """The count rounded up to a whole one, forgiving the last bits of a float."""
    return math.ceil(count - _EPSILON * max(1.0, abs(count)))


def _is_usage(usage: Measurement) -> bool:
    return isinstance(usage, Fresh) and usage.value >= 0.0


def _mean(values: Sequence[float]) -> float:
    largest = max(values)
    return largest * math.fsum(value / largest for value in values) / len(values) if largest > 0.0 else 0.0
