"""The picture of a run: EMB share of each instance and P99 of both pools over time, with the change of regime marked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from grfleet.demo import objects
from grfleet.demo.served import Run
from grfleet.demo.watch import Seen
from simulator.workloads import Workload

BIN_MS = 5_000.0
_COLOURS = {objects.ADAPTIVE: "tab:blue", objects.STATIC: "tab:gray"}


def draw(path: Path, *, history: Sequence[Seen], run: Run, workload: Workload, best_by_phase: dict[str, int]) -> bool:
    """Write the picture as PNG; False when matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (splits, latencies) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6))
    for name in sorted({row.instance for row in history}):
        rows = [row for row in history if row.instance == name and row.accepted_percent is not None]
        times = [row.unix_s - run.started_unix_s for row in rows]
        splits.step(times, [row.accepted_percent for row in rows], where="post", color=_COLOURS[rows[0].pool], linewidth=1.2)
    for phase in workload.phases:
        if phase.name in best_by_phase:
            level = best_by_phase[phase.name]
            splits.hlines(level, phase.start_ms / 1e3, phase.end_ms / 1e3, colors="tab:green", linestyles="dashed")
    splits.set_ylabel("EMB share in force, % of usable\n(dashed: best fixed split of the half)", fontsize=8)
    splits.set_ylim(0, 100)
    for pool in run.pools:
        centres, p99s = _p99_by_time([(s.arrival_ms, s.latency_ms) for s in pool.served if not s.error])
        latencies.plot(centres, p99s, color=_COLOURS.get(pool.pool), label=pool.pool)
    latencies.set_ylabel(f"P99 of {BIN_MS / 1e3:.0f} s, ms (model time)", fontsize=8)
    latencies.set_xlabel("trace time, s")
    latencies.set_ylim(bottom=0)
    latencies.legend()
    for axis in (splits, latencies):
        axis.axvline(workload.phases[0].end_ms / 1e3, color="black", linewidth=0.8)
        axis.axvspan(0.0, workload.measured_from_ms / 1e3, color="0.92")
        axis.set_xlim(0.0, workload.duration_ms / 1e3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _p99_by_time(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    arrivals, latencies = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    centres, p99s = [], []
    for start in np.arange(0.0, float(arrivals.max()) if len(points) else 0.0, BIN_MS):
        inside = latencies[(arrivals >= start) & (arrivals < start + BIN_MS)]
        if len(inside) >= 20:
            centres.append((start + BIN_MS / 2) / 1e3)
            p99s.append(float(np.percentile(inside, 99.0)))
    return centres, p99s
