"""The three regimes, each as requests with a manifest that says which part of them is real.

**Steady**: rate, users and popularity keep their laws. **Trend**: at one rate, returning users that rank few candidates give way,
linearly in time, to newcomers that rank many from a wider catalogue, while histories grow; the best split moves with it.
**Burst**: Steady, with events of some tens of seconds on top (`bursts.py`). Arrivals come from an Azure trace; users, their order
of return and their lengths of history from the Mooncake trace, cloned as often as the number of instances asks for. No trace has
items: candidates, rows and early signals are generated. Constants are assumptions, stated in every manifest; they were chosen by
looking at the best splits in hindsight of an accelerator that is two thirds busy, never at what a controller makes of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.request_log import RequestLog, RowLaw
from simulator.workloads.arrivals import RESOLUTION, Times, recorded
from simulator.workloads.bursts import BURST_KINDS, BurstKind, burst_law, plan_bursts, play_bursts
from simulator.workloads.columns import Columns, Numbers, merged, play
from simulator.workloads.manifest import Cloning, Event, Held, Ingredient, Manifest, Origin
from simulator.workloads.parts import PART_PERCENT, USERS_RULE
from simulator.workloads.sources import Sources, Visits, load_sources, traces_folder
from simulator.workloads.traffic import BASE_CANDIDATES, Traffic

BASE_LAW = RowLaw(exponent=0.95, catalog_rows=40_000_000, drift_percent_per_hour=2.0)
RETURNING_LAW = RowLaw(exponent=1.15, catalog_rows=40_000_000, drift_percent_per_hour=2.0)
NEWCOMERS_LAW = RowLaw(exponent=0.8, catalog_rows=80_000_000, drift_percent_per_hour=5.0, offset=5_000_000)
RETURNING_CANDIDATES = (96, 160)
NEWCOMERS_CANDIDATES = (1500, 2500)


def steady(traffic: Traffic, *, traces: Path | None = None) -> tuple[RequestLog, Manifest]:
    """Return a workload whose laws stay as they are.

    Parameters
    ----------
    traces : Path
        Folder of the public traces; default: those of the checkout.

    Raises
    ------
    ValueError
        When the parameters make no workload; TraceError, a ValueError, when a trace is missing or bad.
    """
    sources, rng = _begin(traffic, traces)
    base, ingredients, cloned = _base(traffic, sources, rng)
    log = merged([base], laws=(BASE_LAW,), rows_per_token=traffic.rows_per_token, signals=traffic.signals, rng=rng)
    return _described(log, "steady", traffic, sources, [*ingredients, _rows((BASE_LAW,))], [cloned])


def trend(
    traffic: Traffic,
    *,
    returning_percent: tuple[float, float] = (95.0, 5.0),
    history_percent: tuple[float, float] = (80.0, 120.0),
    begins_s: float = 0.0,
    traces: Path | None = None,
) -> tuple[RequestLog, Manifest]:
    """Return a workload that turns, linearly in time, from one crowd into another.

    Parameters
    ----------
    returning_percent, history_percent : tuple of float
        At the start and at the end: share of requests by returning users, and scale of histories.
    begins_s : float
        When it begins to turn; before, all is as at the start.

    Raises
    ------
    ValueError
        As `steady`.
    """
    if not all(0.0 <= share <= 100.0 for share in returning_percent) or not all(
        0.0 < scale <= 1000.0 for scale in history_percent
    ):
        raise ValueError("returning_percent must lie within 0..100 and history_percent within 0..1000")
    if not 0.0 <= begins_s < traffic.duration_s:
        raise ValueError(f"begins_s: {begins_s} lies outside 0..{traffic.duration_s:g}, the length of the workload")
    sources, rng = _begin(traffic, traces)
    arrival, rule = recorded(
        sources.arrivals_ms[traffic.arrivals],
        traffic.requests,
        duration_ms=traffic.duration_ms,
        resolution=RESOLUTION[traffic.arrivals],
        rng=rng,
    )
    begins_ms = 1000.0 * begins_s
    through = np.maximum(arrival - begins_ms, 0.0) / (traffic.duration_ms - begins_ms)
    returns = rng.random(len(arrival)) * 100.0 < returning_percent[0] + (returning_percent[1] - returning_percent[0]) * through
    scale = (history_percent[0] + (history_percent[1] - history_percent[0]) * through) / 100.0
    parts, cloned = [], []
    crowds = [
        (sources.visits.returning(), returns, RETURNING_CANDIDATES),
        (sources.visits.newcomers(), ~returns, NEWCOMERS_CANDIDATES),
    ]
    for law, (visits, chosen, candidates) in enumerate(crowds):
        user, users, tokens = play(visits, int(chosen.sum()), traffic.instances, rng)
        history = np.minimum((tokens * scale[chosen]).astype(np.int64), traffic.max_history_tokens)
        parts.append(_columns(arrival[chosen], user, users, history, candidates, law, rng))
        cloned.append(_cloning(visits, len(user), traffic.instances))
    laws = (RETURNING_LAW, NEWCOMERS_LAW)
    log = merged(parts, laws=laws, rows_per_token=traffic.rows_per_token, signals=traffic.signals, rng=rng)
    mix = (
        f"requests by returning users {returning_percent[0]:g} to {returning_percent[1]:g} percent, the rest by users that came "
        f"once, with a history up to the median; histories scaled by {history_percent[0]:g} to {history_percent[1]:g} percent, "
        f"cut at {traffic.max_history_tokens}; linear in time" + (f" from {begins_s:g} s on" if begins_s else "")
    )
    ingredients = [
        *_recorded_ingredients(traffic, sources, rule, mix),
        _candidates(f"{RETURNING_CANDIDATES} for returning users, {NEWCOMERS_CANDIDATES} for newcomers"),
        _rows(laws),
    ]
    asked: dict[str, Any] = {"returning_percent": list(returning_percent), "history_percent": list(history_percent)}
    if begins_s:
        asked["begins_s"] = begins_s
    return _described(log, "trend", traffic, sources, ingredients, cloned, asked=asked)


def burst(
    traffic: Traffic,
    *,
    kinds: Sequence[BurstKind] = BURST_KINDS,
    every_s: float = 75.0,
    lasts_s: tuple[float, float] = (10.0, 40.0),
    strength: float = 1.0,
    traces: Path | None = None,
) -> tuple[RequestLog, Manifest]:
    """Return Steady with bursts on top.

    Parameters
    ----------
    kinds : sequence of BurstKind
        Kinds that come, in an order of the seed's.
    every_s : float
        Mean distance of two bursts; there is at least one.
    lasts_s : tuple of float
        Shortest and longest.
    strength : float
        Multiplies the requests that bursts add.

    Raises
    ------
    ValueError
        As `steady`.
    """
    sources, rng = _begin(traffic, traces)
    base, ingredients, cloned = _base(traffic, sources, rng)
    plan = plan_bursts(kinds, duration_s=traffic.duration_s, every_s=every_s, lasts_s=lasts_s, strength=strength, rng=rng)
    laws = (BASE_LAW, *(burst_law(BASE_LAW, each, number) for number, each in enumerate(plan, start=1)))
    if len(laws) > 256:
        raise ValueError(f"{len(plan)} bursts are too many; make every_s longer")
    base, extra, events = play_bursts(base, plan, traffic=traffic, visits=sources.visits, rng=rng)
    log = merged([base, *extra], laws=laws, rows_per_token=traffic.rows_per_token, signals=traffic.signals, rng=rng)
    made = Ingredient(
        what="bursts",
        origin=Origin.GENERATED,
        source="simulator/workloads/bursts.py",
        rule="kinds, times and requests of each stand in `events`",
    )
    asked = {"kinds": [str(kind) for kind in kinds], "every_s": every_s, "lasts_s": list(lasts_s), "strength": strength}
    return _described(log, "burst", traffic, sources, [*ingredients, _rows(laws), made], [cloned], events=events, asked=asked)


def _begin(traffic: Traffic, traces: Path | None) -> tuple[Sources, np.random.Generator]:
    """Sources of the part, and a generator that differs between parts even for one seed."""
    sources = load_sources((traces or traces_folder()).resolve(), traffic.part)
    return sources, np.random.default_rng([traffic.seed, list(PART_PERCENT).index(traffic.part)])


def _base(traffic: Traffic, sources: Sources, rng: np.random.Generator) -> tuple[Columns, list[Ingredient], Cloning]:
    """Steady's requests: all recorded users in their own mix."""
    arrival, rule = recorded(
        sources.arrivals_ms[traffic.arrivals],
        traffic.requests,
        duration_ms=traffic.duration_ms,
        resolution=RESOLUTION[traffic.arrivals],
        rng=rng,
    )
    user, users, tokens = play(sources.visits, len(arrival), traffic.instances, rng)
    history = np.minimum(tokens, traffic.max_history_tokens)
    columns = _columns(arrival, user, users, history, BASE_CANDIDATES, 0, rng)
    mix = f"all recorded users in their own mix; histories cut at {traffic.max_history_tokens}"
    ingredients = [*_recorded_ingredients(traffic, sources, rule, mix), _candidates(str(BASE_CANDIDATES))]
    return columns, ingredients, _cloning(sources.visits, len(arrival), traffic.instances)


