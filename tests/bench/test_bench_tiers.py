"""The benchmark of tiers: what is quick to measure meets its goals beside its baselines."""

from bench import tiers_loading


def test_loading_meets_its_goals_beside_plain_layer_wise_loading() -> None:
    results, tables = tiers_loading.measure()
    assert all(result.met for result in results)
    assert all(result.value >= result.baseline for result in results if result.baseline is not None)
    assert [table.row_count for table in tables] == [4, 3]
