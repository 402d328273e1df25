"""The port: what a loop asks of a source of measurements, and the typed answer, which always comes.

Per instance every quantity is fresh, stale, missing or not a number. For the pool one state says which of these the loop should
show in the condition MetricsFresh, and whether only some of the instances are affected.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.measurement import Measurement
from policies.preinference.observed import InstanceLoad, ranking_usage
from policies.scaling.types import Doubt, doubt_of, gravest

MOST = 1e18
"""More than any count or size: an exbibyte."""


class SourceState(enum.StrEnum):
    """How far a pool can be seen."""

    FRESH = "Fresh"
    PARTIAL = "Partial"
    STALE = "Stale"
    MISSING = "Missing"
    NOT_A_NUMBER = "NotANumber"
    UNREACHABLE = "SourceUnreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolName:
    """A pool by its namespace and name."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceName:
    """An instance of the pool: its name, its uid, and whether it is ready to serve."""

    name: str
    uid: str
    ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """What a source says about a pool.

    Attributes
    ----------
    instances
        One for each instance that was asked for, in the same order.
    state
        The pool as a whole; PARTIAL when at least one ready instance is fresh and at least one is not.
    doubt
        The gravest doubt about any ready instance; None when all are fresh.
    message
        What is wrong, for people; empty when nothing is.
    window_s
        Seconds that the rates cover.
    """

    instances: tuple[InstanceLoad, ...]
    state: SourceState
    doubt: Doubt | None
    message: str
    window_s: float

    @property
    def condition_reason(self) -> str:
        """Reason of the condition MetricsFresh: partial data is named by its gravest doubt."""
        return self.doubt.value if self.state is SourceState.PARTIAL and self.doubt is not None else self.state.value


class MetricsSource(Protocol):
    """A source of measurements."""

    async def read(self, pool: PoolName, instances: Sequence[InstanceName]) -> PoolMetrics:
        """Measure the instances of a pool now."""

    def forget(self, pool: PoolName) -> None:
        """The pool is gone; what is remembered of it may go."""

    async def aclose(self) -> None:
        """Release connections and threads."""


def needed(load: InstanceLoad) -> tuple[tuple[str, Measurement], ...]:
    """The quantities that decisions need of an instance, by name. An idle instance needs no latency."""
    return (
        ("requests", load.rates.requests),
        ("accepted", load.rates.accepted),
        ("rejected", load.rates.rejected),
        ("used", load.rates.used),
        ("late", load.rates.late),
        ("wasted", load.rates.wasted),
        ("busySlots", load.busy_slots),
        ("livePrefixBytes", load.live_prefix_bytes),
        ("queue", load.queue),
        ("p99", ranking_usage(load, goal_ms=1.0)),
    )


def believable(value: float | None) -> float | None:
    """The value, or not a number for one that no rate, size or count of an instance can have: below zero, or absurdly large.

    Whatever answers for an instance is treated as hostile, and sums must not overflow.
    """
    return value if value is None or 0.0 <= value <= MOST else math.nan


def lacks(load: InstanceLoad) -> bool:
    """Whether a quantity that decisions need is missing, and none is worse than missing."""
    doubts = {doubt_of(value) for _, value in needed(load)} - {None}
    return doubts == {Doubt.MISSING}


def summarise(instances: Sequence[InstanceLoad], *, window_s: float, message: str = "") -> PoolMetrics:
    """Make the answer for a source that could be reached; `message` is put before what is found wrong."""
    doubtful: list[tuple[InstanceLoad, str, Doubt]] = []
    ready = [load for load in instances if load.ready]
    for load in ready:
        wrong = [(name, doubt) for name, value in needed(load) if (doubt := doubt_of(value)) is not None]
        if wrong:
            worst = gravest([doubt for _, doubt in wrong])
            assert worst is not None
            doubtful.append((load, next(name for name, doubt in wrong if doubt is worst), worst))
    doubt = gravest([d for *_, d in doubtful]) if ready else Doubt.MISSING
    if doubt is None:
        state = SourceState.FRESH
    elif len(doubtful) < len(ready):
        state = SourceState.PARTIAL
    else:
        state = SourceState(doubt.value)
    found = _explain(doubtful, of=len(ready)) if ready else "no instance is ready"
    return PoolMetrics(
        instances=tuple(instances),
        state=state,
        doubt=doubt,
        message="; ".join(part for part in (message, found) if part)[:1024] if doubt is not None else message,
        window_s=window_s,
    )


def unreachable(instances: Sequence[InstanceName], why: str, *, window_s: float) -> PoolMetrics:
    """Make the answer of a source that could not be asked: everything is missing."""
    return PoolMetrics(
        instances=tuple(InstanceLoad(name=instance.name, ready=instance.ready) for instance in instances),
        state=SourceState.UNREACHABLE,
        doubt=Doubt.MISSING,
        message=why[:1024],
        window_s=window_s,
    )


def _explain(doubtful: Sequence[tuple[InstanceLoad, str, Doubt]], *, of: int) -> str:
    if not doubtful:
        return ""
    load, name, doubt = doubtful[0]
    return f"{len(doubtful)} of {of} ready instances are in doubt, for example {name} of {load.name}: {doubt.value}"
