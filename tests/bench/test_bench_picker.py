"""What the picker benchmark reports: one goal, of the picker; baselines of the same run; wrong answers, counted."""

import bench.picker
from bench.picker_site import Slice


def test_the_goal_is_of_the_picker_and_baselines_are_grpc_that_does_nothing_and_envoy_alone() -> None:
    taken = {
        (way.name, callers): [Slice(10.0 * at + callers, 100.0 + at, at == 1, [0.1 * at, 5.0])] * 3
        for at, way in enumerate(bench.picker.WAYS)
        for callers in (bench.picker.CALLERS, 1)
    }
    by_name = {result.name: result for result in bench.picker.figures(taken)}
    assert {name for name, result in by_name.items() if result.goal is not None} == {
        "picker: CPU a request",
        "answers by another than the owner, or failed",
    }
    nothing = by_name[f"{bench.picker.NOTHING.name}: CPU a request"].value
    assert by_name["picker: CPU a request"].baseline == nothing
    assert by_name["picker: CPU of Envoy a request"].baseline == 100.0
    assert by_name["answers by another than the owner, or failed"].value == 6
