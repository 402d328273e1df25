"""Time of one pick in the router client: the plain look-up, with hot users on top, around a failed instance, and from a raw id.

A pick begins with a user key: the hash that leads to its slot is part of it, the keyed hash of the raw id is shown by itself. The
baseline is a bare look-up of the same keys in a dictionary, in the same loop of the same run. The goal is of the plain path and
of the path with a full table of hot users; what is out of the ordinary may cost more. A pick of a hot user also reads the clock,
as entries end: what these two cost alone is the floor of that path.
"""

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.report import Result, publish, single, summarise
from contract.keys import SLOTS, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from grfleet.client import AsyncClient, FileSource, PoolKey, Router

GOAL_US = 0.3
KEYS, HOT_USERS = 4_000, 100_000
SECRET = b"a key for the benchmark"
DICT, LARGE_DICT = "bare dict look-up", f"bare look-up in a dict of {HOT_USERS}"
FLOOR = f"{LARGE_DICT} and a look at the clock"


@dataclass(frozen=True)
class HotUser:
    """An override as the client takes it."""

    user_key: str
    instance_uid: str
    until_ms: float


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    runs, rounds = (5, 2) if quick else (25, 5)
    rng = random.Random(seed)
    ids = [f"user-{rng.randrange(10**9)}" for _ in range(KEYS)]
    loops = _loops(ids, rng)
    cold = (DICT, LARGE_DICT, f"pick, {HOT_USERS} hot users")
    times: dict[str, list[float]] = {name: [] for name in [*loops, *(f"{each}, cold" for each in cold)]}
    gc.collect()
    gc.disable()  # as timeit does; a collection belongs to no pick
    try:
        for _ in range(runs):
            for name, loop in loops.items():
                first = _microseconds(loop, 1)
                if name in cold:
                    times[f"{name}, cold"].append(first)
                times[name].append(_microseconds(loop, rounds))
    finally:
        gc.enable()
    publish("client", _figures(times) + _tables(rng), seed=seed, quick=quick, as_json=as_json, notes=_NOTES)


_NOTES = (
    f"{KEYS} users in turn, 32 instances unless said otherwise; each figure is the mean of a loop over them, its loop included, "
    f"in processor time. Each loop is run once before it is timed; cold is that first time, after all the others. "
    f"Baseline: {DICT} of the same run"
)
_WITH_GOAL = ("pick, slots only", "pick, slots only, 1000 instances", f"pick, {HOT_USERS} hot users")


def _figures(times: Mapping[str, Sequence[float]]) -> list[Result]:
    bare = sorted(times[DICT])[len(times[DICT]) // 2]
    return [
        summarise(name, values, unit="us", baseline=None if name == DICT else bare, goal=GOAL_US if name in _WITH_GOAL else None)
        for name, values in times.items()
    ]


def _loops(ids: Sequence[str], rng: random.Random) -> dict[str, Callable[[], None]]:
    keys = [user_key(SECRET, each) for each in ids]
    bare = {key: number for number, key in enumerate(keys)}
    large_bare = {user_key(SECRET, f"other {n}"): n for n in range(HOT_USERS - KEYS)} | bare
    small, large = table_of(32, rng), table_of(1000, rng)

    def router(table: RoutingTable, *, hot: int = 0, failed: bool = False) -> Router:
        made = Router()
        made.accept(table)
        names = [user_key(SECRET, f"hot {n}") for n in range(hot - hot // 40)] + keys[: hot // 40]  # most of the keys below
        made.overrides.replace(HotUser(key, table.instances[n % 32].uid, 1e18) for n, key in enumerate(names))
        if failed:
            made.failed(table.instances[0].uid)
        return made

    def picks(using: Router, *, exclude: bool = False) -> Callable[[], None]:
        out = {small.instances[0].name} if exclude else ()

        def loop() -> None:
            pick = using.pick
            if exclude:
                for key in keys:
                    pick(key, exclude=out)
            else:
                for key in keys:
                    pick(key)

        return loop

    def look_ups(of: Mapping[str, int]) -> Callable[[], None]:
        def loop() -> None:
            for key in keys:
                of[key]

        return loop

    def with_clock() -> None:
        now = time.monotonic
        for key in keys:
            large_bare[key]
            now()

    client = AsyncClient(FileSource("never-read"), PoolKey("bench", SECRET))
    client.router.accept(small)

    def from_ids() -> None:
        pick = client.pick
        for each in ids:
            pick(each)

    def hashes() -> None:
        for each in ids:
            user_key(SECRET, each)

    return {
        DICT: look_ups(bare),
        LARGE_DICT: look_ups(large_bare),
        FLOOR: with_clock,
        "pick, slots only": picks(router(small)),
        "pick, slots only, 1000 instances": picks(router(large)),
        f"pick, {HOT_USERS} hot users": picks(router(small, hot=HOT_USERS)),
        "pick, one instance failed": picks(router(small, failed=True)),
        "pick, one instance excluded by the request": picks(router(small), exclude=True),
        "keyed hash of a raw id": hashes,
        "pick from a raw id": from_ids,
    }


def table_of(instances: int, rng: random.Random, *, generation: int = 1) -> RoutingTable:
    """A table whose slots are dealt out by chance."""
    rows = [
        TableInstance(name=f"pod-{n}", uid=f"uid-{n}", address="http://x:1", weight_percent=100, state=InstanceState.READY)
        for n in range(instances)
    ]
    return RoutingTable(generation=generation, instances=rows, slots=pack_slots([rng.randrange(instances) for _ in range(SLOTS)]))


def _tables(rng: random.Random) -> list[Result]:
    """What a new table costs, off the path of picks."""
    router, figures = Router(), []
    for instances in (32, 1000):
        tables = [table_of(instances, rng, generation=router.generation + 2 + n) for n in range(5)]
        taken = []
        for each in tables:
            start = time.thread_time_ns()
            router.accept(each)
            taken.append((time.thread_time_ns() - start) / 1e6)
        figures.append(summarise(f"taking a table over, {instances} instances", taken, unit="ms"))
    hot = [HotUser(user_key(SECRET, f"hot {n}"), "uid-1", 1e18) for n in range(HOT_USERS)]
    start = time.thread_time_ns()
    router.overrides.replace(hot)
    figures.append(single(f"replacing {HOT_USERS} hot users", (time.thread_time_ns() - start) / 1e6, "ms"))
    return figures


def _microseconds(loop: Callable[[], None], rounds: int) -> float:
    """Processor time of this thread, which on a machine of its own is time: a pick waits for nothing."""
    start = time.thread_time_ns()
    for _ in range(rounds):
        loop()
    return (time.thread_time_ns() - start) / (1000.0 * rounds * KEYS)
