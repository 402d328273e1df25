"""The agent process beside the reference engine process: it moves the split to the better side and survives kill -9 of either."""

import asyncio
import contextlib
import dataclasses
import math
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from dataplane_processes import NEWCOMERS, RETURNING, Pair, Traffic, pair, replay

from contract.agent import AgentStatus, Intent, IntentStatus
from contract.agent_client import AgentClient
from contract.engine_client import EngineClient

POOL = 2 << 30
BRISK = {"maxPercentPerSecond": 100, "deadbandPercent": 1, "intervalMs": 50}

ONE_EACH = dataclasses.replace(RETURNING, users=None)

pytestmark = pytest.mark.slow


def emb_percent(status: AgentStatus) -> float:
    if status.split is None:
        return math.nan
    return 100.0 * status.split.accepted_emb_bytes / POOL


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair(tmp_path, "--hbm-bytes", str(POOL)) as running:
        yield running


@contextlib.asynccontextmanager
async def under_load(both: Pair, traffic: Traffic, *, seconds: float) -> AsyncIterator[None]:
    """Replay in the background; an engine killed in between ends the replay."""
    task = asyncio.create_task(replay(both.engine_url, traffic, seconds=seconds))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("traffic", "towards"), [(RETURNING, "kv"), (NEWCOMERS, "emb")], ids=["returning users", "newcomers"])
async def test_the_split_moves_to_the_side_that_the_traffic_needs(both: Pair, traffic: Traffic, towards: str) -> None:
    assert await both.intend(strategy="MissRatioCurve", step=BRISK) is IntentStatus.ACCEPTED

    def has_moved(status: AgentStatus) -> bool:
        return emb_percent(status) < 30 if towards == "kv" else emb_percent(status) > 52

    async with under_load(both, traffic, seconds=600):
        status = await both.until(has_moved, what=f"a move towards {towards}", seconds=120)  # busy machines replay slowly
    assert status.reason in ("AnchorTarget", "NoWindow", "Idle")
    assert not status.frozen
    assert status.engine.emulation


async def test_an_agent_killed_at_work_comes_back_adopts_the_split_and_goes_on(both: Pair) -> None:
    await both.intend(strategy="Static", bounds={"fallbackEmbPercent": 10}, step=BRISK | {"maxPercentPerSecond": 10})
    async with under_load(both, RETURNING, seconds=600):
        await both.until(lambda s: emb_percent(s) < 45, what="the move begins")
        await both.running[1].kill()
        await both.start_agent()
        adopted = await both.until(lambda s: s.split is not None, what="adoption")
        assert (adopted.generation, adopted.reason) == (0, "NoIntent") or adopted.reason == "NoWindow"
        assert adopted.split is not None
        assert adopted.split.revision > 0
        assert emb_percent(adopted) < 46
        assert await both.intend(strategy="Static", bounds={"fallbackEmbPercent": 30}, step=BRISK) is IntentStatus.ACCEPTED
        await both.until(lambda s: abs(emb_percent(s) - 30) < 1.5, what="the new target")
    assert not (await both.status()).frozen


async def test_an_engine_killed_at_work_is_adopted_again_from_its_first_revision(both: Pair) -> None:
    await both.intend(strategy="Static", bounds={"fallbackEmbPercent": 30}, step=BRISK)
    async with under_load(both, RETURNING, seconds=600):
        before = await both.until(lambda s: abs(emb_percent(s) - 30) < 1.5, what="the target")
        await both.running[0].kill()
    await both.until(lambda s: s.reason == "EngineUnreachable" and s.frozen, what="the loss is noticed")
    await both.start_engine()
    async with under_load(both, RETURNING, seconds=600):
        after = await both.until(
            lambda s: s.engine.reachable and s.engine.start_id != before.engine.start_id and abs(emb_percent(s) - 30) < 1.5,
            what="the new process is at the target",
        )
        seen = await both.until(lambda s: (s.requests_per_second or 0) > 0, what="figures of the new process")
    async with AgentClient(both.agent_url) as client:
        records = (await client.decisions(after=before.decisions)).decisions
    adopted = next(record.inputs["observation"]["split"] for record in records if record.inputs["round"].get("restarted"))
    assert before.split is not None
    assert (adopted["start_id"], adopted["revision"]) == (after.engine.start_id, 0)
    assert adopted["revision"] < before.split.revision
    assert not after.frozen
    assert seen.kv_hit_percent is not None
    assert 0 <= seen.kv_hit_percent <= 100


