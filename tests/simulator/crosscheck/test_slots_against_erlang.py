"""Erlang's loss formula against three other ways to it: published tables, an integral, and a simulated loss system."""

import heapq
from fractions import Fraction

import numpy as np
import pytest
from fleet_of_one import SERVICE
from queue_formulas import md1_refused_share

from contract import engine
from policies.preinference.erlang import fewest_slots, refused_share
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore

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


@pytest.mark.parametrize(("load", "slots"), [(0.6, 2), (0.8, 4), (0.9, 8)])
def test_an_instance_refuses_prefixes_as_one_server_with_so_many_places_does_which_is_more_than_erlang_says(
    load: float, slots: int
) -> None:
    """The emulated accelerator computes one prefix after the other, so its slots are places in a queue and not servers.

    Erlang's formula, fed with the slot time that such an engine reports, is within a tenth at two slots and a third of what is
    refused at eight: slots that share one accelerator delay each other, and the formula takes their times for independent.
    """
    config = InstanceConfig(
        pool_bytes=1 << 30,
        service=SERVICE,
        pre_infer_slots=slots,
        pre_infer_bytes=1 << 40,
        popularity=engine.ItemPopularity(exponent=0.95, catalog_rows=1000),  # all rows fit
    )
    core = GRInstanceCore(config, seed=1)
    core.warm()
    each_ms = SERVICE.compute_ms(history=1000, candidates=0, cached=0)
    rng, count, now = np.random.default_rng(1), 8000, 0.0
    refused = np.zeros(count)
    for number in range(count):
        now += rng.exponential(each_ms / load)
        request = engine.PreInferRequest(
            request_id=f"r{number}", user_key=f"{number:032x}", model_version="1", history_tokens=1000
        )
        refused[number] = not core.pre_infer(request, now).accepted
    error = refused.reshape(40, -1).mean(axis=1).std(ddof=1) / 40**0.5
    assert abs(refused.mean() - md1_refused_share(load, slots)) <= 4.0 * error
    offered = core.prefixes.slot_ms / now / (1.0 - refused.mean())
    assert refused_share(offered, slots=slots) <= refused.mean() * 1.15
