"""The table of last accesses in whole arrays says what its rule says access by access."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from policies.allocation.table import WAYS, AccessTable, mix64

BINS, SHORTEST_MS, LOG_STEP = 40, 1.0, 0.4
Counting = Callable[..., tuple[NDArray[np.float64], NDArray[np.float64]]]


class WordForWord:
    """The rule of the module's docstring on dictionaries; `None` stands for a free way."""

    def __init__(self, *, entries: int, decay_ms: float) -> None:
        self.sets: list[list[list[float] | None]] = [[None] * WAYS for _ in range(entries // WAYS)]
        self.decay_ms = decay_ms

    def count(self, keys: list[int], t_ms: list[float], sizes: list[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        binned, squares = np.zeros(BINS + 1), np.zeros(BINS + 1)
        for key, now, size in zip(keys, t_ms, sizes, strict=True):
            spread = int(mix64(np.array([key ^ 0xBF58476D1CE4E5B9], dtype=np.uint64))[0])
            ways = self.sets[spread & (len(self.sets) - 1)]
            entry = next((way for way in ways if way is not None and way[0] == key), None)
            if entry is None:
                ages = [-math.inf if way is None else way[1] for way in ways]
                entry = ways[ages.index(min(ages))] = [key, now, 0.0]
                place, before = BINS, 0.0
            else:
                reuse = max(now - entry[1], 0.0)
                before = entry[2] * math.exp(-reuse / self.decay_ms)
                place = 0 if reuse < SHORTEST_MS else min(math.floor(math.log(reuse / SHORTEST_MS) / LOG_STEP) + 1, BINS)
            binned[place] += size
            squares[place] += size * (2.0 * before + size)
            entry[1], entry[2] = max(now, entry[1]), before + size
        return binned, squares


batches = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.floats(0.0, 400.0), st.floats(0.5, 100.0)), max_size=80), min_size=1, max_size=5
)


@pytest.mark.parametrize("count", [AccessTable.count, AccessTable.count_numpy], ids=["compiled where it can be", "numpy"])
@settings(max_examples=150, deadline=None)
@given(batches=batches, sets=st.sampled_from([1, 4, 64]), decay_ms=st.sampled_from([10.0, 300.0, math.inf]))
def test_arrays_and_the_rule_word_for_word_give_the_same_bins(
    count: Counting, batches: list[list[tuple[int, float, float]]], sets: int, decay_ms: float
) -> None:
    table = AccessTable(entries=sets * WAYS, decay_ms=decay_ms, bins=BINS, shortest_ms=SHORTEST_MS, log_step=LOG_STEP)
    rule = WordForWord(entries=sets * WAYS, decay_ms=decay_ms)
    for number, batch in enumerate(batches):
        ordered = sorted(batch, key=lambda access: access[1])
        keys = [key for key, _, _ in ordered]
        t_ms = [150.0 * number + t for _, t, _ in ordered]  # batches overlap, so that some stamps come late
        sizes = [size for _, _, size in ordered]
        binned, squares = count(table, np.array(keys, dtype=np.uint64), np.array(t_ms, dtype=np.float64), np.array(sizes))
        expected, expected_squares = rule.count(keys, t_ms, sizes)
        np.testing.assert_allclose(binned, expected, rtol=1e-9)
        np.testing.assert_allclose(squares, expected_squares, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [AccessTable.count, AccessTable.count_numpy], ids=["compiled where it can be", "numpy"])
def test_stamps_that_go_back_far_for_one_key_change_no_weight_of_another(count: Counting) -> None:
    decay_ms = 10.0
    table = AccessTable(entries=WAYS, decay_ms=decay_ms, bins=BINS, shortest_ms=SHORTEST_MS, log_step=LOG_STEP)
    rule = WordForWord(entries=WAYS, decay_ms=decay_ms)
    for keys, t_ms in (([3, 1], [100.0, 100_000.0]), ([1, 3, 1, 3], [110.0, 110.0, 120.0, 120.0])):
        given_ = np.array(keys, dtype=np.uint64), np.array(t_ms), np.ones(len(keys))
        binned, squares = count(table, *given_)
        expected, expected_squares = rule.count(keys, t_ms, [1.0] * len(keys))
        np.testing.assert_array_equal(binned, expected)
        np.testing.assert_allclose(squares, expected_squares, rtol=1e-9)


def test_two_hot_keys_that_contend_for_a_full_set_are_taken_in_turns() -> None:
    table = AccessTable(entries=WAYS, decay_ms=1000.0, bins=BINS, shortest_ms=SHORTEST_MS, log_step=LOG_STEP)
    rule = WordForWord(entries=WAYS, decay_ms=1000.0)
    rng = np.random.default_rng(1)
    keys = np.where(rng.random(4000) < 0.5, rng.integers(0, 2, 4000), rng.integers(0, 40, 4000)).astype(np.uint64)
    t_ms = np.sort(rng.uniform(0.0, 4000.0, 4000))
    binned, squares = table.count_numpy(keys, t_ms, np.ones(4000))
    expected, expected_squares = rule.count(keys.tolist(), t_ms.tolist(), [1.0] * 4000)
    np.testing.assert_array_equal(binned, expected)
    np.testing.assert_allclose(squares, expected_squares, rtol=1e-9)


def test_the_squares_of_all_accesses_are_the_squared_weights_of_the_keys() -> None:
    table = AccessTable(entries=1024, decay_ms=math.inf, bins=BINS, shortest_ms=SHORTEST_MS, log_step=LOG_STEP)
    keys = np.repeat(np.arange(5, dtype=np.uint64), [1, 2, 3, 4, 5])
    _, squares = table.count(keys, np.arange(15.0), np.full(15, 2.0))
    assert squares.sum() == pytest.approx(4.0 * (1 + 4 + 9 + 16 + 25))
