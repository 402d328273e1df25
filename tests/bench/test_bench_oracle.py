"""The benchmark of the oracle: errors, regret and promises meet their goals; how long it takes is not judged here."""

import json

import numpy as np
import pytest

from bench import oracle


def test_regret_is_what_the_choice_of_one_table_costs_in_the_other() -> None:
    these, those = np.array([[1.0, 2.0], [5.0, 4.0]]), np.array([[1.1, 1.0], [5.0, 4.0]])
    assert oracle._regret(these, those) == pytest.approx(5.0)
    assert oracle._regret(those, those) == 0.0
    assert oracle._error(np.array([[1.01, 0.97]]), np.array([[1.0, 1.0]])) == pytest.approx(2.0)


def test_a_plan_names_the_split_of_the_window_that_begins() -> None:
    plan = oracle.Plan((10, 20, 30))
    assert plan.decide(oracle.WINDOW_MS, []) == []
    assert [plan.decide(n * oracle.WINDOW_MS, [None])[0] for n in range(5)] == [10, 20, 30, 30, 30]  # type: ignore[list-item]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_meets_every_goal_but_those_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    oracle.run(quick=True, as_json=True, seed=1)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    judged = [row for row in rows if row["unit"] != "CPU s" and row["goal"] is not None]
    assert [row["name"] for row in judged if not row["met"]] == []
    assert len(judged) == 5
