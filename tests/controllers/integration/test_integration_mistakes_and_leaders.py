"""What users get wrong is told in conditions; two operators never both act, and one takes over from a killed one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from integration_fleet import OPERATOR, Fleet, Pair, condition
from runtime_operator import OperatorProcess, running_operator

from testbed.patience import eventually

pytestmark = pytest.mark.slow


def test_the_mistakes_of_users_give_conditions_that_say_what_to_do(fleet: Fleet, operator: OperatorProcess, pair: Pair) -> None:
    other = fleet.new_pair()
    fleet.apply_pool("adopting", instances={"adopted": {"matchLabels": {"app": "engine"}}})
    fleet.apply_pool("a-b", instances={"external": [{**pair.entry, "name": "c"}]})
    eventually(lambda: fleet.instance("a-b-c"))
    fleet.apply_pool("a", instances={"external": [{**other.entry, "name": "b-c"}]})
    fleet.apply_pool("lost", instances={"external": [other.entry]}, policies={"hbm": "nowhere", "routing": "nowhere"})
    fleet.apply_pool("twin", instances={"external": [pair.entry]})
    fleet.start(pair)

    def reason(pool: str, type_: str) -> object:
        return condition(fleet.pool(pool), type_).get("reason")

    eventually(lambda: reason("adopting", "Ready") == "NoInstances")
    assert "matchLabels" in condition(fleet.pool("adopting"), "Ready")["message"]
    assert not [name for name in fleet.names("grinstances") if name.startswith("adopting")]
    eventually(lambda: reason("a", "InstancesReady") == "NameTaken")
    assert "GRServingPool a-b" in condition(fleet.pool("a"), "InstancesReady")["message"]
    eventually(lambda: reason("lost", "PolicyHealthy") == "PolicyNotFound")
    eventually(lambda: reason("lost", "TablePublished") == "PolicyNotFound")
    eventually(lambda: {"AgentTaken", "DefaultsInUse"} == {reason("twin", "PolicyHealthy"), reason("a-b", "PolicyHealthy")})

    # The entry that was in the way goes, and the other pool gets its instance without another word.
    fleet.delete("grservingpools", "a-b")
    eventually(lambda: condition(fleet.pool("a"), "InstancesReady").get("reason") != "NameTaken", timeout_seconds=60)
    assert fleet.instance("a-b-c")["spec"]["poolRef"] == "a"


def test_of_two_operators_one_acts_and_the_other_takes_over_from_a_killed_one(
    fleet: Fleet, account: Path, namespace: str, tmp_path: Path, pair: Pair
) -> None:
    with (
        running_operator(tmp_path, account, namespace, command=OPERATOR, name="one") as one,
        running_operator(tmp_path, account, namespace, command=OPERATOR, name="two") as two,
    ):
        fleet.apply_pool("pool", pair)
        fleet.start(pair)
        fleet.wait_for_condition("grservingpool/pool", "Ready")
        leader, follower = (one, two) if one.leads() else (two, one)
        assert not follower.leads()
        assert follower.metric("controller_runtime_reconcile_total") == 0
        fleet.apply("HBMPolicy", "default", {"strategy": "Static"})  # work in progress while it is killed
        leader.child.kill()
        leader.child.wait()
        fleet.patch("hbmpolicies", "default", {"bounds": {"fallbackEmbPercent": 45}})
        eventually(follower.leads, timeout_seconds=30)

        def converged() -> bool:
            instance = fleet.instance("pool-i0")
            intent = instance["spec"]["intent"]
            held = instance["status"].get("agent", {}).get("intentGeneration")
            return intent["bounds"]["fallbackEmbPercent"] == 45 and held == instance["metadata"]["generation"]

        eventually(converged, why=lambda: json.dumps(fleet.instance("pool-i0"), indent=1))
        assert fleet.table()["status"]["generation"] == 1  # nobody was moved
