"""How the rolling update of a Deployment is read, and for how long it has been as it is."""

from __future__ import annotations

from typing import Any

import pytest
from pod_objects import deployment

from controllers.pool.rollout import rollout_of
from controllers.pool.workload_execute import WorkloadMemory
from controllers.runtime.resources import Key

KEY = Key("team", "pool")


def refused(type_: str, status: str, reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": type_, "status": status, "reason": reason}]}


def with_status(status: dict[str, Any]) -> dict[str, Any]:
    made = deployment(3)
    return {**made, "status": {**made["status"], **status}}


@pytest.mark.parametrize(
    ("status", "under_way", "begun"),
    [
        ({"replicas": 3, "updatedReplicas": 3}, False, True),
        ({"replicas": 4, "updatedReplicas": 1}, True, True),
        ({"replicas": 3}, True, False),
        ({"replicas": 3, **refused("ReplicaFailure", "True", "FailedCreate")}, True, True),
        ({"replicas": 3, **refused("Progressing", "False", "ReplicaSetCreateError")}, True, True),
        ({"replicas": 3, **refused("Progressing", "True", "NewReplicaSetCreated")}, True, False),
        ({"observedGeneration": 0, "replicas": 3}, False, False),
    ],
)
def test_an_update_is_under_way_while_old_pods_are_left_and_has_begun_with_a_new_one_or_a_reason_for_none(
    status: dict[str, Any], under_way: bool, begun: bool
) -> None:
    found = rollout_of(with_status(status))
    assert (found.under_way, found.begun) == (under_way, begun)


def test_an_update_that_a_person_holds_and_a_deployment_of_which_nothing_is_known_are_left_alone() -> None:
    held = deployment(3)
    held["status"]["replicas"], held["spec"]["paused"] = 3, True
    assert rollout_of(held).begun
    assert not rollout_of(None).under_way
    assert not rollout_of({"metadata": {"name": "pool"}}).under_way


def test_a_deployment_is_quiet_since_its_size_and_counts_were_first_seen_by_this_leader() -> None:
    memory = WorkloadMemory()
    first, same, other = deployment(3), deployment(3), deployment(3, updatedReplicas=1)
    assert [memory.quiet_seconds(KEY, each, now_s=now) for each, now in ((first, 100.0), (same, 107.0))] == [0.0, 7.0]
    assert memory.quiet_seconds(KEY, other, now_s=110.0) == 0.0
    memory.clear()
    assert memory.quiet_seconds(KEY, other, now_s=200.0) == 0.0
    assert memory.quiet_seconds(KEY, None, now_s=210.0) == 0.0
