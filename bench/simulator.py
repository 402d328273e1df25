"""Speed and fidelity of the fleet in virtual time: 32 instances, a million users, ten million rows, about 2 800 rows a request.

Each level's requests per second of processor time, its memory, and its error against the exact level on the same requests;
beside each error stands that of the exact level with another seed, since an error below that is chance. The baseline of the
speeds is the Python model of one instance. Every level runs in a process of its own, so that memory is its own too.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

from bench import simulator_site as site
from bench.report import Result, publish, single, summarise
from bench.simulator_site import Size
from simulator.fleet.config import Level

FULL = Size(instances=32, requests=2_000_000, runs=3, compared_instances=32, compared=256_000, drifting=60_000, core=4000)
PROCESSES = 2
QUICK = Size(instances=32, requests=200_000, runs=1, compared_instances=2, compared=16_000, drifting=8_000, core=500)
SPEED_GOALS = {Level.SAMPLED: 2.0, Level.REDUCED: 10.0}
DRIFT_PERCENT_PER_HOUR = 10_000.0
MEMORY_GOAL_MIB = 500.0
HIT_GOAL = 0.001
P99_GOAL_PERCENT = 0.5


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    size = QUICK if quick else FULL
    core = _alone(site.core_speed, size, seed)
    results = [single("Python model of one instance, one row in 64", core / 1e6, "M requests/s")]
    for level in (Level.REDUCED, Level.SAMPLED, Level.SAMPLED_64):
        results += _speeds(level, _alone(site.speed, level, size, seed), core)
    results += _processes(_alone(site.in_processes, size, seed, PROCESSES))
    exact = _alone(site.compared, size, seed)
    results.append(single("exact, whole run", exact["exact"]["perSecond"] / 1e6, "M requests/s", baseline=core / 1e6))
    for level in (Level.SAMPLED, Level.SAMPLED_64, Level.REDUCED):
        results += _errors(level, exact)
    results += _drift(_alone(site.drifting, size, seed, DRIFT_PERCENT_PER_HOUR))
    notes = (
        f"errors over {size.compared} requests on {size.compared_instances} instances at {exact['exact']['load']:.0f} % "
        f"utilisation and a row hit ratio of {exact['exact']['hit']:.3f}; their baseline is the exact level with another seed. "
        "Speeds are per second of processor time on one core; a whole run lays requests out by instance, warms caches and "
        "gathers results. The longest way of several processes is what the parent does and an equal share of what its children "
        "do."
    )
    publish("simulator", results, seed=seed, quick=quick, as_json=as_json, notes=notes)


def _alone(measure: Callable[..., Any], *arguments: Any) -> Any:
    """Measure in a fresh process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def _speeds(level: Level, found: dict[str, Any], core: float) -> list[Result]:
    goal = SPEED_GOALS.get(level)
    whole = [value / 1e6 for value in found["whole"]]
    loop = [value / 1e6 for value in found["loop"]]
    # The sampled level keeps its goal with everything around the loop; the reduced one, ten times faster, in the loop.
    in_all = goal if level is Level.SAMPLED else None
    unit = "M requests/s"
    return [
        summarise(f"{level}, serving loop", loop, unit=unit, baseline=core / 1e6, goal=goal, at_least=True),
        summarise(f"{level}, whole run", whole, unit=unit, baseline=core / 1e6, goal=in_all, at_least=True),
        single(f"{level}, peak memory", found["mib"], "MiB", goal=MEMORY_GOAL_MIB),
        single(f"{level}, digests of runs with one seed", found["digests"], "digests", goal=1.0),
    ]


def _processes(found: dict[str, Any]) -> list[Result]:
    one = median(found["one"])
    return [
        summarise(f"sampled-64 in {PROCESSES} processes", found["several"], unit="CPU s on the longest way", baseline=one),
        single(f"digests of runs with one process and with {PROCESSES}", found["digests"], "digests", goal=1.0),
    ]


def _errors(level: Level, found: dict[str, dict[str, float]]) -> list[Result]:
    exact, again, mine = found["exact"], found["again"], found[level.value]
    results = [
        single(
            f"{level}, error of the row hit ratio",
            abs(mine["hit"] - exact["hit"]),
            "hit ratio",
            baseline=abs(again["hit"] - exact["hit"]),
            goal=HIT_GOAL,
        )
    ]
    for name, title, goal in (("p50", "P50", None), ("p99", "P99", P99_GOAL_PERCENT), ("p999", "P99.9", None)):
        error, chance = (100.0 * abs(one[name] / exact[name] - 1.0) for one in (mine, again))
        results.append(single(f"{level}, error of {title}", error, "%", baseline=chance, goal=goal))
    return results


def _drift(found: dict[str, dict[str, float]]) -> list[Result]:
    exact = found["exact"]["hit"]
    name = f"head replaced {DRIFT_PERCENT_PER_HOUR:.0f} % an hour"
    results = [single(f"{name}: hit ratio lost", found["still"]["hit"] - exact, "hit ratio")]
    for level in (Level.SAMPLED, Level.SAMPLED_64, Level.REDUCED):
        error = abs(found[level.value]["hit"] - exact)
        results.append(single(f"{name}: error of {level}", error, "hit ratio", goal=HIT_GOAL))
    return results
