"""What it costs that the row cache is exact LRU, where caches on accelerators keep sets of a few ways, or a clock.

The same rows under a Zipf law through LRU, libcachesim's CLOCK, and LRU within sets: 32 and 64 ways are what embedding libraries
build. docs/decisions/0013 has the figures.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from other_caches import hits

from simulator.compiled import compiled
from simulator.core.emb_cache import EmbCache

CATALOG, ACCESSES = 100_000, 600_000


def drawn(exponent: float) -> NDArray[np.int64]:
    """Rows by their number, which says nothing of their popularity: a hash chooses the set."""
    random = np.random.default_rng(5)
    edges = np.cumsum(np.arange(1, CATALOG + 1, dtype=np.float64) ** -exponent)
    ranks = np.searchsorted(edges, random.random(ACCESSES) * edges[-1])
    return random.permutation(CATALOG)[ranks]


@compiled
def _hits_in_sets(rows: NDArray[np.int64], sets: int, ways: int) -> int:
    """LRU within each set: a set is a row of the table, its youngest in front."""
    table = np.full((sets, ways), -1, dtype=np.int64)
    found = 0
    for row in rows:
        line = table[row % sets]
        place = ways - 1
        for way in range(ways):
            if line[way] == row:
                place = way
                found += 1
                break
        for way in range(place, 0, -1):
            line[way] = line[way - 1]
        line[0] = row
    return found


@pytest.mark.parametrize("exponent", [0.8, 0.95, 1.05])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_sets_hit_hardly_less_often_and_a_clock_a_little_more(exponent: float, share: float) -> None:
    rows, capacity = drawn(exponent), round(share * CATALOG) // 64 * 64
    cache = EmbCache(one_in=1, row_bytes=1, limit_bytes=capacity, max_bytes=CATALOG)
    lru = 1.0 - cache.access(rows.tolist()) / ACCESSES
    narrow, wide = (_hits_in_sets(rows, capacity // ways, ways) / ACCESSES - lru for ways in (32, 64))
    clock = float(hits("Clock", rows.tolist(), capacity).mean()) - lru
    print(f"{exponent} {share}: LRU {lru:.4f}, 32 ways {narrow:+.4f}, 64 {wide:+.4f}, CLOCK {clock:+.4f}")  # noqa: T201 - with -s
    assert -0.004 < narrow < 0.0005
    assert -0.002 < wide < 0.0005
    assert 0.0 < clock < 0.015
