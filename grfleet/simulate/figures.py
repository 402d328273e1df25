"""From what became of each request to the figures of `result.json`: stages, lengths of history, windows of time, differences.

A request's latency is the time it queued, the time its instance computed, and the rest of its service, which is transfer: gathers
of missed rows, state loaded from a lower tier, and what a refill withheld from both.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grfleet.simulate.schema import Difference, Figures, Hits, LengthBucket, Moves, OfInstance, Prediction, Stage, Waste, Window
from simulator.fleet.result import LENGTH_EDGES, FleetResult
from simulator.fleet.service import fleet_floats
from simulator.oracle.costs import compute_columns

MOST_WINDOWS = 120
BINS_PER_DOUBLING = 4
LEAST_MS = 0.125
DOUBLINGS = 23
_SECOND_MS = 1000.0


def histogram_edges_ms() -> NDArray[np.float64]:
    """Return the edges of all histograms: 0, then four steps a doubling from 1/8 ms up; the last bin is open."""
    steps = np.arange(DOUBLINGS * BINS_PER_DOUBLING + 1) / BINS_PER_DOUBLING
    edges: NDArray[np.float64] = np.concatenate(([0.0], LEAST_MS * 2.0**steps))
    return np.round(edges, 6)


def figures_of(
    result: FleetResult,
    *,
    names: Sequence[str],
    decisions: Mapping[str, int],
    prediction: Prediction | None,
    good_percent: float,
) -> Figures:
    """Return the figures of the measured requests of a run.

    Parameters
    ----------
    names : sequence of str
        Of the instances, in their order.
    decisions : mapping of str to int
        Decisions of all agents by reason.
    prediction : Prediction or None
        What the agents predicted; None where nothing moves.
    good_percent : float
        Share of good requests, in percent, that the pool's objective asks for.
    """
    part, summary = result.measured, result.summary()
    latency = result.latency_ms[part]
    stages = _stages(result)
    quantiles = _quantiles(latency)
    slo = _number(summary["sloPercent"])
    hits = summary["kvHitPercent"]
    assert isinstance(hits, dict)
    return Figures(
        digest=result.digest,
        requests=len(latency),
        mean_ms=_mean(latency),
        p50_ms=quantiles[0],
        p99_ms=quantiles[1],
        p999_ms=quantiles[2],
        slo_percent=slo,
        slo_met=None if slo is None else slo >= good_percent,
        utilisation_percent=rounded(result.utilisation_percent()),
        kv_hit_percent=Hits(**{tier: _number(hits[tier]) for tier in ("hbm", "host", "ssd")}),
        emb_hit_percent=_number(summary["embHitPercent"]),
        stages=[_stage(name, column) for name, column in stages.items()],
        by_history_length=_by_length(result),
        by_instance=_by_instance(result, names),
        bytes_by_class=dict(sorted(result.bytes_by_class.items())),
        counts=dict(sorted(result.counts.items())),
        moves=_moves(result),
        decisions=dict(sorted(decisions.items())),
        prediction=prediction,
        waste=_waste(result),
        windows=_windows(result),
        doubts=list(result.doubts),
    )


def difference_of(run: Figures, baseline: Figures) -> Difference:
    """Return how a run differs from its baseline: latencies in percent of it (below 0 is faster), shares in points."""
    return Difference(
        p50_percent=_percent_more(run.p50_ms, baseline.p50_ms),
        p99_percent=_percent_more(run.p99_ms, baseline.p99_ms),
        p999_percent=_percent_more(run.p999_ms, baseline.p999_ms),
        mean_percent=_percent_more(run.mean_ms, baseline.mean_ms),
        slo_points=_points_more(run.slo_percent, baseline.slo_percent),
        utilisation_points=_points_more(run.utilisation_percent, baseline.utilisation_percent),
        kv_hbm_hit_points=_points_more(run.kv_hit_percent.hbm, baseline.kv_hit_percent.hbm),
        emb_hit_points=_points_more(run.emb_hit_percent, baseline.emb_hit_percent),
    )


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Return a figure to some decimals; None for no number."""
    return round(float(value), digits) if value is not None and math.isfinite(value) else None


