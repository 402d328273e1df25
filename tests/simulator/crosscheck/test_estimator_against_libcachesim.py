"""The miss-ratio curve from sampled reuse times against libcachesim's LRU on the real trace, at eight capacities.

Goal: a mean error of at most 0.02 and none above 0.05 at a sample of one key in sixteen. On the blocks it holds over twelve
samples that have nothing in common. On the users a sixteenth is too few: 460 of 7 373, who differ a hundredfold in size. Laying
what the sample lacks to ordinary users halves the error that laying it to hot ones made, to 0.02, with single points of 0.1;
one user in two, or all of them, keeps the goal. docs/estimator.md has the figures on the part that nothing was chosen on.

What the curve calls a hit is a state found, all of it: tokens that the history has grown by since are no part of it, and they do
miss (0.05 of all tokens on this trace of conversations).
"""

import math
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from other_caches import hits
from real_streams import blocks, spread, visits

from policies.allocation.estimator import ROWS_SPREAD, USERS_SPREAD, ReuseTimeEstimator, mix64, sample_mask
from simulator.core.kv_cache import KvCache

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


def curve(
    ids: NDArray[np.int64],
    sizes: NDArray[np.float64],
    t_ms: NDArray[np.float64],
    *,
    capacities: list[int],
    one_in: int,
    sample: int,
    ordinary_spread: float = ROWS_SPREAD,
) -> NDArray[np.float64]:
    """Estimated miss ratios; `sample` picks one of many independent samples of the keys."""
    keys = mix64(mix64(ids.astype(np.uint64)) ^ mix64(np.full(1, sample, dtype=np.uint64)))
    estimator = ReuseTimeEstimator(sample_rate=1.0 / one_in, ordinary_spread=ordinary_spread, decay_ms=math.inf)
    for start in range(0, len(ids), 2000):
        part = slice(start, start + 2000)
        mask = sample_mask(keys[part], 1.0 / one_in)
        estimator.ingest(
            keys[part][mask],
            t_ms[part][mask],
            sizes[part][mask],
            asked_bytes=float(sizes[part].sum()),
            now_ms=float(t_ms[part][-1]),
        )
    return estimator.curve(np.array(capacities, dtype=np.float64))


@cache
def exact_of_blocks() -> tuple[list[int], NDArray[np.float64]]:
    ids, _ = blocks()
    capacities = [round(share * len(set(ids))) for share in SHARES]
    return capacities, np.array([1.0 - hits("LRU", ids, capacity).mean() for capacity in capacities])


def blocks_error(*, one_in: int, sample: int) -> NDArray[np.float64]:
    ids, t_ms = blocks()
    capacities, exact = exact_of_blocks()
    found = curve(np.array(ids), np.ones(len(ids)), t_ms, capacities=capacities, one_in=one_in, sample=sample)
    return np.abs(found - exact)


def test_all_blocks_give_libcachesims_miss_ratios_to_a_fifth_of_a_point() -> None:
    assert blocks_error(one_in=1, sample=0).max() <= 0.0025


def test_a_sixteenth_of_the_blocks_keeps_the_goal_whichever_sixteenth_it_is() -> None:
    errors = np.array([blocks_error(one_in=16, sample=sample) for sample in range(1, 13)])
    assert errors.mean() <= 0.01
    assert errors.mean(axis=1).max() <= 0.025
    assert errors.max() <= 0.05


@cache
def users_of_the_trace() -> tuple[NDArray[np.float64], NDArray[np.float64], list[int], NDArray[np.float64]]:
    """Bytes asked by each visit, times, capacities, and the share of bytes asked by visits that miss libcachesim's LRU."""
    seen = visits()
    asked = seen.state_bytes.astype(np.float64)
    capacities = [round(share * seen.final_bytes) for share in SHARES]
    users, tokens = seen.user.tolist(), seen.state_bytes.tolist()
    missed = [~hits("LRU", users, capacity, sizes=tokens, growing=True) for capacity in capacities]
    return asked, spread(seen.time_ms), capacities, np.array([(asked * row).sum() / asked.sum() for row in missed])


def test_all_users_weighted_by_their_bytes_give_libcachesims_miss_ratios_to_a_third_of_a_point() -> None:
    asked, t_ms, capacities, exact = users_of_the_trace()
    found = curve(visits().user, asked, t_ms, capacities=capacities, one_in=1, sample=0)
    assert np.abs(found - exact).max() <= 0.0035


def users_error(*, one_in: int, ordinary_spread: float) -> NDArray[np.float64]:
    asked, t_ms, capacities, exact = users_of_the_trace()
    found = [
        curve(visits().user, asked, t_ms, capacities=capacities, one_in=one_in, sample=sample, ordinary_spread=ordinary_spread)
        for sample in range(1, 13)
    ]
    return np.abs(np.array(found) - exact)


def test_one_user_in_two_keeps_the_goal() -> None:
    error = users_error(one_in=2, ordinary_spread=USERS_SPREAD)
    assert error.mean() <= 0.01
    assert error.max() <= 0.05


def test_a_sixteenth_of_few_users_is_off_by_half_as_much_when_none_of_them_is_taken_for_a_hot_key() -> None:
    ordinary, hot = (users_error(one_in=16, ordinary_spread=spread).mean() for spread in (USERS_SPREAD, 0.0))
    assert ordinary <= 0.025
    assert ordinary < 0.5 * hot


@pytest.mark.parametrize("place", range(len(SHARES)))
def test_tokens_miss_by_as_much_more_as_histories_have_grown(place: int) -> None:
    asked, _, capacities, exact = users_of_the_trace()
    cache_of_users = KvCache(bytes_per_token=1, limit_bytes=capacities[place], page_tokens=1)
    tokens = visits().state_bytes.tolist()
    hit = np.array([cache_of_users.access((str(u), "1"), count) for u, count in zip(visits().user.tolist(), tokens, strict=True)])
    grown = float((asked - hit)[hit > 0].sum() / asked.sum())
    assert 1.0 - hit.sum() / asked.sum() == pytest.approx(exact[place] + grown)
    assert 0.0 < grown <= 0.053
