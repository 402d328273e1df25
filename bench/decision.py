"""Time of one split decision, hot (in a loop) and cold (ten a second, as an agent really runs it), compiled and with numpy.

The path is what `path.evaluate_one` does: two curves, the argmin over 91 splits, five probes, 31 features, network, clamp. Its
baseline is the bare product of three numpy matrices of the network's size. `decide` is the whole decision around it with all that
is recorded: freezes, trust, burst detector, residual, bounds, dead band, pace; "within decide" is the path's part of that, where
Python is warm by the time it begins, as in an agent. "Nothing" is a compiled call that does nothing: what a cold processor takes
for Python alone.
"""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import msgspec
import numpy as np
from msgspec.structs import replace

from bench.report import Result, publish, summarise
from policies.allocation import core, goals
from policies.allocation.examples import example_inputs, example_model
from policies.allocation.features import FEATURES
from policies.allocation.model_file import TrainedModel
from policies.allocation.path import PathRows, evaluate, evaluate_numpy, evaluate_one
from policies.allocation.strategy import decide
from policies.allocation.types import AllocationIntent, Costs, Curve, DecisionInputs, Strategy

HOT_GOAL_US = {50: 8.0, 99: 10.0}
COLD_GOAL_US = {50: 32.0, 99: 60.0}
PATH, WITHIN, NUMPY = "path, compiled", "path within decide", "path, numpy"
PRODUCT, NOTHING = "matrix product", "nothing"
WORKLOADS = 16
_WARM_UP = 4
INSTANCES = 1000

Call = Callable[[], object]
Timer = Callable[[], float]


@dataclass(frozen=True)
class Route:
    """One thing to time: for each workload, in turn, a timer that does it and returns microseconds."""

    name: str
    timers: Sequence[Timer]


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    rng = np.random.default_rng(seed)
    model = example_model(seed=seed)
    workloads = [example_inputs(emb_alpha=float(alpha)) for alpha in rng.uniform(0.7, 1.1, size=WORKLOADS)]
    routes = _routes(workloads, model)
    runs, hot, cold = (3, 400, 10) if quick else (9, 2000, 100)
    results = _report("hot", [_hot(routes, decisions=hot) for _ in range(runs)], HOT_GOAL_US)
    results += _report("cold at 10/s", [_cold(routes, decisions=cold) for _ in range(3)], COLD_GOAL_US)
    results += _many(workloads, model, runs=runs)
    publish("decision", results, seed=seed, quick=quick, as_json=as_json, notes=_notes())


def _notes() -> str:
    why_not = core.why_not()
    if why_not is not None:
        return f"numpy only: {why_not}"
    return (
        f"goals are of the compiled path; baseline of all: the {PRODUCT} of the same run, hot or cold like the figure; "
        f"niceness {os.getpriority(os.PRIO_PROCESS, 0)} (a negative one is interrupted less on a busy machine)"
    )


def _routes(workloads: Sequence[DecisionInputs], model: TrainedModel) -> list[Route]:
    rows = [rows_of([inputs]) for inputs in workloads]
    routes = [Route(PRODUCT, [timer(_product(model, rows=1))])]
    if core.available():
        routes.append(Route(NOTHING, [timer(core.nothing())]))
        routes.append(Route(PATH, [timer(_one(inputs, model)) for inputs in workloads]))
        routes.append(Route(WITHIN, [within(_decision(inputs, Strategy.LEARNED, model)) for inputs in workloads]))
    routes.append(Route(NUMPY, [timer(_bound(evaluate_numpy, each, model)) for each in rows]))
    for strategy in (Strategy.STATIC, Strategy.MISS_RATIO_CURVE, Strategy.LEARNED):
        calls = [_decision(inputs, strategy, model) for inputs in workloads]
        routes.append(Route(f"decide, {strategy.value}", [timer(call) for call in calls]))
    return routes


def timer(call: Call) -> Timer:
    """Time the whole of a call."""

    def timed() -> float:
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1000.0

    return timed


def within(call: Call) -> Timer:
    """Time what the path takes of a call that decides."""
    spent: list[float] = []

    def measured(emb: Curve, kv: Curve, figures: Sequence[float], model: TrainedModel | None) -> core.Outcome:
        start = time.perf_counter_ns()
        outcome = evaluate_one(emb, kv, figures, model)
        spent.append((time.perf_counter_ns() - start) / 1000.0)
        return outcome

    def timed() -> float:
        vars(goals)["evaluate_one"] = measured
        try:
            call()
        finally:
            vars(goals)["evaluate_one"] = evaluate_one
        return spent.pop()

    return timed


def _bound(function: Callable[..., object], *arguments: object) -> Call:
    return lambda: function(*arguments)


def _one(inputs: DecisionInputs, model: TrainedModel) -> Call:
    emb, kv, _ = _known(inputs)
    return _bound(evaluate_one, emb, kv, figures_of(inputs), model)


