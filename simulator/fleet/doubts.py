"""Reasons not to trust a result, as sentences for people: few requests, much load, a cold start, a small sample."""

import numpy as np

from simulator.fleet.config import Level
from simulator.fleet.laws import cumulative_share
from simulator.fleet.result import REQUESTS_FOR_P99, REQUESTS_FOR_P999, FleetResult
from simulator.request_log import RowLaw

LEAST_CELLS = 500
FULL_PERCENT = 100.0
FAST_DRIFT = 0.1


def doubts_of(result: FleetResult, *, filled_at_ms: list[float], one_in: int, least_emb_bytes: int) -> tuple[str, ...]:
    """Return the doubts about a result.

    Parameters
    ----------
    filled_at_ms : list of float
        When each instance's KV cache was full for the first time; negative for never.
    one_in : int
        Rows that one simulated row stands for.
    least_emb_bytes : int
        The smallest EMB limit that was in force.
    """
    found = []
    count = len(result.latency_ms[result.measured])
    if count < REQUESTS_FOR_P99:
        found.append(f"{count} requests are measured: too few for a P99, which needs {REQUESTS_FOR_P99}")
    elif count < REQUESTS_FOR_P999:
        found.append(f"{count} requests are measured: too few for a P99.9, which needs {REQUESTS_FOR_P999}")
    load = result.utilisation_percent()
    if load is not None and load >= FULL_PERCENT:
        found.append(f"utilisation is {load:.0f} %: queues grow for as long as the log lasts, and so do the latencies")
    late = [at for at in filled_at_ms if at > result.measured_from_ms]
    never = sum(at < 0.0 for at in filled_at_ms)
    if never:
        found.append(
            f"the KV cache of {never} of {len(filled_at_ms)} instances never filled: hits are those of a start, not of a day"
        )
    if late:
        found.append(
            f"the last KV cache to fill was full at {max(late):.0f} ms, figures count from {result.measured_from_ms:.0f} ms"
        )
    cells = least_emb_bytes // (result.config.service.row_bytes * one_in)
    if one_in > 1 and cells < LEAST_CELLS:
        found.append(
            f"level {result.level}: {cells} simulated rows fit the EMB cache, fewer than {LEAST_CELLS}; take a finer level"
        )
    if result.level is Level.REDUCED:
        found += _reduced(result)
    return tuple(found)


def _reduced(result: FleetResult) -> list[str]:
    found = []
    places = {(law.offset % law.catalog_rows, law.catalog_rows) for law in result.log.laws}
    if len(places) > 1:
        found.append(f"level reduced: {len(places)} laws with other popular rows are taken to share no row, and to come evenly")
    rows = float(result.rows_asked.sum(dtype="int64"))
    if rows and any(_replacements_per_access(result, law, rows) > FAST_DRIFT for law in result.log.laws):
        found.append(
            "level reduced: rows of the drifting head are replaced nearly as often as they are asked; take a sampled level"
        )
    return found


def _replacements_per_access(result: FleetResult, law: RowLaw, rows: float) -> float:
    """Return how often the least popular drifting rank is replaced for each time that one instance asks for it."""
    last = min(law.head_rows, law.catalog_rows // 2)
    if law.drift_percent_per_hour == 0.0 or last < 1:
        return 0.0
    popularity = float(np.diff(cumulative_share(law, np.array([last - 1, last])))[0])
    asked = popularity * rows / result.config.instances
    replaced = law.drift_percent_per_hour / 100.0 * result.log.duration_ms / 3_600_000.0
    return replaced / asked if asked > 0.0 else 0.0
