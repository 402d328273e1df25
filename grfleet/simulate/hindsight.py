"""The best splits of yesterday, as the oracle finds them, beside the split that the pool falls back to today."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grfleet.simulate import schema
from grfleet.simulate.bars import Bars
from grfleet.simulate.figures import rounded
from grfleet.simulate.rehearse import pool_of, trace_of, versions
from grfleet.simulate.replayed import Replayed
from grfleet.simulate.signals import ahead_of
from grfleet.simulate.translate import Fleet
from grfleet.simulate.wanted import Wanted
from simulator.fleet.result import REQUESTS_FOR_P99
from simulator.oracle.cache import OracleCache
from simulator.oracle.choice import Choice
from simulator.oracle.result import OracleResult
from simulator.oracle.run import SPLITS, best_splits

FULL_PERCENT = 100.0
NO_SIGNALS = "pre-inference: the oracle knows none; early signals start nothing"
UNKNOWN_SIGNALS = (
    "pre-inference: {:,} early signals of the log could start prefixes, and the oracle knows none: its KV hits are those without;"
    " only the memory for prefixes is set aside"
)
MOST_OVERLOADED_PERCENT = 10.0


def look_back(
    wanted: Wanted,
    fleet: Fleet,
    replayed: Replayed,
    *,
    window_ms: float,
    seed: int,
    workers: int,
    cache: OracleCache | None,
    bars: Bars,
) -> schema.OracleFound:
    """Return the content of `result.json`: the best split of each window, the best for all of them, and what that is worth.

    Raises
    ------
    BadInput
        When prefixes leave no memory to the caches.
    ValueError
        When the log cannot be cut into such windows.
    """
    fallback = wanted.hbm.bounds.fallback_emb_percent
    ahead = ahead_of(wanted, fleet, replayed.log)
    fleet = ahead.reserved(fleet, wanted)
    config = replace(fleet.config, emb_percent=fallback)
    splits = tuple(sorted({*SPLITS, fallback}))
    found = best_splits(
        replayed.log,
        config,
        window_ms=window_ms,
        seed=seed,
        splits=splits,
        routing=fleet.owners,
        workers=workers,
        cache=cache,
        progress=bars(f"{len(splits)} splits"),
    )
    reasons = _reasons_for_distrust(found)
    ahead_doubts = [UNKNOWN_SIGNALS.format(ahead.signals)] if ahead.rules is not None else []
    place = found.splits.index(fallback)
    requests = found.count.sum(axis=0) * found.counted
    return schema.OracleFound(
        schema_version=schema.SCHEMA_VERSION,
        command="oracle",
        digest=found.digest,
        trusted=not reasons,
        not_trusted_because=reasons,
        doubts=[*found.doubts, *ahead_doubts, *replayed.doubts],
        assumptions=[*fleet.assumptions, NO_SIGNALS, *replayed.assumptions, *wanted.notes],
        versions=versions(),
        seed=seed,
        trace=trace_of(replayed),
        pool=pool_of(wanted, fleet),
        window_ms=window_ms,
        counted_windows=int(found.counted.sum()),
        fallback_emb_percent=fallback,
        fallback_p99_ms=rounded(float(found.whole_p99_ms[place])),
        fallback_objective_ms=_weighted(found.fleet_p99_ms[:, place], requests),
        fleet=_objective(found, found.fleet),
        by_instance=[_objective(found, choice) for choice in found.instances],
        noise=schema.Noise(
            regret_percent=rounded(found.noise.regret_percent),
            optimism_percent=rounded(found.noise.optimism_percent),
            confirmed_gain_percent=rounded(found.noise.confirmed_gain_percent),
        ),
        splits=[
            schema.SplitFigure(emb_percent=split, p99_ms=rounded(float(p99)))
            for split, p99 in zip(found.splits, found.whole_p99_ms, strict=True)
        ],
        windows=_windows(found, place),
    )


def _weighted(p99_ms: NDArray[np.float64], requests: NDArray[np.int64]) -> float | None:
    """Mean of windows' P99 by their requests: the oracle's objective."""
    used = (requests > 0) & np.isfinite(p99_ms)
    return rounded(float(np.average(p99_ms[used], weights=requests[used]))) if used.any() else None


def _objective(found: OracleResult, choice: Choice) -> schema.Objective:
    return schema.Objective(
        static_emb_percent=found.splits[choice.static],
        static_ms=rounded(choice.static_ms),
        best_ms=rounded(choice.best_ms),
        planned_ms=rounded(choice.planned_ms),
        gain_percent=rounded(choice.gain_percent),
        planned_gain_percent=rounded(choice.planned_gain_percent),
    )


def _windows(found: OracleResult, fallback: int) -> list[schema.OracleWindow]:
    best, planned = found.percents(found.fleet.best), found.percents(found.fleet.planned)

    def p99(window: int, place: int) -> float | None:
        return rounded(float(found.fleet_p99_ms[window, place])) if place >= 0 else None

    return [
        schema.OracleWindow(
            from_ms=round(found.start_ms + window * found.window_ms, 3),
            requests=int(requests),
            counted=bool(found.counted[window]),
            best_emb_percent=best[window],
            planned_emb_percent=planned[window],
            best_p99_ms=p99(window, int(found.fleet.best[window])),
            planned_p99_ms=p99(window, int(found.fleet.planned[window])),
            static_p99_ms=p99(window, found.fleet.static),
            fallback_p99_ms=p99(window, fallback),
        )
        for window, requests in enumerate(found.count.sum(axis=0))
    ]


def _reasons_for_distrust(found: OracleResult) -> list[str]:
    reasons = []
    per_window = found.count.sum(axis=0)[found.counted]
    if not (per_window >= REQUESTS_FOR_P99).any():
        reasons.append(
            f"too few requests for a P99: no window has {REQUESTS_FOR_P99}, the largest has {per_window.max(initial=0)}; take"
            " longer windows (--window), or replay a longer log"
        )
    asked = found.count > 0
    overloaded = (found.utilisation_percent >= FULL_PERCENT).all(axis=2) & asked
    share = 100.0 * overloaded.sum() / max(1, asked.sum())
    if share > MOST_OVERLOADED_PERCENT:
        reasons.append(
            f"overload at every split in {share:.0f} % of the instances' windows, so latencies say how long the log is; add"
            " instances, or replay less traffic"
        )
    return reasons
