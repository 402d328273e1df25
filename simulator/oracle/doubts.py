"""Reasons not to trust a result, each a sentence that says what to change; a result that carries none has passed all of them."""

import numpy as np
from numpy.typing import NDArray

from simulator.oracle.choice import Choice, NoiseFloor
from simulator.oracle.gather import Gathered
from simulator.oracle.lindley import BUSY, KV_ASKED
from simulator.oracle.windows import Grid

LEAST_REQUESTS = 1_000
LEAST_WINDOW_MS = 30_000.0


def doubts_of(
    grid: Grid, gathered: Gathered, *, warm_up: int, counted: NDArray[np.bool_], fleet: Choice, noise: NoiseFloor
) -> tuple[str, ...]:
    """Return what speaks against a result.

    Parameters
    ----------
    warm_up : int
        Leading windows in which more users than usual are met for the first time.
    counted : bool, shape (windows,)
    """
    count = gathered.count
    asked = count > 0
    overloaded = (gathered.sums[:, :, BUSY] >= grid.window_ms).all(axis=2) & asked
    few = (count < LEAST_REQUESTS) & asked & counted
    total = count.sum(axis=0)
    few_of_all = (total < LEAST_REQUESTS) & (total > 0) & counted
    found = []
    if overloaded.any():
        found.append(f"overload: {overloaded.sum()} of {asked.sum()} instance windows have more work than time at every split")
    if grid.window_ms < LEAST_WINDOW_MS:
        found.append(f"windows of {grid.window_ms / 1e3:g} s: below {LEAST_WINDOW_MS / 1e3:g} s a P99 is mostly noise")
    if few_of_all.any():
        found.append(
            f"too few requests: {few_of_all.sum()} of {counted.sum()} windows have fewer than {LEAST_REQUESTS} in the whole fleet"
        )
    elif few.any():
        found.append(
            f"too few requests by instance: {few.sum()} of {(asked & counted).sum()} instance windows have fewer than"
            f" {LEAST_REQUESTS}; the choices of the fleet as a whole are not affected"
        )
    if counted[:warm_up].any():
        found.append(
            f"warm-up: {warm_up} of {grid.windows} windows meet more new users than the last ones, so that none is left out"
        )
    if gathered.oversized_splits:
        found.append(
            f"large users: at {gathered.oversized_splits} of {grid.splits} splits some user's state is larger than the KV cache"
        )
    if len(np.unique(grid.emb_bytes)) < grid.splits:
        found.append(f"granules: {grid.splits} splits of this pool are {len(np.unique(grid.emb_bytes))} different ones")
    if not (gathered.sums[:, :, KV_ASKED] > 0).any():
        found.append("no history: no request has any, so that the KV cache is of no use")
    if np.isfinite(noise.regret_percent) and fleet.gain_percent <= noise.regret_percent:
        found.append(
            f"gain within the noise: {fleet.gain_percent:.2f} % over the best single split, with a noise floor of"
            f" {noise.regret_percent:.2f} %"
        )
    return tuple(found)
