"""A drain on its way: from spec.drain to an engine that says so, to the table, to Drained, and all of it taken back."""

from __future__ import annotations

import datetime
from typing import Any

import httpx
import pytest
from integration_fleet import Fleet, condition
from runtime_operator import OperatorProcess

from contract.table import unpack_slots
from testbed.patience import eventually

pytestmark = pytest.mark.slow


def drain_of(reason: str = "ScaleDown") -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"reason": reason, "startedAt": now, "deadlineSeconds": 60}


def shares(fleet: Fleet) -> dict[str, tuple[str, int]]:
    """State and slots of each row of the table."""
    status = fleet.table()["status"]
    slots = unpack_slots(status["slots"], instances=len(status["instances"]))
    return {row["name"]: (row["state"], slots.count(i)) for i, row in enumerate(status["instances"])}


def test_a_drain_reaches_table_and_engine_is_seen_to_end_and_is_taken_back(fleet: Fleet, operator: OperatorProcess) -> None:
    pairs = [fleet.new_pair(), fleet.new_pair()]
    # Whichever is ready second joins a table that has an owner, and would be warming for minutes.
    fleet.apply("RoutingPolicy", "default", {"warmup": {"maxSeconds": 1}})
    fleet.apply_pool("pool", *pairs)
    fleet.start(*pairs)
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    eventually(lambda: [state for state, _ in shares(fleet).values()] == ["Ready", "Ready"], why=lambda: shares(fleet))
    assert condition(fleet.instance("pool-i1"), "Drained") == {}

    fleet.patch("grinstances", "pool-i1", {"drain": drain_of()})
    eventually(lambda: shares(fleet) == {"pool-i0": ("Ready", 4096), "pool-i1": ("Draining", 0)}, why=lambda: shares(fleet))
    eventually(lambda: httpx.get(f"{pairs[1].service_url}/gr/v1/ready").json()["reasons"] == ["draining"])
    done = eventually(
        lambda: condition(fleet.instance("pool-i1"), "Drained").get("status") == "True" and fleet.instance("pool-i1"),
        why=lambda: fleet.instance("pool-i1")["status"],
    )
    assert condition(done, "Drained")["reason"] == "NothingInFlight"
    assert condition(done, "Drained")["observedGeneration"] == done["metadata"]["generation"]

    fleet.patch("grinstances", "pool-i1", {"drain": None})
    eventually(lambda: httpx.get(f"{pairs[1].service_url}/gr/v1/ready").status_code == 200)
    eventually(lambda: condition(fleet.instance("pool-i1"), "Drained") == {})
    rows = eventually(lambda: shares(fleet)["pool-i1"][1] > 0 and fleet.table()["status"]["instances"])
    assert {row["weightPercent"] for row in rows} == {100}


def test_capacity_in_the_spec_is_enforced_by_the_engine_and_stands_in_the_status(fleet: Fleet, operator: OperatorProcess) -> None:
    pair = fleet.new_pair()
    fleet.apply_pool("pool", pair)
    fleet.start(pair)
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    fleet.patch("grinstances", "pool-i0", {"preInfer": {"slots": 3, "bytes": 64 << 20}})  # its own loop may soon correct it

    def arrived() -> bool:
        instance, limits = fleet.instance("pool-i0"), httpx.get(f"{pair.agent_url}/agent/v1/status").json().get("limits") or {}
        wanted, enforced = instance["spec"].get("preInfer"), instance["status"].get("preInfer")
        told = {"slots": limits.get("preInferSlots"), "bytes": limits.get("preInferBytes")}
        return wanted is not None and wanted == enforced == told

    eventually(arrived, why=lambda: (fleet.instance("pool-i0"), httpx.get(f"{pair.agent_url}/agent/v1/status").json()))
