"""Erlang's loss formula against three other ways to it: published tables, an integral, and a simulated loss system."""

import heapq
from fractions import Fraction

import numpy as np
import pytest

from policies.preinference.erlang import fewest_slots, refused_share

#: Offered load in erlangs that so many slots carry while they refuse 1 %, from the published tables of teletraffic engineering.
ONE_PERCENT = {1: 0.0101, 2: 0.153, 3: 0.455, 5: 1.361, 10: 4.461, 15: 8.108, 20: 12.031, 50: 37.901, 100: 84.064}


@pytest.mark.parametrize(("slots", "offered"), ONE_PERCENT.items())
def test_the_published_tables_come_out_again(slots: int, offered: float) -> None:
    assert refused_share(offered, slots=slots) == pytest.approx(0.01, rel=0.005)
    assert fewest_slots([offered * 0.995], refused_percent=1.0, most=200) == slots
    assert fewest_slots([offered * 1.005], refused_percent=1.0, most=200) == slots + 1


@pytest.mark.parametrize("slots", [1, 2, 7, 30, 100])
@pytest.mark.parametrize("offered", [0.5, 3.0, 25.0, 90.0])
def test_the_recursion_is_the_sum_and_the_integral_that_it_stands_for(slots: int, offered: float) -> None:
    load, term, total = Fraction(offered), Fraction(1), Fraction(1)
    for count in range(1, slots + 1):
        term *= load / count
        total += term
    assert refused_share(offered, slots=slots) == pytest.approx(float(term / total), rel=1e-12)
    # 1/B is the integral of exp(-t) (1 + t/a)^c over t >= 0 (Fortet), a polynomial, for which Gauss and Laguerre are exact.
    points, weights = np.polynomial.laguerre.laggauss(60)
    assert 1.0 / refused_share(offered, slots=slots) == pytest.approx(
        float(weights @ (1.0 + points / offered) ** slots), rel=1e-9
    )


@pytest.mark.parametrize("spread", ["equal", "exponential", "two kinds"])
def test_a_simulated_loss_system_refuses_as_much_however_computations_vary(spread: str) -> None:
    rng, slots, offered, count = np.random.default_rng(2), 4, 2.0, 120_000
    holding = {
        "equal": np.ones(count),
        "exponential": rng.exponential(1.0, count),
        "two kinds": rng.choice([0.25, 4.0], count, p=[0.8, 0.2]),
    }[spread]
    busy: list[float] = []
    refused = np.zeros(count)
    for place, (now, length) in enumerate(zip(np.cumsum(rng.exponential(1.0 / offered, count)), holding, strict=True)):
        while busy and busy[0] <= now:
            heapq.heappop(busy)
        if len(busy) < slots:
            heapq.heappush(busy, now + length)
        else:
            refused[place] = 1.0
    batches = refused.reshape(60, -1).mean(axis=1)
    error = batches.std(ddof=1) / 60**0.5
    assert abs(batches.mean() - refused_share(offered, slots=slots)) <= 4.0 * error
    assert error <= 0.03 * refused_share(offered, slots=slots)