def _known(inputs: DecisionInputs) -> tuple[Curve, Curve, Costs]:
    view = inputs.view
    if view.emb is None or view.kv is None or view.costs is None:
        raise ValueError("the example knows both curves and the costs")
    return view.emb, view.kv, view.costs


def figures_of(inputs: DecisionInputs) -> tuple[float, ...]:
    """One row of `PathRows.figures` for the example; what its observation does not say is what an agent at work has."""
    emb, kv, costs = _known(inputs)
    usable = inputs.observation.usable_bytes
    prices = msgspec.structs.astuple(costs)[:8]
    traffic = (kv.size_cv2, 0.55 * usable, 0.5, emb.volatility, kv.volatility, emb.samples, kv.samples, 14.0, 0.7, 0.6)
    return (usable, inputs.observation.granule_bytes, usable // 2, 5.0, 95.0, 10.0, *prices, *traffic, 0.0, 1e6, 0.2)


def rows_of(workloads: Sequence[DecisionInputs]) -> PathRows:
    """The rows of as many instances."""
    curves = [_known(inputs)[:2] for inputs in workloads]
    return PathRows(
        np.stack([emb.capacity_bytes for emb, _ in curves]),
        np.stack([emb.miss_ratio for emb, _ in curves]),
        np.stack([kv.capacity_bytes for _, kv in curves]),
        np.stack([kv.miss_ratio for _, kv in curves]),
        np.array([figures_of(inputs) for inputs in workloads], dtype=np.float64),
    )


def _decision(inputs: DecisionInputs, strategy: Strategy, model: TrainedModel) -> Call:
    intent = inputs.intent or AllocationIntent()
    learned = replace(intent.learned, model_sha256=model.sha256)
    intent = replace(intent, strategy=strategy, learned=learned)
    return _bound(decide, inputs.observation, inputs.view, intent, inputs.state, inputs.now_ms, model)


def _product(model: TrainedModel, *, rows: int) -> Call:
    """The three matrix products of the network and nothing else, into memory that is there."""
    x = np.ones((rows, len(FEATURES)), dtype=np.float32)
    first, second, last = (np.empty((rows, n), dtype=np.float32) for n in (len(model.b1), len(model.b2), 1))
    w1, w2, w3 = (np.ascontiguousarray(w.T) for w in (model.w1, model.w2, model.w3))

    def product() -> None:
        np.dot(x, w1, out=first)
        np.dot(first, w2, out=second)
        np.dot(second, w3, out=last)

    return product


Times = Mapping[str, Sequence[float]]


def _hot(routes: Sequence[Route], *, decisions: int) -> Times:
    """Microseconds of each call, one route after the other; each workload was asked a few times before."""
    gc.collect()
    times: dict[str, list[float]] = {}
    for route in routes:
        for timed in [*route.timers] * _WARM_UP:
            timed()
        timers = cycle(route.timers)
        times[route.name] = [next(timers)() for _ in range(decisions)]
    return times


def _cold(routes: Sequence[Route], *, decisions: int) -> Times:
    """The same with a tenth of a second before each call; the routes take turns, so that all see the same machine."""
    turns = [(route.name, cycle(route.timers)) for route in routes]
    times: dict[str, list[float]] = {route.name: [] for route in routes}
    for _ in range(decisions):
        for name, timers in turns:
            timed = next(timers)
            time.sleep(0.1)
            times[name].append(timed())
    return times


def _report(label: str, runs: Sequence[Times], goals: Mapping[int, float]) -> list[Result]:
    results = []
    judged = (PATH, WITHIN) if core.available() else (NUMPY,)
    for name in runs[0]:
        for q, goal in goals.items():
            values, baseline = ([float(np.percentile(times[each], q)) for times in runs] for each in (name, PRODUCT))
            results.append(
                summarise(
                    f"{name}, {label}, p{q}",
                    values,
                    unit="us",
                    baseline=None if name == PRODUCT else float(np.median(baseline)),
                    goal=goal if name in judged else None,
                )
            )
    return results


def _many(workloads: Sequence[DecisionInputs], model: TrainedModel, *, runs: int) -> list[Result]:
    """Microseconds an instance of a thousand in one call: the operator's look at a whole fleet."""
    rows = rows_of([workloads[i % len(workloads)] for i in range(INSTANCES)])
    multiply = timer(_product(model, rows=INSTANCES))
    product = [multiply() / INSTANCES for _ in range(runs)]
    calls = {PATH: _bound(evaluate, rows, model)} if core.available() else {}
    calls[NUMPY] = _bound(evaluate_numpy, rows, model)
    results = [summarise(f"{PRODUCT}, {INSTANCES} instances in one call", product, unit="us each")]
    for name, call in calls.items():
        each = [timed() / INSTANCES for timed in [timer(call)] * runs]
        baseline = float(np.median(product))
        results.append(summarise(f"{name}, {INSTANCES} instances in one call", each, unit="us each", baseline=baseline))
    return results
