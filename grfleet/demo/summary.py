"""From what was served to the figures people read: both pools live, fixed splits replayed on the same requests, and honesty.

Latency is model time. Wall time decides only whether the run counts as reliable: the driver must have sent its requests on time.
The best fixed split in hindsight stands beside the adaptive pool, and losing to it is a result like any other.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from contract.agent import DecisionRecord
from contract.engine import Observe, RankRequest
from contract.table import unpack_slots
from grfleet.demo.served import PoolRun, Run, Served
from simulator.replay import Outcomes, Statistics, replay_fixed, statistics_of
from simulator.workloads import Workload, demo_core
from simulator.workloads.demo import SLO_MS

LAG_LIMIT_MS = 5.0
REPLAY_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of the run that figures count: start and end in trace time, milliseconds."""

    start_ms: float
    end_ms: float

    def statistics(self, outcomes: Outcomes) -> Statistics:
        """Return the figures of this window."""
        return statistics_of(
            outcomes.between(self.start_ms, self.end_ms), slo_ms=float(SLO_MS), span_ms=self.end_ms - self.start_ms
        )


def windows_of(workload: Workload) -> dict[str, Window]:
    """Return the measured window (`""`) and those of the phases, each without the run-in."""
    start, end = workload.measured_from_ms, workload.duration_ms
    found = {"": Window(start_ms=start, end_ms=end)}
    for phase in workload.phases:
        found[phase.name] = Window(start_ms=max(start, phase.start_ms), end_ms=phase.end_ms)
    return found


def outcomes_of(served: Sequence[Served], *, instances: int) -> Outcomes:
    """Return what the owners answered as arrays; requests that failed or were answered elsewhere are left out, and counted."""
    good = [row for row in served if not row.error and not row.elsewhere]
    return Outcomes(
        arrival_ms=np.array([row.arrival_ms for row in good], dtype=np.float64),
        latency_ms=np.array([row.latency_ms for row in good], dtype=np.float64),
        service_ms=np.array([row.service_ms for row in good], dtype=np.float64),
        history_tokens=np.array([row.history_tokens for row in good], dtype=np.int64),
        kv_tokens_hit=np.array([row.kv_tokens_hit for row in good], dtype=np.int64),
        emb_rows_asked=np.array([row.emb_rows_asked for row in good], dtype=np.int64),
        emb_rows_missed=np.array([row.emb_rows_missed for row in good], dtype=np.int64),
        instances=instances,
    )


def replay_splits(
    requests: Sequence[RankRequest], run: PoolRun, percents: Sequence[int], *, instances: int
) -> dict[int, Outcomes]:
    """Replay fixed splits over the slots that `run` used live, two at a time in processes of their own."""
    # Slots name places in the table; engines were seeded by the number at the end of their names.
    numbers = [int(name.rsplit("-", 1)[1]) for name in run.instances]
    owners = [numbers[owner] for owner in unpack_slots(run.slots, instances=len(run.instances))]
    jobs = [(tuple(requests), owners, percent, instances) for percent in percents]
    # This kind of pool ends its workers at once when an interrupt leaves the block.
    with get_context("spawn").Pool(REPLAY_WORKERS) as pool:
        return dict(zip(percents, pool.imap(_replay_one, jobs), strict=True))


def _replay_one(job: tuple[tuple[RankRequest, ...], list[int], int, int]) -> Outcomes:
    requests, owners, percent, instances = job
    return replay_fixed(requests, owners, [percent], core_at=demo_core, instances=instances)[percent]


def pool_figures(
    run: PoolRun, windows: dict[str, Window], observed: Sequence[Observe], decisions: Sequence[DecisionRecord]
) -> dict[str, Any]:
    """Return one pool's entry of the summary.

    Parameters
    ----------
    observed : sequence of Observe
        The engines' counters at the end.
    decisions : sequence of DecisionRecord
        What the agents decided during the run.
    """
    outcomes = outcomes_of(run.served, instances=len(run.instances))
    measured = windows[""]
    figures = asdict(measured.statistics(outcomes))
    figures["failed"] = sum(1 for row in run.served if row.error)
    figures["retried"] = sum(1 for row in run.served if row.retried)
    figures["affinity_percent"] = affinity_percent(run.served)
    figures["phases"] = {name: asdict(window.statistics(outcomes)) for name, window in windows.items() if name}
    moved = [seen.counters for seen in observed]
    figures["bytes"] = {
        "demand": sum(c.bytes.demand for c in moved),
        "refill": sum(c.bytes.refill for c in moved),
        "evicted_by_resize": sum(c.evictions.resize for c in moved),
    }
    figures["decisions"] = dict(Counter(record.reason for record in decisions).most_common())
    figures["moves"] = sum(1 for record in decisions if record.applied)
    return figures


def affinity_percent(served: Sequence[Served]) -> float | None:
    """Return the share of answers that the instance gave which the table names for the user; None without an answer."""
    answered = [row for row in served if not row.error]
    if not answered:
        return None
    return 100.0 * sum(not row.elsewhere and not row.retried for row in answered) / len(answered)


