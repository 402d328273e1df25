"""A large workload that no recording limits: sessions with think times under a daily curve, generated throughout.

A user's sessions start along the daily curve. A session is a geometric number of requests with lognormal think times; one that
runs past the end goes on at the start, as if it had been under way, so that the rate is right from the first moment. Activity of
users is a power law. A history begins lognormal and grows with every request, until the model's context cuts it.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from simulator.request_log import MAX_CANDIDATES, MAX_HISTORY_TOKENS, RequestLog, RowLaw
from simulator.workloads.arrivals import Times, day_curve, expected_arrivals, moments_of
from simulator.workloads.columns import Columns, Numbers, merged
from simulator.workloads.manifest import Ingredient, Manifest, Origin
from simulator.workloads.traffic import Traffic

LARGE_LAW = RowLaw(exponent=0.95, catalog_rows=10_000_000, drift_percent_per_hour=2.0)
ACTIVITY_EXPONENT = 0.5
_RULE = "sessions of geometric length with lognormal think times under a daily curve; users active by a power law of exponent 0.5"


def generated(
    traffic: Traffic,
    *,
    users: int = 1_000_000,
    law: RowLaw = LARGE_LAW,
    candidates: tuple[int, int] = (250, 450),
    session_requests: float = 8.0,
    think_median_s: float = 30.0,
    think_sigma: float = 1.0,
    history_median_tokens: float = 4000.0,
    history_sigma: float = 0.8,
    tokens_per_visit: int = 12,
    peak_to_trough: float = 2.5,
    day_s: float = 86_400.0,
) -> tuple[RequestLog, Manifest]:
    """Return a workload without recordings (`traffic.part`, `instances` and `arrivals` play no role in it).

    Parameters
    ----------
    users : int
        Size of the population, whether all of them come or not.
    session_requests : float
        Mean requests of a session.
    think_median_s, think_sigma : float
        Lognormal time between two requests of a session.
    history_median_tokens, history_sigma, tokens_per_visit : float, float, int
        Lognormal history at a user's first request, and what each request adds.
    peak_to_trough, day_s : float
        The daily curve: ratio of its highest to its lowest rate, and its period; it starts at the mean, on the way down.

    Raises
    ------
    ValueError
        When a parameter lies outside its range.
    """
    asked = {name: value for name, value in locals().items() if name not in ("traffic", "law")}
    _check(asked)
    rng = np.random.default_rng([traffic.seed, 1 << 16])
    arrival, user = _sessions(traffic, users, session_requests, think_median_s, think_sigma, (day_s, peak_to_trough), rng)
    order = np.argsort(arrival, kind="stable")
    arrival, user = arrival[order], user[order]
    first_tokens = np.exp(rng.normal(np.log(history_median_tokens), history_sigma, users))
    history = np.minimum(first_tokens[user] + turns(user) * tokens_per_visit, traffic.max_history_tokens).astype(np.int64)
    columns = Columns(
        arrival_ms=arrival,
        user=user,
        users=users,
        history_tokens=history,
        candidates=rng.integers(candidates[0], candidates[1] + 1, size=len(arrival)),
        law=np.zeros(len(arrival), dtype=np.int64),
    )
    log = merged([columns], laws=(law,), rows_per_token=traffic.rows_per_token, signals=traffic.signals, rng=rng)
    everything = Ingredient(what="everything", origin=Origin.GENERATED, source="simulator/workloads/generated.py", rule=_RULE)
    parameters = {**traffic.to_json(), **asked, "law": asdict(law)}
    manifest = Manifest(regime="generated", seed=traffic.seed, parameters=parameters, ingredients=(everything,))
    return log, manifest.of(requests=len(log), users=log.users, digest=log.digest)


def turns(user: Numbers) -> Numbers:
    """Return how many requests of the same user stand before each, in the order given."""
    order = np.argsort(user, kind="stable")
    _, firsts, sizes = np.unique(user[order], return_index=True, return_counts=True)
    out = np.empty(len(user), dtype=np.int64)
    out[order] = np.arange(len(user)) - np.repeat(firsts, sizes)
    return out


def _sessions(
    traffic: Traffic,
    users: int,
    session_requests: float,
    think_median_s: float,
    think_sigma: float,
    day: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[Times, Numbers]:
    """Return unsorted (arrival_ms, user) of exactly `traffic.requests` requests."""
    count = traffic.requests
    lengths: Numbers = np.zeros(0, dtype=np.int64)
    while lengths.sum() < count:
        lengths = np.concatenate([lengths, rng.geometric(1.0 / session_requests, size=max(1, int(count / session_requests)))])
    ends = np.cumsum(lengths)
    sessions = int(np.searchsorted(ends, count)) + 1
    of = np.repeat(np.arange(sessions), lengths[:sessions])[:count]
    edges = day_curve(day_ms=day[0] * 1000.0, peak_to_trough=day[1])
    passed = expected_arrivals(np.array([0.0, traffic.duration_ms]), edges)
    starts = moments_of(rng.uniform(passed[0], passed[1], sessions), edges)
    think = np.exp(rng.normal(np.log(think_median_s * 1000.0), think_sigma, count))
    begins = ends[:sessions] - lengths[:sessions]
    think[begins] = 0.0
    since = np.cumsum(think)
    arrival = (starts[of] + since - since[begins][of]) % traffic.duration_ms
    who = (users * rng.random(sessions) ** (1.0 / (1.0 - ACTIVITY_EXPONENT))).astype(np.int64)
    return arrival, who[of]


def _check(asked: dict[str, Any]) -> None:
    least, most = asked["candidates"]
    if not 1 <= least <= most <= MAX_CANDIDATES:
        raise ValueError(f"candidates: {(least, most)} must rise within 1..{MAX_CANDIDATES}")
    bounds = {
        "users": (1, 1 << 30),
        "session_requests": (1.0, 1e4),
        "think_median_s": (1e-3, 1e6),
        "think_sigma": (0.0, 4.0),
        "history_median_tokens": (1.0, MAX_HISTORY_TOKENS),
        "history_sigma": (0.0, 4.0),
        "tokens_per_visit": (0, 1 << 16),
        "peak_to_trough": (1.0, 100.0),
        "day_s": (1.0, 1e8),
    }
    for name, (low, high) in bounds.items():
        if not low <= asked[name] <= high:  # refuses NaN as well
            raise ValueError(f"{name}: {asked[name]} lies outside {low}..{high}")
