"""A pool from `kubectl apply` to `kubectl delete`: real API server, operator under its own rules, real engine and agent."""

from __future__ import annotations

import httpx
import pytest
from integration_fleet import POOL_BYTES, Fleet, Pair, condition, eventually
from runtime_operator import OperatorProcess

pytestmark = pytest.mark.slow


def test_a_pool_becomes_ready_and_its_split_and_table_are_reported(fleet: Fleet, operator: OperatorProcess, pair: Pair) -> None:
    fleet.apply_pool("pool", pair)
    fleet.start(pair)

    fleet.wait_for_condition("grservingpool/pool", "Ready")

    instance = fleet.instance("pool-i0")
    assert instance["metadata"]["ownerReferences"][0]["uid"] == fleet.pool()["metadata"]["uid"]
    told = httpx.get(f"{pair.agent_url}/agent/v1/status").json()
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
    assert table["instances"][0]["uid"] == instance["metadata"]["uid"]
    assert table["instances"][0]["address"] == pair.service_url
