"""What became of prefixes: in time, late or wasted, and whether that is worse than allowed by more than chance.

Neither is cured by more slots. Late prefixes mean that computing them takes too long, so the accelerators are too busy; wasted
ones were evicted before their ranking request came, so memory is too small or the signal comes too early.
"""

from __future__ import annotations

import math

import msgspec

from policies.measurement import Fresh, Measurement, Missing
from policies.preinference.observed import plus, pool_sum
from policies.preinference.rules import CapacityRules, PoolLoad
from policies.scaling.types import Doubt, doubt_of


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the pool's prefixes over the window.

    Attributes
    ----------
    hit_percent
        In time among those whose ranking request came; missing also where none came, which `doubt` tells apart.
    wasted_percent
        Wasted among all that are settled.
    too_late, too_wasted
        Beyond the allowed share by more than one event and two standard deviations of a binomial count.
    doubt
        Why the counts cannot be used; None for a pool that certainly had no pre-inference.
    """

    hit_percent: Measurement
    wasted_percent: Measurement
    too_late: bool
    too_wasted: bool
    doubt: Doubt | None


def shares_of(load: PoolLoad, rules: CapacityRules) -> Shares:
    """Return the shares of a pool."""
    used = pool_sum(load.instances, lambda i: i.rates.used)
    late = pool_sum(load.instances, lambda i: i.rates.late)
    wasted = pool_sum(load.instances, lambda i: i.rates.wasted)
    late_share, too_late = _share(late, used, allowed=1.0 - rules.hit_before_rank_percent / 100.0, window_s=load.window_s)
    wasted_share, too_wasted = _share(wasted, plus(used, late), allowed=rules.max_wasted_percent / 100.0, window_s=load.window_s)
    return Shares(
        hit_percent=_mapped(late_share, factor=-100.0, offset=100.0),
        wasted_percent=_mapped(wasted_share, factor=100.0, offset=0.0),
        too_late=too_late,
        too_wasted=too_wasted,
        doubt=doubt_of(used) or doubt_of(late),
    )


def _share(part: Measurement, rest: Measurement, *, allowed: float, window_s: float) -> tuple[Measurement, bool]:
    both = plus(part, rest)
    if not isinstance(both, Fresh) or not isinstance(part, Fresh):
        return both, False
    if both.value <= 0.0:
        return Missing(), False
    events = both.value * window_s
    deviation = math.sqrt(events * max(allowed * (1.0 - allowed), 0.01))
    # A single event proves nothing, so one is given.
    too_much = part.value * window_s - 1.0 - events * allowed > 2.0 * deviation
    return Fresh(value=part.value / both.value, age_ms=both.age_ms), too_much


def _mapped(value: Measurement, *, factor: float, offset: float) -> Measurement:
    return Fresh(value=offset + factor * value.value, age_ms=value.age_ms) if isinstance(value, Fresh) else value