def _number(value: object) -> float | None:
    return rounded(float(value)) if isinstance(value, (int, float)) else None


def _stages(result: FleetResult) -> dict[str, NDArray[np.float64]]:
    part, log = result.measured, result.log
    found = result.kv_hit_tokens[part] + result.host_hit_tokens[part] + result.ssd_hit_tokens[part]
    compute = compute_columns(
        fleet_floats(result.config),
        log.history_tokens[part].astype(np.int64),
        log.candidates[part].astype(np.int64),
        found.astype(np.int64),
    )
    service = result.service_ms[part]
    return {
        "total": result.latency_ms[part],
        "queue": np.maximum(result.queue_ms[part], 0.0),
        "compute": np.minimum(compute, service),
        "transfer": np.maximum(service - compute, 0.0),
    }


def _stage(name: str, column: NDArray[np.float64]) -> Stage:
    p50, p99, p999 = _quantiles(column)
    return Stage(stage=name, mean_ms=_mean(column), p50_ms=p50, p99_ms=p99, p999_ms=p999, counts=_counts(column))


def _by_length(result: FleetResult) -> list[LengthBucket]:
    history, latency = result.log.history_tokens[result.measured], result.latency_ms[result.measured]
    bucket = np.searchsorted(np.array(LENGTH_EDGES), history, side="right") - 1
    found = []
    for place, least in enumerate(LENGTH_EDGES):
        chosen = latency[bucket == place]
        if not len(chosen):
            continue
        p50, p99, p999 = _quantiles(chosen)
        found.append(
            LengthBucket(
                from_tokens=least,
                below_tokens=LENGTH_EDGES[place + 1] if place + 1 < len(LENGTH_EDGES) else None,
                requests=len(chosen),
                mean_ms=_mean(chosen),
                p50_ms=p50,
                p99_ms=p99,
                p999_ms=p999,
                slo_percent=_good_percent(chosen, result.config.slo_ms),
                counts=_counts(chosen),
            )
        )
    return found


def _by_instance(result: FleetResult, names: Sequence[str]) -> list[OfInstance]:
    part, log, config = result.measured, result.log, result.config
    instance, arrival = result.instance[part], log.arrival_ms[part]
    span_ms = float(arrival[-1] - arrival[0]) if len(arrival) else 0.0
    columns = (log.history_tokens, result.kv_hit_tokens, result.rows_asked, result.rows_missed, result.service_ms)
    sums = [np.bincount(instance, weights=column[part], minlength=config.instances).tolist() for column in columns]
    by_instance = result.latency_ms[part][np.argsort(instance, kind="stable")]
    latencies = np.split(by_instance, np.cumsum(np.bincount(instance, minlength=config.instances))[:-1])
    found = []
    for number, (name, tokens, hit, rows, missed, served_ms) in enumerate(zip(names, *sums, strict=True)):
        latency = latencies[number]
        found.append(
            OfInstance(
                name=name,
                requests=len(latency),
                p99_ms=_quantiles(latency)[1],
                utilisation_percent=rounded(100.0 * served_ms / span_ms) if span_ms > 0.0 else None,
                kv_hbm_hit_percent=rounded(100.0 * hit / tokens) if tokens else None,
                emb_hit_percent=rounded(100.0 * (rows - missed) / rows) if rows else None,
                last_emb_percent=round(100.0 * float(result.windows.emb_limit_bytes[-1, number]) / config.pool_bytes, 2),
            )
        )
    return found


def _moves(result: FleetResult) -> Moves:
    last = result.windows.emb_limit_bytes[-1]
    return Moves(
        count=len(result.moves),
        moved_bytes=sum(abs(move.to_emb_bytes - move.from_emb_bytes) for move in result.moves),
        evicted_bytes=sum(move.evicted_bytes for move in result.moves),
        last_emb_percent=round(100.0 * float(last.mean()) / result.config.pool_bytes, 2),
    )


