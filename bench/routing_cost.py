"""What a request costs the gateway's HAProxy, part by part, beside plain consistent hash of the same run.

Variants take turns in short slices of a closed loop, so that a busy neighbour falls on all of them; a share is of the pair of one
round. The primary figure is processor time of HAProxy a request, which waits for no neighbour; throughput stands beside it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from bench.report import Result, single, summarise
from bench.routing_rig import Proxy, proxy
from bench.routing_site import Program, Window, instances, load
from bench.routing_variants import (
    FLOOR_KEY,
    FLOOR_USERS,
    FLOOR_WHOLE,
    FLOORS,
    KEYED,
    LACKS,
    NAMED,
    OVERRIDES,
    PLAIN,
    TABLES,
    WHOLE,
)
from bench.routing_world import Crowd, Tables, crowd_of, owners

CONNECTIONS = 64
GOAL_OVERRIDES, GOAL_WHOLE = 0.95, 0.85
BY_CALLER = "the whole gateway, keys made by callers"
SMALL_PAGES = "plain consistent hash, in small pages as HAProxy starts by itself"
_SMALL_BYTES = 16_384
SMALLER = {name: f"{name}, requests of at most 16 KiB tried again" for name in (NAMED, WHOLE)}
_WARM_UP_S = 0.2


@dataclass(frozen=True)
class Slice:
    """What one turn of one variant gave."""

    cpu_us: float
    rate: float
    window: Window


def measured(running: Proxy, users: Path, order: Path, *, seconds: float, rate: int = 0, header: str = "x-user-id") -> Slice:
    """Load a proxy for a while and count."""
    with load(users.parent, running.port, users, order, connections=CONNECTIONS, rate=rate, header=header) as asking:
        time.sleep(_WARM_UP_S)
        asking.window("measured")
        before = running.cpu_ns()
        time.sleep(seconds)
        spent = running.cpu_ns() - before
        window = asking.end()["measured"]
    return Slice(spent / 1000.0 / max(1, window.ok + window.wrong), window.rate, window)


def expectations(crowd: Crowd, tables: Tables) -> tuple[dict[str, Path], Mapping[str, bool]]:
    """The expectations of each variant, and whether its tables are to be filled."""
    table = tables.next()
    hashed = crowd.expect("hashed", owners(crowd, None, overrides=False))
    plain = crowd.expect("plain", owners(crowd, None, overrides=False), keyed=False)
    some = crowd.expect("overrides", owners(crowd, None))
    whole = crowd.expect("whole", owners(crowd, table))
    files = {PLAIN: plain, NAMED: plain, KEYED: hashed, OVERRIDES: some, TABLES: whole, WHOLE: whole}
    files |= {FLOOR_KEY: plain, FLOOR_USERS: hashed, FLOOR_WHOLE: plain}
    return files, {name: name not in (PLAIN, NAMED, KEYED, FLOOR_KEY) for name in files}


def ladder(
    program: Program, folder: Path, crowd: Crowd, tables: Tables, *, lives: int, rounds: int, seconds: float
) -> list[Result]:
    """Every variant in turn, and what each is beside the plain one.

    Where its memory happens to lie makes a process up to a tenth faster or slower: each variant is started `lives` times.
    """
    files, filled = expectations(crowd, tables)
    files[SMALL_PAGES] = files[PLAIN]
    files |= {smaller: files[name] for name, smaller in SMALLER.items()}
    files[BY_CALLER] = crowd.expect("caller", owners(crowd, tables.next()), id_is_key=True)
    slices: dict[str, list[Slice]] = {name: [] for name in (*LACKS, BY_CALLER, SMALL_PAGES, *SMALLER.values(), *FLOORS)}
    for life in range(lives):
        with contextlib.ExitStack() as stack:
            rigs = {
                name: stack.enter_context(
                    proxy(program, folder / f"v{life}{n}", crowd, tables.next(), name=name, fill=filled[name])
                )
                for n, name in enumerate((*LACKS, *FLOORS))
            }
            for name, smaller in SMALLER.items():
                where = folder / f"r{life}{len(rigs)}"
                rigs[smaller] = stack.enter_context(
                    proxy(program, where, crowd, tables.next(), name=name, fill=filled[name], retriable_bytes=_SMALL_BYTES)
                )
            rigs[BY_CALLER] = rigs[WHOLE]
            small = proxy(program, folder / f"s{life}", crowd, tables.next(), name=PLAIN, huge_pages=False)
            rigs[SMALL_PAGES] = stack.enter_context(small)
            for turn in range(rounds):
                for name in list(rigs) if turn % 2 == 0 else reversed(rigs):
                    header = "x-gr-user-key" if name == BY_CALLER else "x-user-id"
                    slices[name].append(measured(rigs[name], files[name], crowd.order, seconds=seconds, header=header))
    return [*_costs(slices), *_shares(slices), *_faults("the closed loops", [s.window for each in slices.values() for s in each])]


def _costs(slices: Mapping[str, Sequence[Slice]]) -> list[Result]:
    plain = median(each.cpu_us for each in slices[PLAIN])
    rows = [
        summarise(
            f"CPU of HAProxy a request: {name}",
            [each.cpu_us for each in found],
            unit="us",
            baseline=None if name == PLAIN else plain,
        )
        for name, found in slices.items()
    ]
    names = list(LACKS)
    for less, more in pairwise(names):
        each = [b.cpu_us - a.cpu_us for a, b in zip(slices[less], slices[more], strict=True)]
        rows.append(summarise(f"  of which {more.removeprefix('+ ')}", each, unit="us", baseline=plain))
    return rows


_PAIRS = (
    ("overrides only against consistent hash with the same headers", KEYED, OVERRIDES, GOAL_OVERRIDES),
    ("the whole against plain consistent hash that names the instance", NAMED, WHOLE, GOAL_WHOLE),
    ("the whole against the barest plain consistent hash", PLAIN, WHOLE, None),
    ("the whole against the same, in small pages as HAProxy starts by itself", SMALL_PAGES, WHOLE, None),
    ("the whole, keys made by callers, against plain consistent hash that names the instance", NAMED, BY_CALLER, None),
    ("the whole against the same, of requests of at most 16 KiB tried again", SMALLER[NAMED], SMALLER[WHOLE], None),
    ("a floor of overrides only: the look-up for nothing", KEYED, FLOOR_USERS, None),
    ("a floor of the whole: the keyed hash for nothing", NAMED, FLOOR_KEY, None),
    ("a floor of the whole: the keyed hash and both look-ups for nothing", NAMED, FLOOR_WHOLE, None),
)


def _shares(slices: Mapping[str, Sequence[Slice]]) -> list[Result]:
    rows = []
    for name, base, other, goal in _PAIRS:
        pairs = list(zip(slices[base], slices[other], strict=True))
        by_cpu = [a.cpu_us / b.cpu_us for a, b in pairs]
        by_rate = [b.rate / a.rate for a, b in pairs]
        rows.append(summarise(f"share of throughput by CPU: {name}", by_cpu, unit="share", goal=goal, at_least=True))
        rows.append(summarise(f"share of throughput, saturated: {name}", by_rate, unit="share", goal=goal, at_least=True))
    rates = {name: median(each.rate for each in slices[name]) for name in (PLAIN, WHOLE)}
    rows.append(
        summarise("requests a second, saturated: the whole", [s.rate for s in slices[WHOLE]], unit="1/s", baseline=rates[PLAIN])
    )
    return rows


def _faults(where: str, windows: Sequence[Window]) -> list[Result]:
    return [
        single(
            f"{where}: answers of another instance, of {sum(w.sent for w in windows)}", sum(w.wrong for w in windows), "", goal=0
        ),
        single(f"{where}: requests that failed", sum(w.failed for w in windows), "", goal=0),
    ]


def latencies(
    program: Program, folder: Path, crowd: Crowd, tables: Tables, *, rounds: int, seconds: float, rate: int
) -> list[Result]:
    """An open loop at a fixed rate: straight at an instance, through plain consistent hash, through the whole."""
    files, filled = expectations(crowd, tables)
    table = tables.next()
    direct = crowd.expect("direct", [0] * len(crowd.ids), keyed=False)
    found: dict[str, list[Window]] = {"straight": [], PLAIN: [], WHOLE: []}
    with contextlib.ExitStack() as stack:
        rigs = {
            name: stack.enter_context(proxy(program, folder / f"l{n}", crowd, table, name=name, fill=filled[name]))
            for n, name in enumerate((PLAIN, WHOLE))
        }
        for _ in range(rounds):
            with load(folder, tables.ports[0], direct, crowd.order, connections=CONNECTIONS, rate=rate) as asking:
                time.sleep(_WARM_UP_S)
                asking.window("measured")
                time.sleep(seconds)
                found["straight"].append(asking.end()["measured"])
            for name, running in rigs.items():
                found[name].append(measured(running, files[name], crowd.order, seconds=seconds, rate=rate).window)
    rows = []
    quantiles: dict[str, Callable[[Window], float]] = {"p50": lambda w: w.p50_us, "p99": lambda w: w.p99_us}
    for what, get in quantiles.items():
        of = {name: [get(w) for w in windows] for name, windows in found.items()}
        base = {name: median(values) for name, values in of.items()}
        rows.append(summarise(f"{what} at {rate}/s: straight at an instance", of["straight"], unit="us"))
        rows.append(summarise(f"{what} at {rate}/s: plain consistent hash", of[PLAIN], unit="us", baseline=base["straight"]))
        rows.append(summarise(f"{what} at {rate}/s: the whole", of[WHOLE], unit="us", baseline=base[PLAIN]))
        added = [b - a for a, b in zip(of[PLAIN], of[WHOLE], strict=True)]
        rows.append(summarise(f"{what} at {rate}/s: added to plain consistent hash", added, unit="us", baseline=base[PLAIN]))
    return [*rows, *_faults(f"{rate}/s", [w for each in found.values() for w in each])]


def many(
    program: Program, folder: Path, crowd: Crowd, tables: Tables, *, count: int, rounds: int, seconds: float, seed: int
) -> list[Result]:
    """HAProxy looks a server up by name from the first one on: what that costs with many of them."""
    child, ports = instances(folder, 0, count)
    with child, contextlib.ExitStack() as stack:
        large_tables = Tables(dict(enumerate(ports)))
        (folder / "many").mkdir()
        large = crowd_of(
            folder / "many",
            hot=crowd.hot,
            cold=len(crowd.ids) - crowd.hot,
            instances=count,
            rng=np.random.default_rng(seed),
        )
        rigs: dict[tuple[int, str], Proxy] = {}
        files, orders = {}, {}
        for n, (size, who, of) in enumerate(((len(tables.ports), crowd, tables), (count, large, large_tables))):
            for name in (PLAIN, WHOLE):
                wanted, filled = expectations(who, of)
                running = proxy(
                    program, folder / f"m{n}{len(rigs)}", who, of.next(), name=name, fill=filled[name], check_interval_ms=60_000
                )
                rigs[size, name] = stack.enter_context(running)
                files[size, name], orders[size, name] = wanted[name], who.order
        slices: dict[tuple[int, str], list[Slice]] = {each: [] for each in rigs}
        for _ in range(rounds):
            for each, running_one in rigs.items():
                slices[each].append(measured(running_one, files[each], orders[each], seconds=seconds))
    few = len(tables.ports)
    rows = [
        summarise(
            f"CPU of HAProxy a request with {count} instances: {label}",
            [s.cpu_us for s in slices[count, name]],
            unit="us",
            baseline=median(s.cpu_us for s in slices[few, name]),
        )
        for label, name in (("plain consistent hash", PLAIN), ("the whole", WHOLE))
    ]
    return [*rows, *_faults(f"{count} instances", [s.window for each in slices.values() for s in each])]
