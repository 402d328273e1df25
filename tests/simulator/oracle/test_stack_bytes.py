"""One pass says for every capacity whether a user is found: the same as a cache that was run at that capacity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core.kv_cache import KvCache
from simulator.oracle.stack import NEVER, lru_hits, needed_bytes, previous_access, shrinking_stack_bytes, stack_bytes

accesses = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), min_size=1, max_size=60)


def columns(visits: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([user for user, _ in visits]), np.array([tokens for _, tokens in visits])


def found_by_cache(visits: list[tuple[int, int]], capacity: int) -> list[int]:
    cache = KvCache(bytes_per_token=1, limit_bytes=capacity, page_tokens=4)
    return [cache.access((str(user), "1"), tokens) for user, tokens in visits]


def pages(tokens: np.ndarray) -> np.ndarray:
    return -(-tokens // 4) * 4


@settings(max_examples=300, deadline=None)
@given(accesses, st.integers(0, 40))
def test_a_replayed_lru_finds_what_the_cache_of_the_engine_finds(visits: list[tuple[int, int]], capacity: int) -> None:
    user, tokens = columns(visits)
    assert lru_hits(user, tokens, pages(tokens), 7, capacity).tolist() == found_by_cache(visits, capacity)


@settings(max_examples=300, deadline=None)
@given(accesses, st.integers(12, 80))
def test_one_pass_agrees_with_the_cache_at_every_capacity_that_holds_the_largest_user(
    visits: list[tuple[int, int]], capacity: int
) -> None:
    user, tokens = columns(visits)
    need, previous = needed_bytes(user, pages(tokens), users=7)
    hit = np.where(need <= capacity, np.minimum(tokens[previous], tokens), 0)
    assert hit.tolist() == found_by_cache(visits, capacity)


@pytest.mark.parametrize("shrinking", [False, True])
def test_one_pass_agrees_with_the_cache_on_long_logs(shrinking: bool) -> None:
    rng = np.random.default_rng(3)
    user = (rng.zipf(1.3, size=4000) % 200).astype(np.int64)
    tokens = rng.integers(0, 400, size=4000) if shrinking else 50 + np.arange(4000) // 20
    need, previous = needed_bytes(user, pages(tokens), users=200)
    assert np.any(np.diff(tokens) < 0) == shrinking
    for capacity in (500, 2_000, 8_000, 20_000, 60_000):
        hit = np.where(need <= capacity, np.minimum(tokens[previous], tokens), 0)
        assert hit.tolist() == lru_hits(user, tokens, pages(tokens), 200, capacity).tolist()


@settings(max_examples=100, deadline=None)
@given(accesses)
def test_both_ways_agree_where_no_history_shrinks(visits: list[tuple[int, int]]) -> None:
    user, tokens = columns(visits)
    size = np.maximum.accumulate(pages(tokens))
    previous = previous_access(user, 7)
    assert stack_bytes(previous, size).tolist() == shrinking_stack_bytes(previous, size).tolist()


def test_a_first_visit_is_found_nowhere() -> None:
    need, previous = needed_bytes(np.array([0, 1, 0]), np.array([4, 8, 4]), users=2)
    assert need.tolist() == [NEVER, NEVER, 12]
    assert previous.tolist() == [-1, -1, 0]
