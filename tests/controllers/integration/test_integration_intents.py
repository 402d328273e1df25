"""Intents on their way: policies, pauses, and agents that vanish, come back, forget, or talk nonsense."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from aiohttp import web
from integration_fleet import Fleet, Pair, condition
from runtime_operator import OperatorProcess

from testbed.patience import eventually
from testbed.ports import free_port

pytestmark = pytest.mark.slow

STATIC = {"strategy": "Static", "bounds": {"fallbackEmbPercent": 60}, "step": {"maxPercentPerSecond": 100, "intervalMs": 100}}


def told(pair: Pair) -> dict[str, object]:
    answer: dict[str, object] = httpx.get(f"{pair.agent_url}/agent/v1/status").json()
    return answer


def holds_present_intent(fleet: Fleet, pair: Pair, instance: str) -> bool:
    status, metadata = told(pair), fleet.instance(instance)["metadata"]
    return (status["uid"], status["generation"]) == (metadata["uid"], metadata["generation"])


def test_a_policy_reaches_the_agent_each_time_it_changes_and_a_pause_holds_it(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    fleet.apply_pool("pool", pair, policies={"hbm": "mine"})
    fleet.start(pair)
    # A name that leads nowhere is said, not guessed.
    missing = eventually(lambda: condition(fleet.pool(), "PolicyHealthy").get("reason") == "PolicyNotFound" and fleet.pool())
    assert "HBMPolicy mine" in condition(missing, "PolicyHealthy")["message"]
    eventually(lambda: condition(fleet.pool(), "Ready").get("reason") == "PolicyUnusable", why=fleet.pool)
    assert "intent" not in fleet.instance("pool-i0")["spec"]

    fleet.apply("HBMPolicy", "mine", STATIC)
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    eventually(lambda: holds_present_intent(fleet, pair, "pool-i0"))
    first = fleet.instance("pool-i0")["metadata"]["generation"]
    eventually(lambda: (fleet.instance("pool-i0")["status"].get("split") or {}).get("settled", {}).get("embPercent") == 60)

    fleet.patch("hbmpolicies", "mine", {"bounds": {"fallbackEmbPercent": 40}})
    eventually(
        lambda: fleet.instance("pool-i0")["metadata"]["generation"] > first and holds_present_intent(fleet, pair, "pool-i0")
    )
    intent = fleet.instance("pool-i0")["spec"]["intent"]
    assert intent["bounds"]["fallbackEmbPercent"] == 40
    assert intent["policyRef"]["source"] == "Pool"
    eventually(lambda: (fleet.instance("pool-i0")["status"].get("split") or {}).get("settled", {}).get("embPercent") == 40)

    table = fleet.table()["status"]["generation"]
    fleet.patch("grservingpools", "pool", {"paused": True})
    fleet.wait_for_condition("grservingpool/pool", "Paused")
    eventually(lambda: told(pair)["reason"] == "Paused")
    fleet.patch("hbmpolicies", "mine", {"bounds": {"fallbackEmbPercent": 50}})  # not taken up while paused
    eventually(lambda: condition(fleet.pool(), "TablePublished").get("reason") == "PausedByUser")
    assert fleet.table()["status"]["generation"] == table
    assert fleet.instance("pool-i0")["spec"]["intent"]["bounds"]["fallbackEmbPercent"] == 40
    fleet.patch("grservingpools", "pool", {"paused": False})
    eventually(lambda: fleet.instance("pool-i0")["spec"]["intent"]["bounds"]["fallbackEmbPercent"] == 50)
    eventually(lambda: holds_present_intent(fleet, pair, "pool-i0"))


def test_an_agent_that_vanishes_is_reported_and_one_that_comes_back_without_memory_gets_its_intent_again(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    fleet.apply_pool("pool", pair)
    fleet.start(pair)
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    eventually(lambda: "split" in fleet.instance("pool-i0")["status"])
    split = fleet.instance("pool-i0")["status"]["split"]

    pair.stop_agent()
    fleet.wait_for_condition("grservingpool/pool", "Ready=False")
    gone = fleet.instance("pool-i0")
    assert condition(gone, "Ready")["reason"] == "AgentUnreachable"
    assert condition(gone, "PolicyHealthy")["reason"] == "AgentUnreachable"
    assert condition(gone, "PolicyHealthy")["status"] == "Unknown"
    assert gone["status"]["agent"]["reachable"] is False
    assert gone["status"]["split"] == split  # the best that is known
    assert fleet.table()["status"]["instances"], "a silent instance keeps its users for the time of grace"

    pair.start_agent(fleet.intent_key())
    fleet.wait_for_condition("grservingpool/pool", "Ready")
    eventually(lambda: holds_present_intent(fleet, pair, "pool-i0"))
    eventually(lambda: condition(fleet.instance("pool-i0"), "PolicyHealthy").get("status") == "True")


@contextmanager
def agent_that_answers(body: str) -> Iterator[str]:
    """A server that answers every request of the agent contract with the same text."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    port, loop, stop = free_port(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_nonsense_from_an_agent_is_not_believed_and_does_not_stop_the_others(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    with agent_that_answers('{"agentStartId": "x", "split": 1e999}') as url:
        bad = {"name": "bad", "serviceURL": "http://127.0.0.1:9", "agentURL": url}
        good = pair.entry
        fleet.apply_pool("pool", pair, instances={"external": [bad, good]})
        fleet.start(pair)
        eventually(lambda: condition(fleet.instance("pool-bad"), "PolicyHealthy").get("reason") == "AgentMisbehaves")
        assert "split" not in fleet.instance("pool-bad")["status"]
        eventually(lambda: condition(fleet.instance("pool-i0"), "PolicyHealthy").get("status") == "True")
        eventually(lambda: condition(fleet.pool(), "Ready").get("reason") == "SomeInstancesNotReady", why=fleet.pool)
        assert "pool-bad (InvalidAnswer)" in condition(fleet.pool(), "Ready")["message"]
        eventually(lambda: [row["name"] for row in fleet.table().get("status", {}).get("instances", [])] == ["pool-i0"])
