"""Prometheus text of the reference engine, made from one observation; no labels, so the number of series is fixed."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from contract.engine import Observe
from contract.histogram import BUCKET_RATIO, LatencyHistogram
from engines.reference.clock import ModelClock
from simulator.core.instance import GRInstanceCore

#: Edges of the exported histogram as powers of 1.02 times the SLO: every 12th bucket, with the SLO itself among them.
EDGES = range(-240, 241, 12)


def render(core: GRInstanceCore, clock: ModelClock) -> tuple[bytes, str]:
    """Return (body, content type) of a scrape."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(core.observe(clock.now_ms()), clock))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Snapshot(Collector):
    def __init__(self, seen: Observe, clock: ModelClock) -> None:
        self._seen = seen
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        counters, split = self._seen.counters, self._seen.split
        for name, text, count in (
            ("gr_requests", "Ranking requests served.", counters.requests),
            ("gr_kv_tokens_asked", "History tokens that requests asked for.", counters.kv.tokens_asked),
            ("gr_kv_tokens_hit", "History tokens found in the KV cache.", counters.kv.tokens_hit_hbm),
            ("gr_emb_rows_asked", "Embedding rows looked up.", counters.emb.rows_asked),
            ("gr_emb_rows_hit", "Embedding rows found in the EMB cache.", counters.emb.rows_hit),
            (
                "gr_emb_rows_defaulted",
                "Embedding rows without which a request went on, with default vectors.",
                counters.emb.rows_defaulted,
            ),
            ("gr_demand_bytes", "Bytes fetched over the link on a miss.", counters.bytes.demand),
            ("gr_refill_bytes", "Bytes loaded over the link after a growth.", counters.bytes.refill),
            ("gr_evicted_capacity_bytes", "Bytes evicted to make room.", counters.evictions.capacity),
            ("gr_evicted_resize_bytes", "Bytes evicted by a smaller limit.", counters.evictions.resize),
            ("gr_service_ms", "Model milliseconds spent serving.", counters.work_ms.service),
            ("gr_emb_miss_ms", "Model milliseconds spent fetching missed rows.", counters.work_ms.emb_miss),
            ("gr_kv_miss_ms", "Model milliseconds spent recomputing tokens that were not cached.", counters.work_ms.kv_miss),
            ("gr_pre_infer_accepted", "Prefixes admitted.", counters.pre_infer.accepted),
            ("gr_pre_infer_rejected", "Prefixes refused.", counters.pre_infer.rejected),
            ("gr_pre_infer_used", "Prefixes that were ready for their ranking request.", counters.pre_infer.used),
            ("gr_pre_infer_late", "Prefixes that were not ready for their ranking request.", counters.pre_infer.late),
            ("gr_pre_infer_wasted", "Prefixes evicted before a ranking request.", counters.pre_infer.wasted),
            ("gr_pre_infer_slot_ms", "Model milliseconds that slots were busy.", counters.pre_infer.slot_ms or 0.0),
        ):
            yield CounterMetricFamily(name, text, value=count)
        for name, text, value in (
            ("gr_queue", "Requests waiting.", self._seen.gauges.queue),
            ("gr_in_flight", "Requests waiting or in service.", self._seen.gauges.in_flight),
            ("gr_live_prefix_bytes", "Bytes of prefixes not used yet.", self._seen.gauges.live_prefix_bytes),
            ("gr_split_revision", "Revision of the split in force.", split.revision),
            ("gr_emb_limit_bytes", "Limit of the EMB cache.", split.limits.emb_bytes),
            ("gr_kv_limit_bytes", "Limit of the KV cache.", split.limits.kv_bytes),
            ("gr_emb_used_bytes", "Bytes that the EMB cache holds.", split.used.emb_bytes),
            ("gr_kv_used_bytes", "Bytes that the KV cache holds.", split.used.kv_bytes),
            ("gr_overage_bytes", "Bytes above a limit, waiting to be freed.", split.overage_bytes),
            ("gr_refill_backlog_bytes", "Bytes that refill still owes.", split.refill_backlog_bytes),
            ("gr_event_lag_ms", "How far the last stamped request was behind its stamp.", self._clock.event_lag_ms),
            ("gr_event_lag_max_ms", "The largest event lag since the start.", self._clock.max_event_lag_ms),
            ("gr_emulation", "1: latencies are model time.", 1),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield _latency(self._seen.latency)


def _latency(histogram: LatencyHistogram) -> HistogramMetricFamily:
    edges = [(edge, histogram.anchor_ms * BUCKET_RATIO**edge) for edge in EDGES]
    buckets = [(f"{bound:.6g}", float(sum(n for k, n in histogram.counts.items() if k < edge))) for edge, bound in edges]
    total = float(sum(histogram.counts.values()))
    family = HistogramMetricFamily("gr_latency_ms", "Latency of ranking requests in model milliseconds.")
    family.add_metric([], buckets=[*buckets, ("+Inf", total)], sum_value=None)
    return family