async def test_gateways_hear_whom_a_smaller_kv_cache_will_evict_while_the_engine_still_holds_them(both: Pair) -> None:
    users, claimed, cursor, most_ahead = 64, set[str](), 0, 0
    steady = BRISK | {"maxPercentPerSecond": 1}
    assert await both.intend(strategy="Static", bounds={"fallbackEmbPercent": 50}, step=steady) is IntentStatus.ACCEPTED
    async with EngineClient(both.engine_url) as engine, AgentClient(both.agent_url) as agent:
        clock_ms = (await engine.observe()).clock_ms

        async def rank(number: int) -> None:
            await engine.rank(ONE_EACH.request(number, arrival_ms=clock_ms + 100.0 * number, dice=random.Random(number)))

        async def ask() -> set[str]:
            """Take what the agent tells; return whom the engine itself holds."""
            nonlocal cursor
            report = await agent.residency(cursor=cursor)
            assert report is not None
            if report.since == 0:
                claimed.clear()
            cursor = report.cursor
            claimed.difference_update(state.key for state in report.users if not state.tokens_hbm)
            claimed.update(state.key for state in report.users if state.tokens_hbm)
            whole = await engine.residency(0)
            assert whole is not None
            return {state.key for state in whole.users if state.tokens_hbm}

        for number in range(users):
            await rank(number)
        held = await ask()
        assert len(held) == len(claimed) == users
        await both.intend(strategy="Static", bounds={"fallbackEmbPercent": 54}, step=steady)
        async with asyncio.timeout(30):
            while emb_percent(await both.status()) < 53.5 or len(claimed) != len(held):
                await rank(users - 1)  # a serving engine: its cursor goes on
                held = await ask()
                most_ahead = max(most_ahead, len(held - claimed))
                await asyncio.sleep(0.1)
    assert claimed == held
    assert len(claimed) < users
    assert most_ahead >= 3


async def test_the_agent_ends_promptly_on_sigterm_and_leaves_the_split_alone(both: Pair) -> None:
    await both.intend(strategy="Static", bounds={"fallbackEmbPercent": 40}, step=BRISK)
    await both.until(lambda s: abs(emb_percent(s) - 40) < 1.5, what="the target")
    async with asyncio.timeout(2):
        assert await both.running[1].terminate() == 0
    await both.start_agent()
    status = await both.until(lambda s: s.split is not None, what="adoption")
    assert abs(emb_percent(status) - 40) < 1.5


async def test_a_forged_intent_is_refused_by_the_running_agent(both: Pair) -> None:
    forged = Intent(uid="uid-1", generation=1, issued=1, expires=2_000_000_000, spec={}, signature="AAAA")
    async with AgentClient(both.agent_url) as client:
        assert (await client.put_intent(forged)).status is IntentStatus.FORGED
    assert (await both.status()).generation == 0


async def test_limits_reach_the_engine_a_drain_is_taken_back_and_a_wait_ends_with_the_traffic(both: Pair) -> None:
    capacity = {"slots": 3, "bytes": POOL // 8, "hostBytes": 1 << 30}
    await both.intend(strategy="Static", step=BRISK, preInfer=capacity)
    status = await both.until(lambda s: s.limits is not None and s.limits.pre_infer_bytes == POOL // 8, what="the limits")
    assert status.limits is not None
    assert (status.limits.pre_infer_slots, status.limits.host_bytes) == (3, 0)
    assert "no tier dram" in status.message
    assert status.split is not None
    assert status.split.accepted_emb_bytes + status.split.accepted_kv_bytes <= POOL - POOL // 8

    await both.intend(strategy="Static", step=BRISK, preInfer=capacity, draining=True)
    await both.until(lambda s: s.draining and (s.idle_seconds or 0) > 0.1, what="a drain")
    async with EngineClient(both.engine_url) as client:
        assert (await client.ready()).reasons == ["draining"]
        await both.intend(strategy="Static", step=BRISK, preInfer=capacity)
        await both.until(lambda s: not s.draining, what="the drain taken back")
        assert (await client.ready()).ready

    async with httpx.AsyncClient(timeout=30) as caller:
        waiting = asyncio.create_task(caller.get(f"{both.agent_url}/agent/v1/idle?afterSeconds=1&deadlineSeconds=20"))
        await both.running[0].kill()
        assert (await waiting).json()["reason"] in ("Idle", "EngineUnreachable")


async def test_sizes_of_tiers_that_the_engine_has_are_set_and_read_back(tmp_path: Path) -> None:
    async with pair(tmp_path, "--hbm-bytes", str(POOL), "--host-bytes", str(4 << 30)) as running:
        capacity = {"slots": 3, "bytes": POOL // 8, "hostBytes": 1 << 30}
        await running.intend(strategy="Static", step=BRISK, preInfer=capacity)
        status = await running.until(lambda s: s.limits is not None and s.limits.host_bytes == 1 << 30, what="the size")
        assert "no tier" not in status.message
        async with EngineClient(running.engine_url) as client:
            assert (await client.describe()).tiers == ["hbm", "dram"]
