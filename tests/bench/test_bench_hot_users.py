"""The benchmark of hot users measures what it says."""

import pytest

import bench.hot_users
from bench.__main__ import BENCHMARKS


def test_it_is_one_of_the_benchmarks() -> None:
    assert BENCHMARKS["hot-users"] is bench.hot_users.run


def test_everybody_away_is_overridden_and_a_round_weighs_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.hot_users, "USERS", 2_000)
    fleet = bench.hot_users._fleet(1.0, seed=1)
    fleet.merge(fleet.bodies(5_000))
    _, first = fleet.weigh()
    assert (first.known, first.weighed, len(first.users)) == (2_000, 2_000, 2_000)
    fleet.merge(fleet.bodies(10))
    _, then = fleet.weigh()
    assert then.weighed == 0
    assert then.users == first.users
