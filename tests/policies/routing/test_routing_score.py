"""Scores of a hundred thousand users at once are those of each by itself, and bounds follow weights and a floor."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import an_instance

from policies.routing.bound import caps, first_below
from policies.routing.score import NOBODY, Known, costs_of, known_or_mean, scores_ms, weigh
from policies.routing.types import LoadBound


def test_a_hundred_thousand_users_are_scored_in_one_call_as_each_by_itself() -> None:
    rng = np.random.default_rng(1)
    users, count = 100_000, 32
    facts = [
        an_instance(number, queue_ms=float(rng.uniform(0, 5)), emb_overlap=float(rng.uniform()), refilling=number % 7 == 0)
        for number in range(count)
    ]
    hbm, host, ssd = (rng.integers(0, 2000, (users, count)).astype(np.float32) for _ in range(3))
    history = (hbm + host + ssd).max(axis=1)
    score = scores_ms(costs_of(facts), history=history, hbm=hbm, host=host, ssd=ssd)
    assert score.shape == (users, count)
    for user, at in zip(rng.integers(0, users, 50), rng.integers(0, count, 50), strict=True):
        fact, slower = facts[at], 1.25 if at % 7 == 0 else 1.0
        lost = history[user] - hbm[user, at] - host[user, at] - ssd[user, at]
        expected = lost * 0.05 + host[user, at] * 0.01 * slower + ssd[user, at] * 0.03 * slower
        expected += (1.0 - fact.emb_overlap) * 1000.0 * 0.001 * slower + fact.queue_ms
        assert score[user, at] == pytest.approx(-expected, rel=1e-4)


def test_overlap_may_differ_by_user() -> None:
    costs = costs_of([an_instance(0), an_instance(1)])
    rows_ms = np.array([[0.0, 5.0], [5.0, 0.0]], dtype=np.float32)
    nothing = np.zeros(0, dtype=np.float32)
    none = np.zeros(0, dtype=np.int64)
    wishes = weigh(
        Known(none, none, nothing, nothing, nothing, nothing),
        costs._replace(rows_ms=rows_ms),
        home=np.array([0, 0]),
        current=np.array([NOBODY, NOBODY]),
        eligible=np.array([True, True]),
        settled=np.array([False, False]),
        margin_ms=1.0,
    )
    assert wishes.choices[:, 0].tolist() == [NOBODY, 1]
    assert wishes.saved_ms[1, 0] == pytest.approx(5.0)


def test_loading_is_never_dearer_than_recomputing() -> None:
    costs = costs_of([an_instance(0, ms_per_token_host=0.2, ms_per_token_ssd=math.inf)])
    assert costs.host_ms.tolist() == costs.ssd_ms.tolist() == costs.token_ms.tolist()


@pytest.mark.parametrize(
    ("given_", "expected"),
    [([1.0, math.nan, 3.0], [1.0, 2.0, 3.0]), ([math.nan], [0.0]), ([-1.0, math.inf], [0.0, 0.0]), ([], [])],
)
def test_what_is_unknown_is_as_the_others(given_: list[float], expected: list[float]) -> None:
    assert known_or_mean(given_).tolist() == expected


@pytest.mark.parametrize("mad", [0.0, 1e-300, 1e15, -1.0])
@pytest.mark.parametrize("field", ["ms_per_token_recompute", "ms_per_row", "rows_per_request"])
def test_what_one_says_of_its_costs_counts_within_a_factor_of_the_median(field: str, mad: float) -> None:
    usual = [an_instance(number) for number in range(3)]
    odd = an_instance(3, **{field: mad})
    alike, costs = costs_of([*usual, an_instance(3)]), costs_of([*usual, odd])
    for name in ("token_ms", "host_ms", "rows_ms"):
        before, after = getattr(alike, name), getattr(costs, name)
        assert np.all(after >= before / 2.0 - 1e-6)
        assert np.all(after <= before * 2.0 + 1e-6)
    assert costs.token_ms[:3].tolist() == alike.token_ms[:3].tolist()


def test_where_most_say_that_a_token_costs_nothing_the_others_are_believed() -> None:
    facts = [an_instance(at, ms_per_token_recompute=cost) for at, cost in enumerate((0.0, 0.0, 0.05))]
    assert costs_of(facts).token_ms.tolist() == pytest.approx([0.0, 0.0, 0.05])


def test_rows_that_miss_count_up_to_a_limit_above_the_least_of_those_that_may_serve() -> None:
    facts = [an_instance(0, emb_overlap=1.0, ready=False), an_instance(1, emb_overlap=0.9), an_instance(2, emb_overlap=0.0)]
    assert costs_of(facts, most_wait_ms=0.3).rows_ms.tolist() == pytest.approx([0.0, 0.1, 0.4], rel=1e-5)


def test_caps_follow_weights_and_a_floor() -> None:
    load, bound = np.array([10.0, 20.0, 30.0, 0.0]), LoadBound(percent=125.0, floor=8.0)
    assert caps(load, np.array([100.0, 100.0, 40.0, 0.0]), bound).tolist() == [31.25, 31.25, 12.5, 0.0]
    assert caps(load / 30.0, np.array([1.0, 1.0, 1.0, 0.0]), bound).tolist() == [8.0, 8.0, 8.0, 0.0]
    assert caps(load, np.zeros(4), bound).tolist() == [0.0] * 4


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=8), st.floats(101.0, 300.0))
def test_somebody_is_always_below_the_cap(load: list[float], percent: float) -> None:
    array = np.array(load)
    cap = caps(array, np.ones(len(load)), LoadBound(percent=percent, floor=1.0))
    order = range(len(load))
    found = first_below(order, array, cap, more=0.0)
    assert found != NOBODY
    assert all(array[at] > cap[at] for at in range(found))


def test_nobody_is_found_where_all_are_full() -> None:
    assert first_below([0, 1], np.array([8.0, 9.0]), np.array([8.0, 8.0])) == NOBODY