def replayed_figures(outcomes: dict[int, Outcomes], windows: dict[str, Window]) -> dict[str, Any]:
    """Return the summary's `replayed`: split percent (as text) to figures."""
    return {
        str(percent): asdict(windows[""].statistics(found))
        | {"phases": {name: asdict(window.statistics(found)) for name, window in windows.items() if name}}
        for percent, found in sorted(outcomes.items())
    }


def health(run: Run) -> dict[str, Any]:
    """Return how well this machine kept up: lag of sending in wall time, and whether that makes the run reliable."""
    lags = np.array([row.lag_ms for pool in run.pools for row in pool.served] or [0.0])
    failed = sum(1 for pool in run.pools for row in pool.served if row.error)
    wall = np.array([row.wall_ms for pool in run.pools for row in pool.served if not row.error] or [0.0])
    p99 = float(np.percentile(lags, 99.0))
    return {
        "lag_p99_ms": p99,
        "lag_max_ms": float(lags.max()),
        "lag_limit_ms": LAG_LIMIT_MS,
        "failed": failed,
        "wall_p50_ms": float(np.percentile(wall, 50.0)),
        "reliable": p99 <= LAG_LIMIT_MS and failed == 0,
    }


def best_split(replayed: dict[str, Any], phase: str = "") -> int:
    """Return the replayed split with the least P99, over the run or one phase."""

    def p99(percent: str) -> float:
        figures = replayed[percent]["phases"][phase] if phase else replayed[percent]
        return float("inf") if figures["p99_ms"] is None else float(figures["p99_ms"])

    return int(min(replayed, key=p99))


def show(console: Console, summary: dict[str, Any]) -> None:
    """Print the final table and the sentences that must not be missed."""
    table = Table(
        "", "P50 ms", "P99 ms", "within SLO", "KV hit", "EMB hit", "busy", title=f"SLO {summary['slo_ms']} ms, model time"
    )
    for name, figures in summary["pools"].items():
        table.add_row(f"{name} (live)", *_cells(figures))
    table.add_section()
    for percent, figures in summary["replayed"].items():
        table.add_row(f"fixed {percent} % (replayed)", *_cells(figures))
    console.print(table)
    for name, figures in summary["pools"].items():
        moved = ", ".join(f"{kind.replace('_', ' ')} {size / 2**30:.1f} GiB" for kind, size in figures["bytes"].items())
        reasons = ", ".join(f"{reason} {count}" for reason, count in figures["decisions"].items())
        console.print(f"{name}: bytes moved: {moved}; {figures['moves']} split moves; decisions: {reasons}", soft_wrap=True)
    for line in verdict(summary):
        console.print(line, soft_wrap=True, highlight=False)


def verdict(summary: dict[str, Any]) -> list[str]:
    """Return what the figures come to, in sentences; also when they are not flattering."""
    replayed, pools = summary["replayed"], summary["pools"]
    lines = []
    phases = ", ".join(f"{name} {best_split(replayed, name)} %" for name in summary["phases"])
    best = best_split(replayed)
    lines.append(f"Best fixed split in hindsight: {best} % over the whole run; of each half alone: {phases}.")
    adaptive, static, hindsight = (f["p99_ms"] for f in (pools["adaptive"], pools["static"], replayed[str(best)]))
    if None not in (adaptive, static, hindsight):
        lines.append(
            f"Adaptive P99 {adaptive:.0f} ms: {_against(adaptive, static)} the pool that stays at 50 %, "
            f"{_against(adaptive, hindsight)} the best fixed split ({best} %)."
        )
    hits = ", ".join(f"{name} {_number(pool['affinity_percent'], ' %', digits=2)}" for name, pool in pools.items())
    way = f"HAProxy {summary['gateway']}" if summary["gateway"] else "no gateway (no HAProxy is installed; --gateway unpacks one)"
    lines.append(f"Affinity: through {way}, answers by the instance that the table names: {hits}.")
    wall = summary["health"]
    lag = f"{wall['lag_p99_ms']:.1f} ms at P99 (limit {LAG_LIMIT_MS:.0f} ms), {wall['lag_max_ms']:.1f} ms at most"
    if summary["reliable"]:
        lines.append(f"Reliable: requests were sent late by {lag}; none failed.")
    else:
        lines.append(
            f"NOT RELIABLE: requests were sent late by {lag}; {wall['failed']} failed. "
            + ("The logs say of whom." if wall["failed"] else "Run it again on a quieter machine.")
        )
    return lines


def _against(ours: float, theirs: float) -> str:
    change = 100.0 * (ours / theirs - 1.0)
    if abs(change) < 0.5:
        return "level with"
    return f"{abs(change):.0f} % {'below' if change < 0 else 'above'}"


def _cells(figures: dict[str, Any]) -> list[str]:
    return [
        _number(figures["p50_ms"]),
        _number(figures["p99_ms"]),
        _number(figures["slo_percent"], " %", digits=2),
        _number(figures["kv_hit_percent"], " %"),
        _number(figures["emb_hit_percent"], " %"),
        _number(figures["utilisation_percent"], " %"),
    ]


def _number(value: float | None, unit: str = "", *, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
