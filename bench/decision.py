"""Time of one split decision, hot (in a loop) and cold (ten a second, as an agent really runs it).

The figure covers the full path: freezes, both curves, the argmin over the splits, bounds, dead band, pace and the record. The
baseline of the same run is strategy `Static`, which walks the same path without curves and argmin. The goals are those of the
compiled core; what runs today is the numpy reference.
"""

import gc
import statistics
import time
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from bench.report import Result, publish, summarise
from policies.allocation.examples import example_inputs
from policies.allocation.strategy import decide
from policies.allocation.types import AllocationIntent, DecisionInputs, Strategy

STRATEGIES = (Strategy.STATIC, Strategy.HILL_CLIMB, Strategy.MISS_RATIO_CURVE)
HOT_GOAL_US = {50: 8.0, 99: 10.0}
COLD_GOAL_US = {50: 32.0, 99: 60.0}


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    rng = np.random.default_rng(seed)
    workloads = [example_inputs(emb_alpha=float(alpha)) for alpha in rng.uniform(0.7, 1.1, size=16)]
    results: list[Result] = []
    runs, hot, cold = (3, 400, 30) if quick else (9, 2000, 300)
    results += _measure("hot", workloads, runs=runs, decisions=hot, pause_s=0.0, goals=HOT_GOAL_US)
    results += _measure("cold at 10/s", workloads, runs=3, decisions=cold // 3, pause_s=0.1, goals=COLD_GOAL_US)
    publish(
        "decision",
        results,
        seed=seed,
        quick=quick,
        as_json=as_json,
        notes="numpy reference; the goals are those of the compiled core, which is not built yet",
    )


def _measure(
    label: str, workloads: Sequence[DecisionInputs], *, runs: int, decisions: int, pause_s: float, goals: dict[int, float]
) -> list[Result]:
    quantiles: dict[tuple[Strategy, int], list[float]] = {(s, q): [] for s in STRATEGIES for q in goals}
    for _ in range(runs):
        for strategy in STRATEGIES:
            times = _times_us(workloads, strategy, decisions=decisions, pause_s=pause_s)
            for q in goals:
                quantiles[strategy, q].append(float(np.percentile(times, q)))
    results = []
    for strategy in STRATEGIES:
        for q, goal in goals.items():
            is_baseline = strategy is Strategy.STATIC
            results.append(
                summarise(
                    f"{strategy.value}, {label}, p{q}",
                    quantiles[strategy, q],
                    unit="us",
                    baseline=None if is_baseline else statistics.median(quantiles[Strategy.STATIC, q]),
                    goal=goal if strategy is Strategy.MISS_RATIO_CURVE else None,
                )
            )
    return results


def _times_us(workloads: Sequence[DecisionInputs], strategy: Strategy, *, decisions: int, pause_s: float) -> list[float]:
    prepared = [_with_strategy(inputs, strategy) for inputs in workloads]
    times = []
    gc.collect()
    for index in range(decisions):
        i = prepared[index % len(prepared)]
        if pause_s:
            time.sleep(pause_s)
        start = time.perf_counter_ns()
        decide(i.observation, i.view, i.intent, i.state, i.now_ms)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def _with_strategy(inputs: DecisionInputs, strategy: Strategy) -> DecisionInputs:
    intent = inputs.intent or AllocationIntent()
    return replace(inputs, intent=replace(intent, strategy=strategy))
