"""The ablation of the routing score names every routing and compares each with the joint score."""

from bench.routing_ablation import COMPARED, JOINT, UnequalSplits, _log, ablation


def test_a_short_ablation_has_every_routing_with_the_joint_score_as_its_baseline() -> None:
    results = {result.name: result for result in ablation([_log(8.0, seed=1)], seed=1)}
    joint = results[f"{JOINT}: P99"]
    assert len(results) == 4 * 9
    for name in COMPARED:
        p99 = results[f"{name}: P99"]
        assert (p99.baseline, p99.goal, p99.at_least) == (joint.value, joint.value, True)
        assert 0.0 <= results[f"{name}: history found"].value <= 100.0
    assert joint.goal is None


def test_splits_are_given_once() -> None:
    splits = UnequalSplits(2)
    assert splits.decide(0.0, []) == []
    assert splits.decide(1.0, []) == []
