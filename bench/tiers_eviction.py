"""Eviction on the conversation trace: policies beside the known table, our policy beside farthest use and the bound."""

from functools import cache
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from bench.report import Result, single
from bench.tiers_known import BOUND, EVICTION, WINDOWS
from simulator.tiers.bounds import Bounds, bounds
from simulator.tiers.replaying import Replayed, replay
from simulator.tiers.visits import Visits, visits_of_events
from simulator.traces import load_mooncake, user_events

TRACE = Path(__file__).resolve().parent.parent / "traces" / "mooncake_conversation.jsonl"
BYTES_PER_TOKEN = 16_384
OWN_WINDOWS = (0, 1000, None)
RIVALS = {"look-ahead": "look-ahead", "size-aware-balanced": "balanced", "size-aware": "size-aware"}
SEEN = 0.6


@cache
def conversation() -> Visits:
    """The trace as visits; a state is the prompt's tokens at 16 KiB each."""
    return visits_of_events(user_events(load_mooncake(TRACE)), bytes_per_token=BYTES_PER_TOKEN)


@cache
def _replayed(share: float, policy: str, window: int | None) -> Replayed:
    visits = conversation()
    return replay(visits, policy, limit_bytes=round(share * visits.final_bytes), window=window)


@cache
def _bounds(share: float) -> Bounds:
    visits = conversation()
    return bounds(visits, limit_bytes=round(share * visits.final_bytes))


def measure(*, quick: bool) -> tuple[list[Result], list[Table]]:
    """Return figures with goals, and the tables that stand behind them."""
    shares = (0.02, 0.068) if quick else tuple(EVICTION)
    results = [_distance_from_known(shares), _order(shares), _goal_of_the_queue()]
    for share in shares:
        results += _own(share)
    return results, [_known_table(shares), _own_table(shares)]


def _measured(share: float, policy: str | int | None) -> float:
    if isinstance(policy, str):
        return _replayed(share, policy, 0).hit_ratio
    return _replayed(share, "look-ahead", policy).hit_ratio


def _distance_from_known(shares: tuple[float, ...]) -> Result:
    worst = max(abs(_measured(share, policy) - known) for share in shares for policy, known in EVICTION[share].items())
    return single("largest distance from the known eviction table", worst, "hit ratio", goal=0.01)


def _order(shares: tuple[float, ...]) -> Result:
    """Count neighbours in FIFO <= LRU <= look-ahead 10 .. 1000 <= farthest use <= bound that stand the wrong way round."""
    wrong = 0
    for share in shares:
        ratios = [_measured(share, policy) for policy in ("fifo", "lru", *WINDOWS, None)] + [_bounds(share).relaxed]
        wrong += sum(a > b + 1e-12 for a, b in pairwise(ratios))
    return single("FIFO <= LRU <= look-ahead <= bound, violations", wrong, "count", goal=0)


def _goal_of_the_queue() -> Result:
    ahead, lru = _measured(0.068, 1000), _measured(0.068, "lru")
    return single("look-ahead 1000 where LRU hits 0.60 (6.8 %)", ahead, "hit ratio", baseline=lru, goal=0.87, at_least=True)


def _own(share: float) -> list[Result]:
    """Our policy: all the future against farthest use; a queue of 1 000 against look-ahead, on both parts of the trace."""
    percent = f"{share * 100:g} %"
    farthest, own = _measured(share, None), _replayed(share, "size-aware", None).hit_ratio
    results = [
        single(f"size-aware, whole future, {percent}", own, "hit ratio", baseline=farthest, goal=farthest, at_least=True),
    ]
    for policy in ("size-aware", "size-aware-balanced"):
        for name, part in (("seen 60 %", (0.0, SEEN)), ("held-out 40 %", (SEEN, 1.0))):
            blind = _replayed(share, "look-ahead", 1000).part(*part)
            own = _replayed(share, policy, 1000).part(*part)
            title = f"{RIVALS[policy]} 1000, {percent}, {name}"
            results.append(single(title, own, "hit ratio", baseline=blind, goal=blind, at_least=True))
        own, blind = (_replayed(share, rival, 1000).byte_hit_ratio for rival in (policy, "look-ahead"))
        results.append(single(f"{RIVALS[policy]} 1000, {percent}, bytes hit", own, "share", baseline=blind))
    return results


def _known_table(shares: tuple[float, ...]) -> Table:
    table = Table(title="hits among returning turns, measured (known)")
    columns: tuple[str | int | None, ...] = ("fifo", "lru", *WINDOWS, None)
    names = ["FIFO", "LRU", *(f"W={window}" for window in WINDOWS), "farthest"]
    for name in ("capacity", *names, "ARC", "fractional bound"):
        table.add_column(name, justify="right")
    for share in shares:
        cells = [f"{_measured(share, column):.3f} ({EVICTION[share][column]:.3f})" for column in columns]
        known = f" ({BOUND[share]:.3f})" if share in BOUND else ""
        arc = f"{_replayed(share, 'arc', 0).hit_ratio:.3f}"
        table.add_row(f"{share * 100:g} %", *cells, arc, f"{_bounds(share).fractional:.3f}{known}")
    return table


def _own_table(shares: tuple[float, ...]) -> Table:
    """Policies that know equally much side by side: hits, and in brackets the bytes of state that those hits found."""
    table = Table(title="hits (bytes hit) by what is known: nothing ahead, 1000 waiting requests, the whole future")
    names = [f"{short} {'all' if window is None else window}" for window in OWN_WINDOWS for short in RIVALS.values()]
    for name in ("capacity", *names, "greedy", "relaxed bound", "gap closed"):
        table.add_column(name, justify="right")
    for share in shares:
        best = _bounds(share)
        farthest, own = (_replayed(share, policy, None).hit_ratio for policy in ("look-ahead", "size-aware"))
        gap = f"{(own - farthest) / (best.relaxed - farthest):.2f}" if best.relaxed - farthest > 1e-3 else "-"
        outcomes = [_replayed(share, policy, window) for window in OWN_WINDOWS for policy in RIVALS]
        cells = [f"{outcome.hit_ratio:.3f} ({outcome.byte_hit_ratio:.3f})" for outcome in outcomes]
        table.add_row(f"{share * 100:g} %", *cells, f"{best.feasible:.3f}", f"{best.relaxed:.3f}", gap)
    return table
