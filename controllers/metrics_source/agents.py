"""Measurements straight from the agents: the statuses that the allocation loop hears anyway, turned into rates.

No call of its own. A status carries monotone counters of one engine process at a moment of that engine's clock; two of them, at
least a few seconds apart, make rates. The age of a status counts from when the engine's clock was first seen there, so an engine
that stands still becomes stale although its agent answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from contract.agent import ServingReport
from controllers.agent_book import Statuses
from controllers.metrics_source.port import InstanceName, PoolMetrics, PoolName, believable, summarise
from controllers.runtime.clock import Clock
from policies.measurement import Measurement, measured
from policies.preinference.observed import CounterSample, InstanceLoad, rates_between

WINDOW_SECONDS = 60.0
SHORTEST_SECONDS = 5.0
STALE_SECONDS = 60.0
_KEPT = 32


@dataclass(slots=True)
class _Track:
    samples: deque[tuple[CounterSample, float | None]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    moved_s: float = 0.0


class AgentsSource:
    """`MetricsSource` over the agents' statuses.

    Parameters
    ----------
    window_s
        Rates reach back this far; a status older than `stale_s` is stale.
    """

    def __init__(
        self, statuses: Statuses, *, clock: Clock, window_s: float = WINDOW_SECONDS, stale_s: float = STALE_SECONDS
    ) -> None:
        self._statuses = statuses
        self._clock = clock
        self._window_s = window_s
        self._stale_s = stale_s
        self._tracks: dict[tuple[PoolName, str], _Track] = {}

    async def read(self, pool: PoolName, instances: Sequence[InstanceName]) -> PoolMetrics:
        """Measure from what the agents said last; the first statuses of a process give gauges, the next ones rates."""
        present = {(pool, instance.uid) for instance in instances}
        for gone in [key for key in self._tracks if key[0] == pool and key not in present]:
            del self._tracks[gone]
        return summarise([self._load(pool, instance) for instance in instances], window_s=self._window_s)

    def forget(self, pool: PoolName) -> None:
        """The pool is gone."""
        for gone in [key for key in self._tracks if key[0] == pool]:
            del self._tracks[gone]

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _load(self, pool: PoolName, instance: InstanceName) -> InstanceLoad:
        heard = self._statuses.last(instance.uid)
        if heard is None or heard.status.serving is None or not heard.status.engine.reachable:
            return InstanceLoad(name=instance.name, ready=instance.ready)
        serving, start_id = heard.status.serving, heard.status.engine.start_id
        track = self._tracks.setdefault((pool, instance.uid), _Track(moved_s=heard.at_s))
        self._take(track, _sample(serving, start_id=start_id), serving.pre_infer.slot_ms, at_s=heard.at_s)
        age_ms = 1000.0 * (self._clock.monotonic() - track.moved_s)
        before, slot_before = self._base(track)
        after, slot_after = track.samples[-1]
        rates = rates_between(before, after, age_ms=age_ms, stale_after_ms=1000.0 * self._stale_s)

        def seen(value: float | None) -> Measurement:
            return measured(believable(value), age_ms=age_ms, stale_after_ms=1000.0 * self._stale_s)

        return InstanceLoad(
            name=instance.name,
            ready=instance.ready,
            rates=rates,
            busy_slots=seen(_busy(slot_before, slot_after, before=before, after=after)),
            live_prefix_bytes=seen(serving.live_prefix_bytes),
            queue=seen(serving.queue),
            p99_ms=seen(heard.status.p99_ms),
        )

    def _take(self, track: _Track, sample: CounterSample, slot_ms: float | None, *, at_s: float) -> None:
        """Keep a sample whose engine clock has moved; another process, or a clock gone back, begins anew."""
        if track.samples:
            newest = track.samples[-1][0]
            if sample.start_id == newest.start_id and sample.at_ms == newest.at_ms:
                return
            if sample.start_id != newest.start_id or sample.at_ms < newest.at_ms:
                track.samples.clear()
        track.samples.append((sample, slot_ms))
        track.moved_s = at_s

    def _base(self, track: _Track) -> tuple[CounterSample, float | None]:
        """The oldest sample inside the window that is far enough back for a rate; the newest itself if there is none."""
        newest = track.samples[-1][0]
        for sample, slot_ms in track.samples:
            gap_s = (newest.at_ms - sample.at_ms) / 1000.0
            if SHORTEST_SECONDS <= gap_s <= self._window_s:
                return sample, slot_ms
        return track.samples[-1]


def _sample(serving: ServingReport, *, start_id: str) -> CounterSample:
    counts = serving.pre_infer
    return CounterSample(
        start_id=start_id,
        at_ms=serving.clock_ms,
        requests=serving.requests,
        accepted=counts.accepted,
        rejected=counts.rejected,
        used=counts.used,
        wasted=counts.wasted,
        late=counts.late,
    )


def _busy(slot_before: float | None, slot_after: float | None, *, before: CounterSample, after: CounterSample) -> float | None:
    """Mean busy slots between two samples; None where the engine does not count or there is no interval.

    An engine that has admitted no prefix since it started had no slot busy, whether it counts them or not.
    """
    elapsed = after.at_ms - before.at_ms
    if after.accepted == 0 and elapsed > 0.0:
        return 0.0
    if slot_before is None or slot_after is None or not elapsed > 0.0 or slot_after < slot_before:
        return None
    return (slot_after - slot_before) / elapsed
