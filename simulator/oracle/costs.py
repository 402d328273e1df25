"""What each request costs when its user's state is in HBM, on the host, or nowhere: milliseconds of compute and rows to look up.

The service law of the fleet, evaluated for whole columns. Cached history is neither computed nor looked up again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.fleet.config import FleetConfig
from simulator.fleet.service import compute_ms, fleet_floats


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of requests with their user's state in HBM, on the host, nowhere (first axis, in this order).

    Attributes
    ----------
    fixed_ms : float64, shape (3, requests)
        Compute, and for the host the time to load the state.
    rows : float64, shape (3, requests)
        Embedding rows looked up.
    """

    fixed_ms: NDArray[np.float64]
    rows: NDArray[np.float64]


def costs(
    config: FleetConfig,
    *,
    history: NDArray[np.int64],
    candidates: NDArray[np.int64],
    cached: NDArray[np.int64],
    rows_per_token: int,
) -> Costs:
    """Return the costs of requests of which `cached` tokens would be found.

    State on the host is loaded when that is faster than computing it anew, as if nothing else used the link.

    Raises
    ------
    ValueError
        For a service model whose law the fleet does not know.
    """
    physics = fleet_floats(config)
    hit = compute_columns(physics, history, candidates, cached)
    miss = compute_columns(physics, history, candidates, np.zeros_like(cached))
    state_bytes = -(-cached // config.page_tokens) * config.page_bytes
    load = hit + config.reload_fixed_ms + state_bytes / config.service.link_bytes_per_second * 1e3
    rows_miss = ((history + candidates) * rows_per_token).astype(np.float64)
    rows_hit = rows_miss - cached * rows_per_token
    loaded = load <= miss
    return Costs(
        fixed_ms=np.stack((hit, np.where(loaded, load, miss), miss)),
        rows=np.stack((rows_hit, np.where(loaded, rows_hit, rows_miss), rows_miss)),
    )


@compiled
def compute_columns(
    physics: NDArray[np.float64], history: NDArray[np.int64], candidates: NDArray[np.int64], cached: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the milliseconds of compute of every request."""
    out = np.empty(len(history))
    for place in range(len(history)):
        out[place] = compute_ms(physics, history[place], candidates[place], cached[place])
    return out
