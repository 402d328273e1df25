"""Worlds: drawn the same from the same seed, as busy as asked, with the events that their regime says."""

from dataclasses import fields

import numpy as np
import pytest
from training_worlds import tables, worlds

from training.dynamics import Instances
from training.worlds import REGIME_SHARES, STEPS, Regime, Worlds, draw_worlds, rate_factor, second_share


def test_the_same_seed_draws_the_same_worlds() -> None:
    one, other = (draw_worlds(50, tables(), np.random.default_rng(3)) for _ in range(2))
    for field in fields(Worlds):
        assert (getattr(one, field.name) == getattr(other, field.name)).all(), field.name


def test_regimes_come_in_the_shares_of_the_curriculum() -> None:
    drawn = draw_worlds(3000, tables(), np.random.default_rng(4))
    assert np.bincount(drawn.regime, minlength=6) / 3000 == pytest.approx(REGIME_SHARES, abs=0.08)


def test_the_least_busy_split_has_the_utilisation_asked_for() -> None:
    steady = worlds(60, Regime.STEADY, jitter=0.0, tide=0.0)
    loads = []
    for share in np.arange(0.05, 0.96, 0.05):
        instances = Instances(steady.with_value(first_share=float(share)), tables(), np.random.default_rng(0))
        loads.append(instances.load)
    least = np.min(loads, axis=0)
    assert (least > 0.25).all()
    assert (least < 0.8).all()


def test_most_worlds_have_something_to_gain_on_either_side() -> None:
    some = worlds(60, Regime.STEADY)
    best = Instances(some, tables(), np.random.default_rng(0)).best_share()
    assert ((best > 0.06) & (best < 0.94)).mean() > 0.6


@pytest.mark.parametrize("regime", list(Regime))
def test_the_second_crowd_comes_as_the_regime_says(regime: Regime) -> None:
    some = worlds(20, regime)
    course = np.array([second_share(some, np.full(20, float(second))) for second in range(STEPS + 1)])
    assert (course >= 0.0).all()
    assert (course <= 1.0).all()
    assert (course[0] == 0.0).all()
    if regime is Regime.STEADY:
        assert (course == 0.0).all()
    elif regime in (Regime.TREND, Regime.CATALOGUE_CHURN):
        assert (np.diff(course, axis=0) >= 0.0).all()
        assert course[-1] == pytest.approx(np.ones(20))
    else:
        assert course.max(axis=0) == pytest.approx(some.peak, rel=0.02)
        assert (course[-1] == 0.0).all()


def test_only_bursts_bring_requests_on_top_of_the_tide() -> None:
    for regime in (Regime.STEADY, Regime.TREND, Regime.CATALOGUE_CHURN):
        some = worlds(20, regime, tide=0.0)
        assert rate_factor(some, np.full(20, 100.0)) == pytest.approx(np.ones(20))
    flash = worlds(20, Regime.FLASH_CROWD, tide=0.0)
    middle = (flash.begin + flash.end) / 2.0
    assert rate_factor(flash, middle) == pytest.approx(1.0 + flash.extra)
