"""Miss ratios from the laws are those of an LRU cache that really looks the rows up."""

import numpy as np
import pytest

from simulator.core.emb_cache import EmbCache
from simulator.oracle.rows import HOUR_MS, miss_ratios, pieces_of
from simulator.request_log import RowLaw

CAPACITIES = np.array([200.0, 1_000.0, 3_000.0, 6_000.0])
CATALOG = 10_000


def drawn(law: RowLaw, count: int, rng: np.random.Generator) -> np.ndarray:
    chance = np.arange(1, law.catalog_rows + 1) ** -law.exponent
    ranks = np.searchsorted(np.cumsum(chance) / chance.sum(), rng.random(count))
    return (ranks + law.offset) % law.catalog_rows


def looked_up(rows: np.ndarray, capacity: float, parts: int) -> list[float]:
    """Miss ratio of each of several equal parts of a stream."""
    cache = EmbCache(one_in=1, row_bytes=1, limit_bytes=int(capacity), max_bytes=CATALOG)
    return [cache.access(part.tolist()) / len(part) for part in np.split(rows, parts)]


def still_ratios(law: RowLaw, capacities: np.ndarray) -> np.ndarray:
    """Miss ratios of one law that does not change, by capacity."""
    edges, asked = np.array([0.0, 1.0]), np.array([[1.0]])
    return miss_ratios([law], edge_ms=edges, asked=asked, capacity_rows=capacities, before=np.ones(1))[0, 0]


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.3])
def test_one_still_law_misses_as_a_warm_cache_does(exponent: float) -> None:
    law = RowLaw(exponent=exponent, catalog_rows=CATALOG, offset=77)
    found = still_ratios(law, CAPACITIES)
    rows = drawn(law, 240_000, np.random.default_rng(1))
    exact = [looked_up(rows, capacity, 2)[1] for capacity in CAPACITIES]
    assert np.abs(found - exact).max() < 0.004


def test_a_cache_as_large_as_the_catalogue_misses_nothing_and_the_chances_add_up() -> None:
    law = RowLaw(exponent=0.9, catalog_rows=CATALOG)
    pieces = pieces_of([law])
    assert pieces.rows.sum() == CATALOG
    assert (pieces.rows @ pieces.probability)[0] == pytest.approx(1.0, abs=1e-6)
    found = still_ratios(law, np.array([1.0, CATALOG * 2.0]))
    assert found[0] > 0.9
    assert found[1] < 1e-6


def test_a_change_of_laws_is_followed_as_the_cache_follows_it() -> None:
    before, after = RowLaw(exponent=1.0, catalog_rows=CATALOG), RowLaw(exponent=1.0, catalog_rows=CATALOG, offset=5_000)
    rng = np.random.default_rng(2)
    steps, each = 12, 10_000
    rows = np.concatenate((drawn(before, 4 * each, rng), drawn(after, 8 * each, rng)))
    warm = drawn(before, 60_000, rng)
    asked = np.zeros((steps, 2))
    asked[:4, 0] = asked[4:, 1] = each
    found = miss_ratios(
        [before, after],
        edge_ms=np.arange(steps + 1) * 1e3,
        asked=asked,
        capacity_rows=CAPACITIES,
        before=np.array([1.0, 0.0]),
    )
    for place, capacity in enumerate(CAPACITIES):
        exact = looked_up(np.concatenate((warm, rows)), capacity, 6 + steps)[6:]
        ours = [found[step, 0 if step < 4 else 1, place] for step in range(steps)]
        # The step in which the laws change is taken at its middle.
        assert np.abs(np.array(ours) - exact)[[0, 1, 2, 3, 6, 7, 8, 9, 10, 11]].max() < 0.02
        assert abs(ours[4] - exact[4]) < 0.08


def test_a_drifting_head_is_followed_over_days() -> None:
    per_step, steps, head = 2_000, 40, 2_000
    still = RowLaw(exponent=1.0, catalog_rows=CATALOG, head_rows=head)
    rng = np.random.default_rng(3)
    # In fifty hours, each rank of the head changes hands once; new rows take over.
    names, turn, fresh = np.arange(CATALOG), np.arange(head) % 50, CATALOG
    stream = [drawn(still, 60_000, rng)]
    for step in range(steps):
        stream.append(names[drawn(still, per_step, rng)])
        moved = np.flatnonzero(turn == step % 50)
        names[moved] = np.arange(fresh, fresh + len(moved))
        fresh += len(moved)
    moving = RowLaw(exponent=1.0, catalog_rows=CATALOG, drift_percent_per_hour=2.0, head_rows=head)
    found = miss_ratios(
        [moving],
        edge_ms=np.arange(5) * 10 * HOUR_MS,
        asked=np.full((4, 1), 10.0 * per_step),
        capacity_rows=CAPACITIES,
        before=np.ones(1),
    )[:, 0]
    without = still_ratios(still, CAPACITIES)
    for place, capacity in enumerate(CAPACITIES):
        exact = looked_up(np.concatenate(stream), capacity, 7)[3:]
        assert np.abs(found[:, place] - exact).max() < 0.01
        assert found[0, place] < found[-1, place]
    assert np.all(found > without)
