"""What the estimator benchmark compares with: exact LRU by bytes, and samples of the keys that have nothing in common."""

import numpy as np
import pytest

from bench.estimator import HOT_KEYS_ONLY, SHARES, Stream, held_out_users, zipf_rows
from policies.allocation.estimator import USERS_SPREAD


def test_exact_is_lru_by_bytes_with_states_that_grow() -> None:
    keys = np.array([1, 2, 1, 3, 1, 2], dtype=np.int64)
    sizes = np.array([10.0, 10.0, 20.0, 30.0, 20.0, 50.0])
    stream = Stream(keys=keys, t_ms=np.arange(6.0), sizes=sizes)
    capacities, exact = stream.exact
    assert capacities == pytest.approx([share * 100.0 for share in SHARES])
    # 40 bytes hold keys 1 and 2 until key 3 needs all; 80 hold 1, 2 and 3, so that 1 is found twice and 2 once.
    assert exact[SHARES.index(0.4)] == pytest.approx((10 + 10 + 30 + 20 + 50) / 140)
    assert exact[SHARES.index(0.8)] == pytest.approx((10 + 10 + 30) / 140)


def test_with_all_keys_there_is_one_curve_and_it_is_close_to_exact() -> None:
    stream = zipf_rows(0.9, seed=2, rows=5000, accesses=20_000)
    first, second = (stream.errors(one_in=1, sample=sample, spread=HOT_KEYS_ONLY) for sample in (1, 2))
    assert first == pytest.approx(second)
    assert first.max() < 0.02


def test_samples_differ_and_the_held_out_users_are_those_of_the_last_part() -> None:
    users = held_out_users()
    assert users.distinct == 3001
    first, second = (users.errors(one_in=16, sample=sample, spread=USERS_SPREAD) for sample in (1, 2))
    assert not np.allclose(first, second)


def test_exact_lru_of_a_sample_that_is_everything_is_exact_and_of_a_part_it_is_a_smaller_cache() -> None:
    stream = zipf_rows(0.9, seed=2, rows=5000, accesses=20_000)
    for lack_hits in (False, True):
        assert stream.errors_of_whole_sample(one_in=1, sample=1, lack_hits=lack_hits).max() == pytest.approx(0.0)
    errors = stream.errors_of_whole_sample(one_in=4, sample=1, lack_hits=True)
    assert 0.0 < errors.max() < 0.1
