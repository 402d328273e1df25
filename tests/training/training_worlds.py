"""A few popularity laws and worlds, small enough for fast tests."""

from functools import cache

import numpy as np

from simulator.request_log import RowLaw
from training.curves import RowTables, row_tables
from training.worlds import Regime, Worlds, draw_worlds


@cache
def tables() -> RowTables:
    return row_tables([RowLaw(exponent=exponent, catalog_rows=20_000_000) for exponent in (0.7, 0.9, 1.1, 1.6)])


def worlds(count: int, *regimes: Regime, seed: int = 1, **values: float) -> Worlds:
    drawn = draw_worlds(count, tables(), np.random.default_rng(seed), regimes=regimes or None, load=(0.3, 0.7))
    return drawn.with_value(**values)


def honest(count: int, *regimes: Regime, seed: int = 1, **values: float) -> Worlds:
    """Worlds whose estimates are right and whose traffic is even."""
    plain = {"noise": 0.0, "cost_error": 1.0, "jitter": 0.0, "tide": 0.0, "p99_bias": 0.0, "p99_noise": 0.0, "p99_missing": 0.0}
    return worlds(count, *regimes, seed=seed, **{**plain, **values})
