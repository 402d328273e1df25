"""The benchmark of tiers: what is quick to measure meets its goals beside its baselines."""

import pytest

from bench import tiers, tiers_loading


def test_loading_meets_its_goals_beside_plain_layer_wise_loading() -> None:
    results, tables = tiers_loading.measure()
    assert all(result.met for result in results)
    assert all(result.value >= result.baseline for result in results if result.baseline is not None)
    assert [table.row_count for table in tables] == [4, 3]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_meets_every_goal_and_ends_in_one_json_array(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    tiers.run(quick=True, as_json=True, seed=1)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["name"] for row in rows if row["met"] is False] == []
    assert sum(row["met"] is True for row in rows) > 20
