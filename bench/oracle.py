"""The oracle: seconds for 91 splits, and how far its figures and choices are from replays at each split.

The baseline of the speed is the fleet simulator at its default level, replaying the same log at a few splits in the same run and
taken times 91. Errors and regret are against such replays, which have a noise of their own: replays with another seed say how
much, and no error can be told from that.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.report import Result, publish, single, summarise
from simulator.core.physics import ServiceModel
from simulator.fleet.config import FleetConfig, Level, RefillMode
from simulator.fleet.policies import FleetObservation
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate
from simulator.oracle.check import users_found
from simulator.oracle.result import OracleResult
from simulator.oracle.run import SPLITS, best_splits, split_bytes
from simulator.request_log import RequestLog
from simulator.workloads.regimes import burst, steady, trend
from simulator.workloads.traffic import Traffic

WINDOW_MS = 30_000.0
COMPARED = tuple(range(5, 96, 10))
BASELINE_SPLITS = (20, 50, 80)
PER_INSTANCE = 60.0
REGIMES = {"steady": steady, "trend": trend, "burst": burst}

#: A small HSTU on a slow device behind a slow link: half busy at 60 requests a second, and both caches matter to it.
SERVICE = ServiceModel(
    layers=2,
    width=256,
    flops_per_second=12e12,
    row_bytes=512,
    link_bytes_per_second=4_000_000_000,
    gather_efficiency=0.55,
    gather_fixed_ms=0.05,
    base_ms=0.1,
)


@dataclass(frozen=True)
class Plan:
    """A split policy that follows a list of EMB bytes, one a window."""

    emb_bytes: tuple[int, ...]
    interval_ms: float = WINDOW_MS

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        window = min(round(now_ms / self.interval_ms), len(self.emb_bytes) - 1)
        return [self.emb_bytes[window]] * len(observations)


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    results = [*_speed(quick=quick, seed=seed)]
    for name in ("trend",) if quick else tuple(REGIMES):
        results += _against_replays(name, quick=quick, seed=seed)
    results += _plan(quick=quick, seed=seed)
    publish(
        "oracle",
        results,
        seed=seed,
        quick=quick,
        as_json=as_json,
        notes=(
            "CPU seconds of one process. Baselines: of seconds, replays at three splits in the same run, times 91 / 3; of errors"
            " and regret, one replay against another with another seed; of the plan's promise, that of the static split."
        ),
    )


def _fleet(instances: int) -> FleetConfig:
    return FleetConfig(instances=instances, pool_bytes=16 << 30, emb_percent=50, service=SERVICE, slo_ms=50.0)


def _workload(name: str, *, instances: int, seconds: float, seed: int) -> RequestLog:
    traffic = Traffic(seed=seed, duration_s=seconds, requests_per_second=PER_INSTANCE * instances, instances=instances)
    return REGIMES[name](traffic)[0]


def _look(log: RequestLog, config: FleetConfig, *, seed: int, workers: int = 1) -> OracleResult:
    return best_splits(log, config, window_ms=WINDOW_MS, seed=seed, workers=workers)


def _speed(*, quick: bool, seed: int) -> list[Result]:
    instances, seconds, runs = (4, 120.0, 1) if quick else (32, 540.0, 3)
    config, results = _fleet(instances), []
    for name in REGIMES:
        log = _workload(name, instances=instances, seconds=seconds, seed=seed)
        log.digest  # noqa: B018  computed once a log, and not the oracle's work
        _look(log.rows(0, 2_000), config, seed=seed)
        each = [_cpu_seconds(_look, log, config, seed=seed) / len(log) * 1e6 for _ in range(runs)]
        simulate(log.rows(0, 2_000), config, level=Level.SAMPLED, seed=seed)
        replays = 0.0
        for percent in BASELINE_SPLITS:
            at = replace(config, emb_percent=percent)
            replays += _cpu_seconds(simulate, log, at, level=Level.SAMPLED, seed=seed)
        baseline = replays * len(SPLITS) / len(BASELINE_SPLITS) / len(log) * 1e6
        results.append(summarise(f"{name}: 91 splits, per 1 M requests", each, unit="CPU s", baseline=baseline, goal=2.0))
    return results


def _cpu_seconds(work: Callable[..., object], *arguments: object, **named: object) -> float:
    start = time.process_time()
    work(*arguments, **named)
    return time.process_time() - start


def _against_replays(name: str, *, quick: bool, seed: int) -> list[Result]:
    """Compare P99 and choices by window with replays at every tenth split, and those with replays of another seed."""
    instances, seconds = (2, 240.0) if quick else (4, 600.0)
    log, config = _workload(name, instances=instances, seconds=seconds, seed=seed + 1), _fleet(instances)
    found = best_splits(log, config, window_ms=WINDOW_MS, seed=seed, splits=COMPARED)
    windows, counted = found.count.shape[1], found.counted
    window = (log.arrival_ms // WINDOW_MS - log.arrival_ms[0] // WINDOW_MS).astype(np.int64)
    in_hbm, _ = users_found(log, config, splits=COMPARED)
    tables = np.zeros((2, windows, len(COMPARED)))
    otherwise = 0
    for place, percent in enumerate(COMPARED):
        for number in range(2):
            at = replace(config, emb_percent=percent)
            replayed = simulate(log, at, level=Level.SAMPLED, seed=seed + 10 * number)
            tables[number, :, place] = _p99_by_window(replayed, window, windows)
        otherwise += int(np.count_nonzero(in_hbm[place] != (replayed.kv_hit_tokens > 0)))
    ours, first, second = found.fleet_p99_ms[counted], tables[0, counted], tables[1, counted]
    return [
        single(f"{name}: P99 by window and split, error", _error(ours, first), "%", baseline=_error(second, first), goal=1.0),
        single(f"{name}: users found otherwise than in a replay", otherwise / in_hbm.size * 1e6, "per 1 M", goal=0.0),
        single(
            f"{name}: regret of the best split by window", _regret(ours, first), "%", baseline=_regret(second, first), goal=1.0
        ),
        single(f"{name}: noise floor that the oracle states", found.noise.regret_percent, "%"),
        single(f"{name}: gain of free moves over the best static split", found.fleet.gain_percent, "%"),
    ]


def _p99_by_window(replayed: FleetResult, window: NDArray[np.int64], windows: int) -> NDArray[np.float64]:
    latency = replayed.latency_ms
    return np.array([np.percentile(latency[window == number], 99.0) for number in range(windows)])


def _error(these: NDArray[np.float64], those: NDArray[np.float64]) -> float:
    return float(100.0 * np.abs(these / those - 1.0).mean())


def _regret(chosen_by: NDArray[np.float64], judged_by: NDArray[np.float64]) -> float:
    """Mean of what the splits that look best in one table cost in the other, over the best there, in percent."""
    best = chosen_by.argmin(axis=1)
    return float(100.0 * (judged_by[np.arange(len(best)), best] / judged_by.min(axis=1) - 1.0).mean())


def _plan(*, quick: bool, seed: int) -> list[Result]:
    """Replay the plan of moves that the oracle promises something for, and the best static split beside it."""
    instances, seconds = (2, 240.0) if quick else (4, 600.0)
    log, results = _workload("trend", instances=instances, seconds=seconds, seed=seed + 2), []
    for refill in (RefillMode.LAZY, RefillMode.THROTTLED):
        config = replace(_fleet(instances), refill=refill)
        found = _look(log, config, seed=seed)
        emb_bytes = split_bytes(config, SPLITS)[0]
        window = (log.arrival_ms // WINDOW_MS - log.arrival_ms[0] // WINDOW_MS).astype(np.int64)
        weight = found.count.sum(axis=0) * found.counted
        replayed = {}
        for name, places in (("planned", found.fleet.planned), ("static", np.full(len(weight), found.fleet.static))):
            plan = Plan(tuple(int(emb_bytes[place]) for place in np.where(places >= 0, places, found.fleet.static)))
            first = replace(config, emb_percent=SPLITS[places[0]])
            p99 = _p99_by_window(simulate(log, first, level=Level.SAMPLED_64, split=plan, seed=seed), window, len(weight))
            replayed[name] = float(np.average(p99, weights=weight))
        gain = 100.0 * (1.0 - replayed["planned"] / replayed["static"])
        results += [
            single(f"trend, {refill}: gain of the planned moves, promised", found.fleet.planned_gain_percent, "%"),
            single(f"trend, {refill}: gain of the planned moves, replayed", gain, "%"),
            single(
                f"trend, {refill}: promise against replay of the plan",
                100.0 * abs(found.fleet.planned_ms / replayed["planned"] - 1.0),
                "%",
                baseline=100.0 * abs(found.fleet.static_ms / replayed["static"] - 1.0),
                goal=3.0,
            ),
        ]
    return results
