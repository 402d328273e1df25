"""Reasons not to trust a result, as sentences for people: few requests, much load, a cold start, a small sample."""

from simulator.fleet.config import Level
from simulator.fleet.result import REQUESTS_FOR_P99, REQUESTS_FOR_P999, FleetResult

LEAST_CELLS = 500
FULL_PERCENT = 100.0


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
    places = {(law.offset % law.catalog_rows, law.catalog_rows) for law in result.log.laws}
    if len(places) > 1:
        return [f"level reduced: {len(places)} laws with other popular rows are taken to share no row, and to come evenly"]
    return []