def _waste(result: FleetResult) -> Waste:
    return Waste(
        resize_evicted_bytes=result.bytes_by_class.get("resizeEvicted", 0),
        refill_bytes=result.bytes_by_class.get("refill", 0),
        pre_infer_accepted=result.counts.get("preInferAccepted", 0),
        pre_infer_used=result.counts.get("preInferUsed", 0),
        pre_infer_late=result.counts.get("preInferLate", 0),
        pre_infer_wasted=result.counts.get("preInferWasted", 0),
        pre_infer_busy_ms=result.counts.get("preInferBusyMs", 0),
    )


def _windows(result: FleetResult) -> list[Window]:
    """At most 120 equal windows over the whole log, of whole seconds where it has more than so many."""
    arrival = result.log.arrival_ms
    start, span = float(arrival[0]), float(arrival[-1] - arrival[0])
    width = max(span / MOST_WINDOWS, _SECOND_MS)
    width = math.ceil(width / _SECOND_MS) * _SECOND_MS
    count = int(span // width) + 1
    begins: NDArray[np.float64] = start + width * np.arange(count, dtype=np.float64)
    edges = np.searchsorted(arrival, [*begins, np.inf])
    share = _emb_percents(result, begins + width)
    moved = np.searchsorted(begins, [move.at_ms for move in result.moves], side="right") - 1
    moves = np.bincount(np.maximum(moved, 0), minlength=count) if len(moved) else np.zeros(count, dtype=np.int64)
    found = []
    for place in range(count):
        latency = result.latency_ms[edges[place] : edges[place + 1]]
        found.append(
            Window(
                from_ms=round(float(begins[place]), 3),
                requests=len(latency),
                p99_ms=_quantiles(latency)[1],
                slo_percent=_good_percent(latency, result.config.slo_ms),
                min_emb_percent=round(float(share[place].min()), 2),
                mean_emb_percent=round(float(share[place].mean()), 2),
                max_emb_percent=round(float(share[place].max()), 2),
                moves=int(moves[place]),
            )
        )
    return found


def _emb_percents(result: FleetResult, ends_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """EMB limits at some moments in percent of the pool, shape (moments, instances); steps of the series end at its multiples."""
    series, step_ms = result.windows.emb_limit_bytes, result.windows.window_ms
    first = math.floor(float(result.log.arrival_ms[0]) / step_ms)
    place = np.clip(np.ceil(ends_ms / step_ms).astype(np.int64) - first - 1, 0, len(series) - 1)
    return np.asarray(100.0 * series[place] / result.config.pool_bytes, dtype=np.float64)


def _quantiles(column: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    if not len(column):
        return None, None, None
    p50, p99, p999 = np.percentile(column, [50.0, 99.0, 99.9])
    return rounded(p50), rounded(p99), rounded(p999)


def _mean(column: NDArray[np.float64]) -> float | None:
    return rounded(float(column.mean())) if len(column) else None


def _good_percent(column: NDArray[np.float64], slo_ms: float) -> float | None:
    return rounded(100.0 * float((column <= slo_ms).mean())) if len(column) else None


def _counts(column: NDArray[np.float64]) -> list[int]:
    """Requests by bin of `histogram_edges_ms`, without the empty bins behind the last."""
    edges = histogram_edges_ms()
    place = np.searchsorted(edges, column, side="right") - 1
    return [int(count) for count in np.bincount(np.clip(place, 0, len(edges) - 1))] if len(column) else []


def _percent_more(value: float | None, than: float | None) -> float | None:
    return None if value is None or not than else rounded(100.0 * (value / than - 1.0), 2)


def _points_more(value: float | None, than: float | None) -> float | None:
    return None if value is None or than is None else rounded(value - than, 3)
