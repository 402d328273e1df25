"""What the client benchmark reports: every goal has its figure, and each figure its baseline of the same run."""

import pytest

import bench.client
from bench.report import Result


def test_the_goal_is_of_the_plain_pick_and_of_the_one_with_hot_users(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Result] = []
    monkeypatch.setattr(bench.client, "publish", lambda name, results, **_: published.extend(results))
    bench.client.run(quick=True, as_json=False, seed=1)
    by_name = {result.name: result for result in published}
    with_goal = {name for name, result in by_name.items() if result.goal is not None}
    assert with_goal == {"pick, slots only", "pick, slots only, 1000 instances", "pick, 100000 hot users"}
    bare = by_name[bench.client.DICT].value
    for result in published:
        if result.unit == "us" and result.name != bench.client.DICT:
            assert result.baseline == bare
