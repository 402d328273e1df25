"""What a pick through Envoy costs: processor time of the picker for a request, and of Envoy, beside gRPC for Python with no pick.

A real Envoy (one worker) asks each server in turn, in one run and over one set of toy instances; the caller checks in each answer
that the owner of the user's slot gave it. Processor time is the scheduler's, of all threads of a process, so what the caller and
the other processes of a machine do is not in it; the way to the answer is, and is to be compared with that of the same run only.
"""

import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.picker_site import INSTANCES, Site, Slice, Way
from bench.report import Result, publish, single, summarise
from testbed.envoy import VERSION, ensure_envoy

GOAL_US = 100.0
CALLERS = 16
BODY_BYTES = 20_000
ENVOY_ALONE = Way("Envoy's own hash, no picker", "", owned=False)
NOTHING = Way("grpc.aio that does nothing", "grpc.aio, nothing, asyncio", owned=False)
PICKER = Way("picker", "picker")
WAYS = (
    ENVOY_ALONE,
    NOTHING,
    Way("grpc.aio that does nothing, uvloop", "grpc.aio, nothing, uvloop", owned=False),
    Way("the same picker on grpc.aio", "grpc.aio, picker, asyncio"),
    PICKER,
    Way("picker, not told of answers", "picker", answers=False),
    Way(f"picker, bodies of {BODY_BYTES} bytes through it", "picker", body_bytes=BODY_BYTES),
)


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    slices = asyncio.run(_measure(quick, random.Random(seed)))
    publish("picker", figures(slices), seed=seed, quick=quick, as_json=as_json, notes=_NOTES)


_NOTES = (
    f"Envoy {VERSION}, {INSTANCES} instances, 4000 users; {CALLERS} kept connections in turn unless it says one. Processor time "
    f"of a server is that of its whole process. Baseline: {NOTHING.name}, for Envoy {ENVOY_ALONE.name}, of the same run"
)
Taken = dict[tuple[str, int], list[Slice]]


async def _measure(quick: bool, rng: random.Random) -> Taken:
    rounds, requests = (2, 400) if quick else (7, 2000)
    taken: Taken = {(way.name, callers): [] for way in WAYS for callers in (CALLERS, 1)}
    with tempfile.TemporaryDirectory(prefix="bench-picker-") as folder:
        site = Site(ensure_envoy(), Path(folder), WAYS)
        rng.shuffle(site.users)
        try:
            await site.start()
            for _ in range(rounds):
                for way in WAYS:
                    taken[way.name, CALLERS].append(await site.slice(way, requests=requests, callers=CALLERS))
                    taken[way.name, 1].append(await site.slice(way, requests=requests // 4, callers=1))
        finally:
            site.stop()
    return taken


def figures(taken: Taken) -> list[Result]:
    """Return the figures of all slices."""
    results: list[Result] = []
    nothing = statistics.median(each.server_us for each in taken[NOTHING.name, CALLERS])
    for way in WAYS:
        if way.server:
            goal = GOAL_US if way is PICKER else None
            values = [each.server_us for each in taken[way.name, CALLERS]]
            results.append(summarise(f"{way.name}: CPU a request", values, unit="us", baseline=nothing, goal=goal))
    alone = [each.server_us for each in taken[NOTHING.name, 1]]
    for way in (NOTHING, PICKER):
        values = [each.server_us for each in taken[way.name, 1]]
        results.append(
            summarise(f"{way.name}: CPU a request, one connection", values, unit="us", baseline=statistics.median(alone))
        )
    results += _of_envoy(taken)
    wrong = sum(each.wrong for slices in taken.values() for each in slices)
    return [*results, single("answers by another than the owner, or failed", wrong, "", goal=0)]


def _of_envoy(taken: Taken) -> list[Result]:
    results = []
    base = statistics.median(each.envoy_us for each in taken[ENVOY_ALONE.name, CALLERS])
    for way in WAYS:
        values = [each.envoy_us for each in taken[way.name, CALLERS]]
        results.append(summarise(f"{way.name}: CPU of Envoy a request", values, unit="us", baseline=base))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        base = statistics.median(_quantiles(taken[ENVOY_ALONE.name, 1], share))
        for way in WAYS:
            values = _quantiles(taken[way.name, 1], share)
            results.append(summarise(f"{way.name}: {name}, one connection", values, unit="ms", baseline=base))
    return results


def _quantiles(slices: Sequence[Slice], share: float) -> list[float]:
    return [sorted(each.ms)[min(len(each.ms) - 1, int(share * len(each.ms)))] for each in slices]