def _columns(
    arrival: Times, user: Numbers, users: int, history: Numbers, candidates: tuple[int, int], law: int, rng: np.random.Generator
) -> Columns:
    return Columns(
        arrival_ms=arrival,
        user=user,
        users=users,
        history_tokens=history,
        candidates=rng.integers(candidates[0], candidates[1] + 1, size=len(arrival)),
        law=np.full(len(arrival), law),
    )


def _cloning(visits: Visits, played: int, streams: int) -> Cloning:
    return Cloning(visits=visits.name, recorded=len(visits), streams=streams, plays_per_visit=round(played / len(visits), 2))


def _recorded_ingredients(traffic: Traffic, sources: Sources, arrivals: str, mix: str) -> list[Ingredient]:
    users = f"{traffic.instances} copies side by side, each from its own place, requests shared among them at random; {mix}"
    rate = f"{arrivals}; {traffic.requests_per_second:g} requests per second"
    return [
        Ingredient(what="arrivals", origin=Origin.SCALED, source=sources.names[traffic.arrivals], rule=rate),
        Ingredient(
            what="order of return within a copy",
            origin=Origin.REAL,
            source=sources.names["mooncake"],
            rule="users by leading blocks",
        ),
        Ingredient(what="users and lengths of history", origin=Origin.SCALED, source=sources.names["mooncake"], rule=users),
        Ingredient(what="slots", origin=Origin.GENERATED, source="uniform", rule="what hashing a user id gives"),
        Ingredient(
            what="early signals",
            origin=Origin.GENERATED,
            source="lognormal",
            rule=f"{traffic.signals.percent:g} percent of requests, median {traffic.signals.median_ms:g} ms before, "
            f"sigma {traffic.signals.sigma:g}",
        ),
    ]


