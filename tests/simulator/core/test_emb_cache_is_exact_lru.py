"""The lazy ring must agree with a plain LRU on every access, through any sequence of resizes and refills."""

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core.emb_cache import EmbCache, MissRatio

MAX_ROWS = 12


class PlainLru:
    """Two lists, oldest first: what is cached and what was evicted, as slow and clear as possible."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.ghosts: list[int] = []

    def access(self, row: int) -> bool:
        hit = row in self.cached
        if row in self.ghosts:
            self.ghosts.remove(row)
        self.cached[row] = None
        self.cached.move_to_end(row)
        self.trim()
        return hit

    def trim(self) -> None:
        while len(self.cached) > self.capacity:
            self.ghosts.append(self.cached.popitem(last=False)[0])

    def refill(self, rows: int) -> None:
        while rows and self.ghosts and len(self.cached) < self.capacity:
            row = self.ghosts.pop()
            self.cached[row] = None
            self.cached.move_to_end(row, last=False)
            rows -= 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("access"), st.integers(0, 23)),
        st.tuples(st.just("access"), st.integers(0, 5)),
        st.tuples(st.just("resize"), st.integers(0, MAX_ROWS)),
        st.tuples(st.just("refill"), st.integers(0, 6)),
    ),
    max_size=400,
)


@given(capacity=st.integers(0, MAX_ROWS), steps=STEPS)
@settings(max_examples=150, deadline=None)
def test_every_hit_and_the_order_agree_with_a_plain_lru(capacity: int, steps: list[tuple[str, int]]) -> None:
    ring = EmbCache(one_in=1, row_bytes=1, limit_bytes=capacity, max_bytes=2 * MAX_ROWS)
    plain = PlainLru(capacity)
    for step, value in steps:
        if step == "access":
            assert ring.access([value]) == (not plain.access(value))
        elif step == "resize":
            ring.set_limit(value)
            ring.trim()
            plain.capacity = value
            plain.trim()
        else:
            ring.refill(value)
            plain.refill(value)
        assert ring.rows_oldest_first() == list(plain.cached)
        assert ring.used_bytes == len(plain.cached) <= ring.limit_bytes
        assert ring.backlog_bytes == min(plain.capacity - len(plain.cached), len(plain.ghosts))


def test_the_ring_may_wrap_and_compact_many_times_without_losing_order() -> None:
    ring = EmbCache(one_in=1, row_bytes=1, limit_bytes=40, max_bytes=100)
    plain = PlainLru(40)
    for step in range(20_000):
        row = (step * step + 7 * step) % 61 if step % 3 else step % 5
        assert ring.access([row]) == (not plain.access(row))
    assert ring.rows_oldest_first() == list(plain.cached)


def test_the_ghost_list_is_bounded_and_keeps_the_youngest() -> None:
    ring = EmbCache(one_in=1, row_bytes=1, limit_bytes=10, max_bytes=50)
    ring.access(range(100_000))
    ring.set_limit(50)
    ring.refill(1000)
    rows = ring.rows_oldest_first()
    assert rows == list(range(100_000 - len(rows), 100_000))
    assert len(rows) == 50


def test_above_the_limit_a_miss_replaces_and_never_adds() -> None:
    ring = EmbCache(one_in=1, row_bytes=1, limit_bytes=10, max_bytes=10)
    ring.access(range(10))
    ring.set_limit(4)
    ring.access([20, 21])
    assert (ring.used_bytes, ring.overage_bytes) == (10, 6)
    assert ring.trim() == 6
    assert ring.rows_oldest_first() == [8, 9, 20, 21]


def test_refill_spends_no_more_than_its_budget_in_whole_sampled_rows() -> None:
    ring = EmbCache(one_in=4, row_bytes=10, limit_bytes=400, max_bytes=400)
    ring.access(range(10))
    ring.set_limit(80)
    ring.trim()
    ring.set_limit(400)
    assert ring.backlog_bytes == 320
    assert ring.refill(119) == 80
    assert ring.rows_oldest_first() == [6, 7, 8, 9]


def test_the_smoothed_ratio_counts_expected_samples_and_follows_within_its_window() -> None:
    ratio = MissRatio(window=400.0)
    for _ in range(200):
        low = ratio.update(misses=5, expected=50.0)
    assert abs(low - 0.1) < 0.001
    for _ in range(24):
        high = ratio.update(misses=25, expected=50.0)
    assert abs(high - 0.5) < 0.03


def test_no_request_at_all_is_a_ratio_of_zero_not_an_error() -> None:
    assert MissRatio().update(misses=0, expected=0.0) == 0.0
