"""A pool from `kubectl apply` to `kubectl delete`: real API server, operator under its own rules, real engine and agent."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration_fleet import OPERATOR, POOL_BYTES, Fleet, Pair, condition
from runtime_operator import OperatorProcess, running_operator

from dataplane.fence import Fence, lineage_of
from dataplane.follow import table_from
from dataplane.gateway.tables import EMPTY, want_of
from testbed.patience import eventually

pytestmark = pytest.mark.slow


def told_by(pair: Pair) -> dict[str, Any]:
    """What the agent says of itself."""
    answer: dict[str, Any] = httpx.get(f"{pair.agent_url}/agent/v1/status").json()
    return answer


def test_a_pool_becomes_ready_and_its_split_and_table_are_reported(fleet: Fleet, operator: OperatorProcess, pair: Pair) -> None:
    fleet.apply_pool("pool", pair)
    fleet.start(pair)

    fleet.wait_for_condition("grservingpool/pool", "Ready")

    instance = fleet.instance("pool-i0")
    assert instance["metadata"]["ownerReferences"][0]["uid"] == fleet.pool()["metadata"]["uid"]
    told = told_by(pair)
    assert (told["uid"], told["generation"]) == (instance["metadata"]["uid"], instance["metadata"]["generation"])
    assert told["split"]["usableBytes"] == POOL_BYTES
    eventually(lambda: condition(fleet.instance("pool-i0"), "PolicyHealthy").get("reason") == "DefaultsInUse")
    status = fleet.instance("pool-i0")["status"]
    assert status["agent"]["reachable"] is True
    assert status["agent"]["intentGeneration"] == instance["metadata"]["generation"]
    assert status["strategyInForce"] == "MissRatioCurve"
    split = status["split"]
    assert split["accepted"]["embBytes"] + split["accepted"]["kvBytes"] <= POOL_BYTES
    pool = fleet.pool()["status"]
    assert pool["instances"]["ready"] == pool["replicas"] == 1
    assert pool["selector"] == "grfleet.dev/pool=pool"
    table = fleet.table()["status"]
    assert table["generation"] == pool["tableGeneration"] == 1
    assert table["limits"]["hotUsersMax"] == 100_000
    assert table["instances"][0]["uid"] == instance["metadata"]["uid"]
    assert table["instances"][0]["address"] == pair.service_url


def test_at_rest_nothing_is_written_not_even_by_an_operator_that_has_just_started(
    fleet: Fleet, account: Path, namespace: str, tmp_path: Path, pair: Pair
) -> None:
    with running_operator(tmp_path, account, namespace, command=OPERATOR, name="first") as first:
        fleet.apply_pool("pool", pair)
        fleet.start(pair)
        fleet.wait_for_condition("grservingpool/pool", "Ready")
        fleet.wait_for_condition("grservingpool/pool", "SplitSettled")
        fleet.wait_for_condition("grservingpool/pool", "MetricsFresh")
        time.sleep(11)  # the last numbers may follow within ten seconds
        before = fleet.versions()
        time.sleep(20)
        assert fleet.versions() == before
        first.terminate()
    with running_operator(tmp_path, account, namespace, command=OPERATOR, name="second") as second:
        eventually(lambda: second.leads() and second.metric("controller_runtime_reconcile_total") >= 4)
        time.sleep(3)  # an agent is asked, found as it was, and nothing is said
        assert fleet.versions() == before


def test_objects_removed_by_hand_come_back_and_followers_never_go_back(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    fleet.apply_pool("pool", pair)
    fleet.start(pair)
    fleet.wait_for_condition("grservingpool/pool", "Ready")

    old_instance, old_generation = fleet.instance("pool-i0"), fleet.table()["status"]["generation"]
    fleet.delete("grinstances", "pool-i0")
    fleet.delete("grroutingtables", "pool")

    def healed() -> bool:
        instance, table = fleet.instance("pool-i0"), fleet.table()
        uid = instance.get("metadata", {}).get("uid")
        rows = table.get("status", {}).get("instances") or [{}]
        return bool(uid) and uid != old_instance["metadata"]["uid"] and rows[0].get("uid") == uid

    eventually(healed, why=lambda: (fleet.instance("pool-i0"), fleet.table()))
    assert fleet.table()["status"]["generation"] > old_generation
    # Another uid is another instance, and its intent reaches the agent on another way than the table's row.
    eventually(lambda: told_by(pair)["uid"] == fleet.instance("pool-i0")["metadata"]["uid"], why=lambda: told_by(pair))


def test_deleting_a_pool_takes_its_instances_along_leaves_a_tombstone_that_a_gateway_obeys_and_the_agent_keeps_its_split(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    fleet.apply_pool("pool", pair)
    fleet.start(pair)
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    split = told_by(pair)["split"]
    fence, living = Fence(), table_from(json.dumps(fleet.table()).encode())
    assert fence.admits(living.table, lineage=lineage_of(living.uid))

    fleet.delete("grservingpools", "pool")

    def buried() -> bool:
        table = fleet.table()
        return table.get("status", {}).get("instances") == [] and not table["metadata"].get("ownerReferences")

    eventually(lambda: not fleet.names("grinstances") and buried(), timeout_seconds=60)
    assert not fleet.pool()
    tombstone = fleet.table()
    assert tombstone["status"]["generation"] > living.table.generation
    assert condition(tombstone, "TablePublished")["reason"] == "PoolDeleted"
    dead = table_from(json.dumps(tombstone).encode())
    assert fence.admits(dead.table, lineage=lineage_of(dead.uid))
    assert want_of(dead.table) == EMPTY
    assert told_by(pair)["split"] == split
    events = fleet.api.get(f"/apis/events.k8s.io/v1/namespaces/{fleet.namespace}/events").json()["items"]
    ready = [event for event in events if event["reason"] == "AllInstancesReady"]
    assert len(ready) == 1
    assert ready[0]["regarding"]["name"] == "pool"

    fleet.apply_pool("pool", pair)  # made anew under its name: it takes the tombstone over
    eventually(lambda: fleet.table()["metadata"].get("ownerReferences") and fleet.table()["status"]["instances"])
    assert fleet.table()["metadata"]["uid"] == tombstone["metadata"]["uid"]
    assert fleet.table()["status"]["generation"] > tombstone["status"]["generation"]


def test_a_pool_deleted_in_the_foreground_leaves_a_tombstone_too_and_one_that_leaves_orphans_leaves_its_table(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    fleet.apply_pool("first", pair)
    fleet.apply_pool("second", pair)
    fleet.start(pair)
    for name in ("first", "second"):
        eventually(lambda name=name: fleet.table(name).get("status", {}).get("instances"), why=lambda name=name: fleet.pool(name))
    kept = fleet.table("second")["status"]

    for name, how in (("first", "foreground"), ("second", "orphan")):
        fleet.plane.kubectl("delete", "grp", name, "-n", fleet.namespace, f"--cascade={how}", "--wait=false")

    def gone() -> bool:
        tables = [fleet.table(name) for name in ("first", "second")]
        return not any(fleet.pool(name) for name in ("first", "second")) and not any(
            table.get("metadata", {"ownerReferences": "missing"}).get("ownerReferences") for table in tables
        )

    eventually(gone, why=lambda: (fleet.table("first"), fleet.table("second")), timeout_seconds=60)
    assert fleet.table("first")["status"]["instances"] == []
    assert fleet.table("second")["status"]["instances"] == kept["instances"]
    assert fleet.table("second")["status"]["slots"] == kept["slots"]
