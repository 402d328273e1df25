"""The agent process beside a reference engine whose refill really blocks serving: it moves slowly and holds while one is owed."""

from pathlib import Path

import pytest
from dataplane_processes import Pair, pair

from contract.agent import AgentStatus
from contract.engine import RankRequest
from contract.engine_client import EngineClient

POOL = 2 << 30
GRANULE = 16 << 20
HALF = POOL // 2

pytestmark = pytest.mark.slow


def accepted(status: AgentStatus) -> int:
    return status.split.accepted_emb_bytes if status.split is not None else 0


async def _at(both: Pair, percent: int, what: str) -> None:
    step = {"maxPercentPerSecond": 100, "deadbandPercent": 0, "intervalMs": 50}
    refill = {"maxLinkPercent": 20, "maxBytesPerSecond": 2 << 20}
    await both.intend(strategy="Static", bounds={"minEmbPercent": 5, "fallbackEmbPercent": percent}, step=step, refill=refill)
    wanted = round(POOL * percent / 100 / GRANULE) * GRANULE
    await both.until(lambda status: accepted(status) == wanted, what=what)


async def test_a_real_engine_that_is_owed_refill_serves_nobody_and_its_agent_holds_until_it_is_over(tmp_path: Path) -> None:
    options = ("--hbm-bytes", str(POOL), "--warm", "--refill-blocks-serving", "--rows-one-in", "64")
    async with pair(tmp_path, *options) as both:
        # given rows that a smaller EMB cache has evicted, and one granule of room for them
        await _at(both, 49, "a granule less")
        await _at(both, 50, "the granule back")
        # when more is wanted at once
        await both.intend(strategy="Static", bounds={"fallbackEmbPercent": 80, "maxEmbPercent": 90})
        held = await both.until(lambda status: status.reason == "RefillBacklog", what="the agent holds")
        async with EngineClient(both.engine_url) as client:
            described, seen = await client.describe(), await client.observe()
            request = RankRequest(
                request_id="r1", user_key="0" * 32, model_version="1", history_tokens=100, candidates=10, rows_per_token=2
            )
            answer = await client.rank(request)
        # then nothing moves, and a request waits for the end of the refill
        assert described.refill_blocks_serving
        assert seen.split.refill_backlog_bytes > 0
        assert (accepted(held), held.frozen) == (HALF, False)
        assert answer.queue_ms > 100.0
