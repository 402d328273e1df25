"""The reporting window: what status and gauges say about the last ten seconds of one engine process.

Decisions look at single intervals; people and the operator want figures that do not jump. None means that nothing was asked.
"""

from collections import deque
from dataclasses import dataclass

from contract.engine import Observe
from dataplane.agent.view import p99_between, value_of
from policies.allocation import latency

WINDOW_MS = 10_000.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Figures of one window; percents of what was asked, milliseconds and seconds of the engine's clock."""

    emb_hit_percent: float | None = None
    kv_hit_percent: float | None = None
    p99_ms: float | None = None
    slo_percent: float | None = None
    requests_per_second: float | None = None
    service_ms: float | None = None


class Window:
    """Keeps the observations that span the window, about one a second however often the agent looks."""

    def __init__(self, *, span_ms: float = WINDOW_MS) -> None:
        self._span_ms = span_ms
        self._kept: deque[Observe] = deque()
        self._youngest: Observe | None = None

    def add(self, now: Observe) -> None:
        """Take in one trusted observation; a new engine process starts a new window."""
        if self._youngest is not None and self._youngest.start_id != now.start_id:
            self.clear()
        if not self._kept or now.clock_ms - self._kept[-1].clock_ms >= self._span_ms / 10.0:
            self._kept.append(now)
        self._youngest = now
        while len(self._kept) > 1 and now.clock_ms - self._kept[1].clock_ms >= self._span_ms:
            self._kept.popleft()

    def clear(self) -> None:
        """Forget everything, after readings that cannot be trusted."""
        self._kept.clear()
        self._youngest = None

    def report(self) -> Report:
        """Return the figures between the oldest and the youngest observation kept."""
        if self._youngest is None or self._youngest.clock_ms <= self._kept[0].clock_ms:
            return Report()
        now, before = self._youngest, self._kept[0]
        new, old = now.counters, before.counters
        counts = latency.delta(now.latency.counts, before.latency.counts) or {}
        slo = value_of(latency.share_within_slo(counts))
        return Report(
            emb_hit_percent=_percent(new.emb.rows_hit - old.emb.rows_hit, new.emb.rows_asked - old.emb.rows_asked),
            kv_hit_percent=_percent(new.kv.tokens_hit_hbm - old.kv.tokens_hit_hbm, new.kv.tokens_asked - old.kv.tokens_asked),
            p99_ms=value_of(p99_between(now, before)),
            slo_percent=None if slo is None else 100.0 * slo,
            requests_per_second=1000.0 * (new.requests - old.requests) / (now.clock_ms - before.clock_ms),
            service_ms=(new.work_ms.service - old.work_ms.service) / (new.requests - old.requests)
            if new.requests > old.requests
            else None,
        )


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole > 0 else None