def _candidates(ranges: str) -> Ingredient:
    return Ingredient(what="candidates", origin=Origin.GENERATED, source="uniform", rule=ranges)


def _rows(laws: tuple[RowLaw, ...]) -> Ingredient:
    rule = f"{len(laws)} laws, the first: exponent {laws[0].exponent:g} over {laws[0].catalog_rows} rows, " + (
        f"{laws[0].drift_percent_per_hour:g} percent of the head replaced an hour"
    )
    return Ingredient(what="embedding rows", origin=Origin.GENERATED, source="Zipf", rule=rule)


def _described(
    log: RequestLog,
    regime: str,
    traffic: Traffic,
    sources: Sources,
    ingredients: Sequence[Ingredient],
    cloning: Sequence[Cloning],
    *,
    events: Sequence[Event] = (),
    asked: dict[str, Any] | None = None,
) -> tuple[RequestLog, Manifest]:
    held = Held(
        part=str(traffic.part), time_percent=PART_PERCENT[traffic.part], users=USERS_RULE, left_out=sources.visits.left_out
    )
    manifest = Manifest(
        regime=regime,
        seed=traffic.seed,
        parameters={**traffic.to_json(), **(asked or {})},
        ingredients=tuple(ingredients),
        cloning=tuple(cloning),
        events=tuple(events),
        held=held,
    )
    return log, manifest.of(requests=len(log), users=log.users, digest=log.digest)
