"""What each request costs when its user's state is in HBM, on the host, on the SSD or nowhere: compute, loading, and rows.

The service law of the fleet, evaluated for whole columns. Cached history is neither computed nor looked up again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.fleet.config import FleetConfig
from simulator.fleet.service import compute_ms, fleet_floats

HBM, HOST, SSD, NOWHERE = range(4)
PLACES = 4


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of requests by where their user's state is (first axis: HBM, HOST, SSD, NOWHERE).

    Attributes
    ----------
    fixed_ms : float64, shape (PLACES, requests)
        Compute, and what loading the state adds to it.
    rows : float64, shape (PLACES, requests)
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
    miss_ratio: float,
) -> Costs:
    """Return the costs of requests of which `cached` tokens would be found.

    State below HBM is loaded layer by layer while computing, when that is faster than computing it anew and looking its rows up
    again; the choice takes the link as free and `miss_ratio` for the rows.

    Raises
    ------
    ValueError
        For a service model whose law the fleet does not know.
    """
    physics, service = fleet_floats(config), config.service
    hit = compute_columns(physics, history, candidates, cached)
    miss = compute_columns(physics, history, candidates, np.zeros_like(cached))
    rows_miss = ((history + candidates) * rows_per_token).astype(np.float64)
    rows_hit = rows_miss - cached * rows_per_token
    fixed, rows = [hit], [rows_hit]
    state_bytes = -(-cached // config.page_tokens) * config.page_bytes
    gather_rate = service.link_bytes_per_second * service.gather_efficiency
    again = (rows_miss - rows_hit) * miss_ratio * service.row_bytes / gather_rate * 1e3
    for tier_bytes, rate in (
        (config.host_bytes, service.link_bytes_per_second),
        (config.ssd_bytes, min(service.link_bytes_per_second, config.ssd_bytes_per_second)),
    ):
        load = state_bytes / rate * 1e3
        stall = load / service.layers + np.maximum(0.0, load - hit) * (service.layers - 1) / service.layers
        loading = hit + config.reload_fixed_ms + stall
        loaded = (loading <= miss + again) & (cached > 0) & (tier_bytes > 0)
        fixed.append(np.where(loaded, loading, miss))
        rows.append(np.where(loaded, rows_hit, rows_miss))
    return Costs(fixed_ms=np.stack((*fixed, miss)), rows=np.stack((*rows, rows_miss)))


@compiled
def compute_columns(
    physics: NDArray[np.float64], history: NDArray[np.int64], candidates: NDArray[np.int64], cached: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the milliseconds of compute of every request."""
    out = np.empty(len(history))
    for place in range(len(history)):
        out[place] = compute_ms(physics, history[place], candidates[place], cached[place])
    return out
