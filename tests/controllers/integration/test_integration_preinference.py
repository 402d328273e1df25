"""Pre-inference with every part real: engine, agent, operator; the agents are what is measured from."""

from __future__ import annotations

import secrets
import time
from typing import Any

import httpx
import pytest
from integration_fleet import POOL_BYTES, Fleet, Pair, condition
from runtime_operator import OperatorProcess

from testbed.patience import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BUDGET = POOL_BYTES // 5  # the default of 20 percent
PREFIX_TOKENS = 4096


def ask_for_prefixes(pair: Pair, *, seconds: float, until: Any = lambda: False) -> int:
    """Early signals of new users, twenty a second, none of whom is ranked; returns how many were admitted."""
    admitted, end = 0, time.monotonic() + seconds
    with httpx.Client(base_url=pair.service_url) as engine:
        while time.monotonic() < end and not until():
            for _ in range(10):
                asked = {
                    "requestId": secrets.token_hex(8),
                    "userKey": secrets.token_hex(16),
                    "modelVersion": "1",
                    "historyTokens": PREFIX_TOKENS,
                }
                admitted += engine.post("/gr/v1/pre-infer", json=asked).status_code == 202
            time.sleep(0.5)
    return admitted


def told(pair: Pair) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{pair.agent_url}/agent/v1/status").json()
    return answer


def test_the_first_prefixes_bring_slots_and_memory_that_the_engine_enforces_and_until_then_nothing_is_taken(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    fleet.apply_pool("pool", pair)
    fleet.start(pair)
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    fleet.wait_for_condition("grservingpool/pool", "MetricsFresh")

    assert condition(fleet.pool(), "PreInferenceScaled")["reason"] == "NotManaged"
    assert "preInfer" not in fleet.instance("pool-i0")["spec"]
    assert fleet.instance("pool-i0")["spec"]["intent"]["usableBytes"] == POOL_BYTES
    assert told(pair)["split"]["usableBytes"] == POOL_BYTES

    admitted = ask_for_prefixes(pair, seconds=90, until=lambda: "preInfer" in fleet.instance("pool-i0")["spec"])
    assert admitted > 0, "until the loop has spoken the engine serves with the limits that it started with"

    capacity = fleet.instance("pool-i0")["spec"]["preInfer"]
    assert capacity["slots"] >= 1
    assert capacity["bytes"] in {BUDGET * step // 8 for step in range(1, 9)}
    eventually(lambda: fleet.instance("pool-i0")["spec"]["intent"]["usableBytes"] == POOL_BYTES - capacity["bytes"])

    def enforced() -> bool:
        wanted = fleet.instance("pool-i0")["spec"]["preInfer"]
        return bool((fleet.instance("pool-i0")["status"].get("preInfer") or {}) == wanted)

    eventually(enforced, timeout_seconds=90, why=lambda: (fleet.instance("pool-i0"), told(pair)))
    said = told(pair)
    split, limits = said["split"], said["limits"]
    assert split["acceptedEmbBytes"] + split["acceptedKvBytes"] + limits["preInferBytes"] <= POOL_BYTES
    summary = fleet.pool()["status"]["preInference"]
    assert summary["slots"] == fleet.instance("pool-i0")["spec"]["preInfer"]["slots"]
    managers = {
        entry["manager"]
        for entry in fleet.instance("pool-i0")["metadata"]["managedFields"]
        if "f:preInfer" in entry["fieldsV1"].get("f:spec", {})
    }
    assert managers == {"grfleet-preinference"}
