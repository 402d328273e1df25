"""Catalogues whose popular rows change, against libcachesim's LRU on rows that were drawn and replaced here.

Thirty times an hour each of the 65 536 most popular ranks goes to a row that nobody has asked for before. In a fifth of the
catalogue that adds 0.03 to the miss ratio at a Zipf exponent of 0.8 and 0.04 at 1.05, to be seen by every level and the oracle.
"""

from functools import cache

import numpy as np
import pytest
from fleet_of_one import SERVICE, che_miss_ratio, fleet_of, log_of, zipf
from other_caches import hits

from simulator.fleet.config import Level
from simulator.fleet.run import simulate
from simulator.oracle.run import best_splits
from simulator.request_log import RequestLog, RowLaw

CATALOGUE, HEAD, PERCENT_PER_HOUR = 200_000, 65_536, 3000.0
REQUESTS, EACH, SPAN_MS = 600, 3000, 750_000.0
HELD = CATALOGUE // 5
HALF = REQUESTS // 2


def still(exponent: float) -> RowLaw:
    return RowLaw(exponent=exponent, catalog_rows=CATALOGUE)


@cache
def missed_by_libcachesim(exponent: float) -> float:
    """Miss ratio of the second half; ranks change hands at even intervals that begin at random."""
    rng = np.random.default_rng(1)
    rank = np.searchsorted(np.cumsum(zipf(still(exponent))), rng.random(REQUESTS * EACH))
    rank = np.minimum(rank, CATALOGUE - 1)
    t_ms = np.repeat(np.arange(REQUESTS) * SPAN_MS / REQUESTS, EACH)
    turn = np.floor(t_ms * PERCENT_PER_HOUR / 100.0 / 3.6e6 + rng.random(CATALOGUE)[rank]).astype(np.int64)
    rows = rank + CATALOGUE * np.where(rank < HEAD, turn, 0)
    return 1.0 - float(hits("LRU", rows.tolist(), HELD)[HALF * EACH :].mean())


def log_with_drift(exponent: float) -> RequestLog:
    law = RowLaw(exponent=exponent, catalog_rows=CATALOGUE, head_rows=HEAD, drift_percent_per_hour=PERCENT_PER_HOUR)
    user = np.arange(REQUESTS) % 10
    return log_of(np.arange(REQUESTS) * SPAN_MS / REQUESTS, user, np.zeros(REQUESTS), candidates=EACH, rows_per_token=1, law=law)


@pytest.mark.parametrize("exponent", [0.8, 1.05])
@pytest.mark.parametrize(("level", "error"), [(Level.EXACT, 0.002), (Level.SAMPLED_64, 0.006), (Level.REDUCED, 0.002)])
def test_every_level_misses_a_drifting_catalogue_as_libcachesim_does(exponent: float, level: Level, error: float) -> None:
    config = fleet_of(pool_bytes=HELD * SERVICE.row_bytes, emb_percent=100)
    result = simulate(log_with_drift(exponent), config, level=level, seed=2)
    expected = missed_by_libcachesim(exponent)
    assert float(result.rows_missed[HALF:].sum() / result.rows_asked[HALF:].sum()) == pytest.approx(expected, abs=error)
    assert expected - che_miss_ratio(still(exponent), HELD) > 0.02


@pytest.mark.parametrize("exponent", [0.8, 1.05])
def test_the_oracle_misses_a_drifting_catalogue_as_libcachesim_does(exponent: float) -> None:
    config = fleet_of(pool_bytes=2 * HELD * SERVICE.row_bytes)
    result = best_splits(log_with_drift(exponent), config, window_ms=SPAN_MS / 2.0, seed=1, splits=(25, 50))
    assert 1.0 - result.emb_hit_percent[0, 1, 1] / 100.0 == pytest.approx(missed_by_libcachesim(exponent), abs=0.002)
