"""Curves over windows: misses fall, capacity is what misses leave behind, and a young crowd fills no old cache."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_worlds import tables

from simulator.request_log import RowLaw
from training.curves import WINDOW_MS, at, held, of_an_age, row_misses, row_tables, user_misses


def some_users() -> np.ndarray:
    one = np.array([0.2, 0.4])
    return user_misses(
        never=one * 0.5,
        short=np.array([0.6, 0.9]),
        short_ms=np.array([4e3, 2e4]),
        long_ms=np.array([2e5, 1e6]),
        steepness=np.array([1.2, 2.0]),
    )


def test_longer_windows_miss_less_down_to_those_that_never_come_back() -> None:
    misses = some_users()
    assert (np.diff(misses, axis=1) <= 0).all()
    assert misses[:, 0] == pytest.approx([1.0, 1.0], abs=0.02)
    assert (misses[:, -1] >= [0.1, 0.2]).all()
    assert misses[:, -1] == pytest.approx([0.1, 0.2], abs=0.06)


def test_rows_follow_the_formula_of_independent_references() -> None:
    law = RowLaw(exponent=0.9, catalog_rows=100_000)
    popularity = np.arange(1, 100_001, dtype=np.float64) ** -0.9
    popularity /= popularity.sum()
    misses = row_misses(row_tables([law]), np.array([0]), np.array([100.0]), np.array([0.0]))[0]
    for place in (20, 40, 50, 60):
        asked = 100.0 * WINDOW_MS[place]
        assert misses[place] == pytest.approx(float((popularity * np.exp(-popularity * asked)).sum()), abs=0.004)


def test_drift_adds_misses() -> None:
    law, pace = np.array([1]), np.array([50.0])
    still, drifting = (row_misses(tables(), law, pace, np.array([d]))[0] for d in (0.0, 2000.0))
    assert (drifting >= still - 1e-12).all()
    assert drifting[60] > still[60]


def test_a_window_holds_the_integral_of_its_misses() -> None:
    misses = np.exp(-WINDOW_MS / 5000.0)[None, :]
    exact = 5000.0 * (1.0 - np.exp(-WINDOW_MS / 5000.0))
    assert held(misses)[0] == pytest.approx(exact, rel=0.03)


def test_a_crowd_as_young_as_a_second_hits_and_holds_no_more_than_a_second_of_it() -> None:
    misses = some_users()
    missed, holding = of_an_age(misses, np.array([1000.0, np.inf]))
    old = WINDOW_MS > 1000.0
    assert (missed[0, old] >= misses[0, old]).all()
    assert np.ptp(missed[0, old]) == 0.0
    assert (holding[0, old] == 0.0).all()
    assert (missed[1] == misses[1]).all()
    assert (holding[1] == misses[1]).all()


def test_what_begins_now_misses_always() -> None:
    missed, holding = of_an_age(some_users(), np.zeros(2))
    assert (missed == 1.0).all()
    assert (holding == 0.0).all()


@given(
    st.lists(st.floats(0.0, 10.0), min_size=2, max_size=20),
    st.lists(st.floats(-1.0, 12.0), min_size=1, max_size=8),
    st.integers(0, 1000),
)
def test_rows_are_interpolated_as_numpy_does(steps: list[float], queries: list[float], seed: int) -> None:
    x = np.cumsum(np.asarray(steps) + 1e-3)[None, :]
    y = np.random.default_rng(seed).random(x.shape)
    found = at(x, y, np.asarray(queries)[None, :])
    assert found[0] == pytest.approx(np.interp(queries, x[0], y[0]))
