"""What became of the requests of a log: columns, series per instance, moves, and a summary that says what to doubt.

Percentiles are exact, from every latency. The digest covers every column that the simulation decided, so two runs with one seed
agree in it or something is not deterministic.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.fleet.config import FleetConfig, Level
from simulator.request_log import RequestLog

LENGTH_EDGES = (0, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
REQUESTS_FOR_P99 = 1_000
REQUESTS_FOR_P999 = 10_000


@dataclass(frozen=True, kw_only=True)
class Move:
    """One change of a split that was carried out: limits before and after, and what the shrinking side evicted at once."""

    at_ms: float
    instance: int
    from_emb_bytes: int
    to_emb_bytes: int
    evicted_bytes: int


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Series per window and instance, shape (windows, instances): the EMB limit at the window's end, and what was used."""

    window_ms: float
    emb_limit_bytes: NDArray[np.int64]
    emb_used_bytes: NDArray[np.int64]
    kv_used_bytes: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FleetResult:
    """Columns have shape (requests,), in the order of the log.

    Attributes
    ----------
    log, config, level, seed
        What was simulated.
    instance : uint16
        Who served the request.
    latency_ms, service_ms : float64
        Where requests run together, the service time of one is its share of the batch's, and the rest of its latency is waiting.
    kv_hit_tokens, host_hit_tokens, ssd_hit_tokens : int32
        History tokens found in HBM, and loaded from a tier below.
    rows_asked, rows_missed : int32
    windows : Windows
    moves : tuple of Move
    bytes_by_class : mapping of str to int
        `demand`, `refill`, `reload`, `offload` over the link; `kvEvicted`, `embEvicted` left HBM for want of room.
    counts : mapping of str to int
        Further counters (pre-inference: `signals`, `preInferAccepted`, `preInferUsed`, `preInferLate`, `preInferWasted`,
        `preInferBusyMs`, which no request's service time contains, and a count for each verdict that refused).
    measured_from_ms : float
        Requests before it are left out of the summary.
    doubts : tuple of str
        Why the result is not to be trusted; empty when there is no reason.
    """

    log: RequestLog
    config: FleetConfig
    level: Level
    seed: int
    instance: NDArray[np.uint16]
    latency_ms: NDArray[np.float64]
    service_ms: NDArray[np.float64]
    kv_hit_tokens: NDArray[np.int32]
    host_hit_tokens: NDArray[np.int32]
    ssd_hit_tokens: NDArray[np.int32]
    rows_asked: NDArray[np.int32]
    rows_missed: NDArray[np.int32]
    windows: Windows
    moves: tuple[Move, ...] = ()
    bytes_by_class: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    measured_from_ms: float = 0.0
    doubts: tuple[str, ...] = ()

    @property
    def queue_ms(self) -> NDArray[np.float64]:
        """Time that each request waited."""
        return self.latency_ms - self.service_ms

    @property
    def measured(self) -> slice:
        """The requests that figures are about."""
        return slice(int(np.searchsorted(self.log.arrival_ms, self.measured_from_ms, side="left")), None)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over log, columns, windows, moves and counters."""
        total = hashlib.sha256(self.log.digest.encode())
        columns = (
            self.instance,
            self.latency_ms,
            self.service_ms,
            self.kv_hit_tokens,
            self.host_hit_tokens,
            self.ssd_hit_tokens,
            self.rows_asked,
            self.rows_missed,
            self.windows.emb_limit_bytes,
            self.windows.emb_used_bytes,
            self.windows.kv_used_bytes,
        )
        for column in columns:
            total.update(np.ascontiguousarray(column.astype(column.dtype.newbyteorder("<"), copy=False)).tobytes())
        total.update(repr((self.moves, sorted(self.bytes_by_class.items()), sorted(self.counts.items()))).encode())
        return total.hexdigest()

    def summary(self) -> dict[str, object]:
        """Return the figures of the measured requests, ready for JSON; None where nothing was asked.

        Notes
        -----
        Latencies in ms; hit and SLO shares, and utilisation (serving time over time and instances), in percent. Rows that a KV
        hit made unnecessary count neither as asked nor as hit.
        """
        part = self.measured
        latency = self.latency_ms[part]
        tokens = int(self.log.history_tokens[part].sum(dtype=np.int64))
        asked = int(self.rows_asked[part].sum(dtype=np.int64))
        missed = int(self.rows_missed[part].sum(dtype=np.int64))
        return {
            "requests": len(latency),
            "instances": self.config.instances,
            "level": self.level.value,
            "seed": self.seed,
            "digest": self.digest,
            "measuredFromMs": self.measured_from_ms,
            **latency_figures(latency, slo_ms=self.config.slo_ms),
            "meanServiceMs": float(self.service_ms[part].mean()) if len(latency) else None,
            "meanQueueMs": float(self.queue_ms[part].mean()) if len(latency) else None,
            "kvHitPercent": {
                "hbm": _percent(int(self.kv_hit_tokens[part].sum(dtype=np.int64)), tokens),
                "host": _percent(int(self.host_hit_tokens[part].sum(dtype=np.int64)), tokens),
                "ssd": _percent(int(self.ssd_hit_tokens[part].sum(dtype=np.int64)), tokens),
            },
            "embHitPercent": _percent(asked - missed, asked),
            "utilisationPercent": self.utilisation_percent(),
            "byHistoryLength": self.by_history_length(),
            "bytesByClass": dict(self.bytes_by_class),
            "counts": dict(self.counts),
            "moves": len(self.moves),
            "doubts": list(self.doubts),
        }

    def utilisation_percent(self) -> float | None:
        """Serving time of the measured requests over the time in which they arrived and the instances."""
        arrivals = self.log.arrival_ms[self.measured]
        if len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
            return None
        span_ms = float(arrivals[-1] - arrivals[0])
        return 100.0 * float(self.service_ms[self.measured].sum()) / (span_ms * self.config.instances)

    def by_history_length(self) -> list[dict[str, object]]:
        """Latency figures of the measured requests by length of history; empty buckets are left out."""
        history, latency = self.log.history_tokens[self.measured], self.latency_ms[self.measured]
        bucket = np.searchsorted(np.array(LENGTH_EDGES), history, side="right") - 1
        found: list[dict[str, object]] = []
        for place, least in enumerate(LENGTH_EDGES):
            chosen = latency[bucket == place]
            if len(chosen):
                below = LENGTH_EDGES[place + 1] if place + 1 < len(LENGTH_EDGES) else None
                figures = latency_figures(chosen, slo_ms=self.config.slo_ms)
                found.append({"fromTokens": least, "belowTokens": below, "requests": len(chosen), **figures})
        return found


def latency_figures(latency_ms: NDArray[np.float64], *, slo_ms: float) -> dict[str, object]:
    """Return percentiles, mean and the share within the SLO; None throughout for no request."""
    names = ("p50Ms", "p99Ms", "p999Ms")
    if not len(latency_ms):
        return dict.fromkeys((*names, "meanMs", "sloPercent"))
    quantiles = np.percentile(latency_ms, [50.0, 99.0, 99.9])
    return {
        **{name: float(value) for name, value in zip(names, quantiles, strict=True)},
        "meanMs": float(latency_ms.mean()),
        "sloPercent": 100.0 * float((latency_ms <= slo_ms).mean()),
    }


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None
