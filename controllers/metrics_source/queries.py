"""The table of PromQL queries: every one that the operator ever sends, with what it means (`markdown_table`).

The engines' own `/metrics` is what is scraped (docs/contract.md). Series are grouped by the label that names the instance and
reduced with `max`, because a target scraped twice must not count twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SEEN_AT = "seenAt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Names of the labels by which targets are told apart.

    Attributes
    ----------
    namespace, pool
        Select the targets of a pool. The Prometheus operator makes `grfleet_dev_pool` from the pod label `grfleet.dev/pool` when
        a PodMonitor lists it in `podTargetLabels`.
    instance
        Its value is the name of the GRInstance, which is the name of the pod.
    """

    namespace: str = "namespace"
    pool: str = "grfleet_dev_pool"
    instance: str = "pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query: $S stands for the selector of a pool, $I for the label of the instance, $W for the window."""

    name: str
    unit: str
    promql: str
    says: str

    def text(self, selector: str, labels: Labels, *, window_s: float) -> str:
        """The query for one pool."""
        return self.promql.replace("$S", selector).replace("$I", labels.instance).replace("$W", f"{round(window_s * 1000)}ms")


def _rate(name: str, metric: str, says: str) -> Query:
    return Query(name=name, unit="1/s", promql=f"max by ($I) (rate({metric}{{$S}}[$W]))", says=says)


def _gauge(name: str, unit: str, metric: str, says: str) -> Query:
    return Query(name=name, unit=unit, promql=f"max by ($I) ({metric}{{$S}})", says=says)


QUERIES: tuple[Query, ...] = (
    Query(
        name=SEEN_AT,
        unit="s",
        promql="max by ($I) (timestamp(gr_queue{$S}) or max_over_time(timestamp(gr_queue{$S})[5m:5s]))",
        says="When the engine was scraped last, also if its series ended in the last five minutes: tells stale from missing.",
    ),
    _rate("requests", "gr_requests_total", "Ranking requests."),
    _rate("accepted", "gr_pre_infer_accepted_total", "Pre-inferences admitted."),
    _rate("rejected", "gr_pre_infer_rejected_total", "Pre-inferences refused."),
    _rate("used", "gr_pre_infer_used_total", "Prefixes ready for their ranking request."),
    _rate("late", "gr_pre_infer_late_total", "Prefixes not ready for their ranking request."),
    _rate("wasted", "gr_pre_infer_wasted_total", "Prefixes evicted before a ranking request."),
    Query(
        name="busySlots",
        unit="slots",
        promql="max by ($I) (rate(gr_pre_infer_slot_ms_total{$S}[$W])) / 1000",
        says="Slots busy on average.",
    ),
    Query(
        name="livePrefixBytes",
        unit="B",
        promql="max by ($I) (avg_over_time(gr_live_prefix_bytes{$S}[$W]))",
        says="Memory of prefixes not used yet, on average.",
    ),
    _gauge("queue", "requests", "gr_queue", "Ranking requests waiting."),
    Query(
        name="p99",
        unit="ms",
        promql="histogram_quantile(0.99, sum by ($I, le) (rate(gr_latency_ms_bucket{$S}[$W])))",
        says="P99 latency of ranking requests; NaN without any request.",
    ),
)


def selector_of(values: Mapping[str, str]) -> str:
    """The inside of a series selector, values escaped: ``namespace="a",pool="b"``."""
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def markdown_table() -> str:
    """The table of queries for the documentation; $S, $I and $W as in `Query`."""
    rows = [f"| `{q.name}` | {q.unit} | `{q.promql}` | {q.says} |" for q in QUERIES]
    return "\n".join(["| quantity | unit | query | says |", "|---|---|---|---|", *rows]) + "\n"
