"""What is measured of pre-inference on each instance, and the few figures that follow from it.

Rates are differences of the engine's monotone counters. A new engine process has new counters, so a difference over a restart is
missing, never negative and never zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from policies.measurement import Fresh, Measurement, Missing, measured


class CounterSample(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one engine process at one moment of its clock."""

    start_id: str
    at_ms: float
    requests: int
    accepted: int
    rejected: int
    used: int
    wasted: int
    late: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second.

    Attributes
    ----------
    requests
        Ranking requests served.
    accepted, rejected
        Pre-inferences admitted and refused (no slot, no memory).
    used, late, wasted
        Prefixes that were ready when their ranking request came, that were not, and that were evicted before one came.
    """

    requests: Measurement = Missing()
    accepted: Measurement = Missing()
    rejected: Measurement = Missing()
    used: Measurement = Missing()
    late: Measurement = Missing()
    wasted: Measurement = Missing()


class InstanceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One instance over the last window.

    Attributes
    ----------
    ready
        Serves ranking requests; False while it starts, drains or is broken.
    busy_slots
        Pre-inferences being computed, mean over the window.
    live_prefix_bytes
        Memory of prefixes that are computed or wait for their ranking request.
    queue
        Ranking requests waiting.
    p99_ms
        Latency of ranking requests; without any request there is none.
    age_at_use_ms
        Mean age of a prefix when it is used; engines need not report it (`littles_law.mean_life_ms` estimates it).
    slots
        Slots that it was given; None: as many as the pool's instances have. Fewer where the pool's limit does not divide evenly.
    """

    name: str
    ready: bool
    rates: Rates = Rates()
    busy_slots: Measurement = Missing()
    live_prefix_bytes: Measurement = Missing()
    queue: Measurement = Missing()
    p99_ms: Measurement = Missing()
    age_at_use_ms: Measurement = Missing()
    slots: int | None = None


def rates_between(before: CounterSample, after: CounterSample, *, age_ms: float, stale_after_ms: float) -> Rates:
    """Return the rates between two samples of one engine.

    Parameters
    ----------
    age_ms
        Age of the newer sample.

    Returns
    -------
    Rates
        All missing if the samples are of different processes, out of order, or a counter fell.
    """
    seconds = (after.at_ms - before.at_ms) / 1000.0
    fields = Rates.__struct_fields__
    deltas = {name: getattr(after, name) - getattr(before, name) for name in fields}
    if before.start_id != after.start_id or not 0.0 < seconds < math.inf or any(delta < 0 for delta in deltas.values()):
        return Rates()
    return Rates(
        **{name: measured(delta / seconds, age_ms=age_ms, stale_after_ms=stale_after_ms) for name, delta in deltas.items()}
    )


def offered_slots(load: InstanceLoad, *, slots: int) -> Measurement:
    """Return how many slots would be busy if none had been refused: ``busy x (accepted + rejected) / accepted``.

    A busy share alone cannot show more than full. Where everything was refused, one more than there is; unless the slots were
    idle meanwhile, since then it was not for want of slots and nothing is known about the load: missing.
    """
    offered = _combined(
        (load.busy_slots, load.rates.accepted, load.rates.rejected), lambda v: _offered(v[0], v[1], v[2], slots=slots)
    )
    return Missing() if isinstance(offered, Fresh) and math.isinf(offered.value) else offered


def ranking_usage(load: InstanceLoad, *, goal_ms: float, most: float = 2.0) -> Measurement:
    """Return P99 over its goal, at most `most`, so that one sick instance does not look like a pool without capacity.

    An instance that certainly served no request is idle (0), not unknown: else a pool without traffic could never shrink.
    """
    if isinstance(load.rates.requests, Fresh) and load.rates.requests.value == 0.0:
        return Fresh(value=0.0, age_ms=load.rates.requests.age_ms)
    return _combined((load.p99_ms,), lambda v: min(v[0] / goal_ms, most))


def pool_sum(loads: Sequence[InstanceLoad], pick: Callable[[InstanceLoad], Measurement]) -> Measurement:
    """Return the sum over the ready instances, not fresh as soon as one of them is not; missing without any."""
    values = [pick(load) for load in loads if load.ready]
    return _combined(values, math.fsum) if values else Missing()


def plus(a: Measurement, b: Measurement) -> Measurement:
    """Return the sum, not fresh where one of them is not."""
    return _combined((a, b), math.fsum)


def _combined(values: Sequence[Measurement], function: Callable[[Sequence[float]], float]) -> Measurement:
    """The function of fresh values, as old as the oldest; the first value that is not fresh otherwise."""
    fresh = [value for value in values if isinstance(value, Fresh)]
    if len(fresh) < len(values):
        return next(value for value in values if not isinstance(value, Fresh))
    return Fresh(value=function([value.value for value in fresh]), age_ms=max(value.age_ms for value in fresh))


def _offered(busy: float, accepted: float, rejected: float, *, slots: int) -> float:
    if rejected <= 0.0:
        return busy
    if accepted <= 0.0:
        return max(busy, float(slots)) + 1.0 if busy >= slots / 2.0 else math.inf
    return busy * (accepted + rejected) / accepted
