"""The same 2 000 requests through the model in virtual time and through an engine process behind its socket.

Stamped requests that run ahead of the wall drive the engine's clock, so everything must come out the same, to the last counter,
with a shrink, a growth and refill on the way. Paced by the wall, arrivals are the stamps still, but a change of the split happens
when it happens: a few milliseconds late, which moves an eviction here and there.
"""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_process import EngineProcess

from contract import engine
from contract.engine import ItemPopularity, Sampling
from contract.engine_client import EngineClient
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.core.physics import DEMO_ACCELERATOR, ServiceModel

COUNT = 2000
CHANGES = {700: (2, 0), 1300: (5, 50_000_000)}
"""Behind which request the split is changed: EMB gets so many eighths of the pool, and this many bytes a second of refill."""

GAP_MS = 8.0
POOL = 1 << 30


def accelerator(slower: float) -> ServiceModel:
    """The demonstration's accelerator, so much slower in everything."""
    return replace(
        DEMO_ACCELERATOR,
        flops_per_second=DEMO_ACCELERATOR.flops_per_second / slower,
        link_bytes_per_second=round(DEMO_ACCELERATOR.link_bytes_per_second / slower),
        gather_fixed_ms=DEMO_ACCELERATOR.gather_fixed_ms * slower,
        base_ms=DEMO_ACCELERATOR.base_ms * slower,
    )


def config_of(service: ServiceModel) -> InstanceConfig:
    return InstanceConfig(
        pool_bytes=POOL,
        emb_percent=50,
        service=service,
        popularity=ItemPopularity(exponent=0.95, catalog_rows=8_000_000),
        sampling=Sampling(users_one_in=1, rows_one_in=64),
    )


def options_of(config: InstanceConfig, folder: Path) -> list[str]:
    path = folder / "engine.json"
    service = {engine_name(name): value for name, value in asdict(config.service).items()}
    law = {"exponent": config.popularity.exponent, "catalogRows": config.popularity.catalog_rows}
    path.write_text(json.dumps({"hbmBytes": POOL, "embPercent": config.emb_percent, "service": service, "popularity": law}))
    return ["--listen", f"unix:{folder}/engine.sock", "--config", str(path), "--warm", "--seed", "1"]


def engine_name(field: str) -> str:
    first, *rest = field.split("_")
    return first + "".join(word.title() for word in rest)


def traffic(mean_gap_ms: float) -> list[engine.RankRequest]:
    """Users whose histories grow, some of them much more often seen than others; stamps from 0."""
    chance = random.Random(11)
    history = [chance.randrange(100, 2500) for _ in range(400)]
    popularity = [(rank + 1) ** -0.8 for rank in range(len(history))]
    now, requests = 0.0, []
    for number, who in enumerate(chance.choices(range(len(history)), popularity, k=COUNT)):
        history[who] += chance.randrange(5, 30)
        now += chance.expovariate(1.0 / mean_gap_ms)
        requests.append(
            engine.RankRequest(
                request_id=f"r{number}",
                user_key=f"{who:032x}",
                model_version="1",
                history_tokens=history[who],
                candidates=100,
                rows_per_token=2,
                arrival_ms=now,
            )
        )
    return requests


def change_after(number: int, start_id: str) -> engine.SplitRequest | None:
    if number not in CHANGES:
        return None
    eighths, refill = CHANGES[number]
    emb = POOL * eighths // 8
    revision = 1 + sorted(CHANGES).index(number)
    return engine.SplitRequest(
        start_id=start_id, revision=revision, emb_bytes=emb, kv_bytes=POOL - emb, refill_bytes_per_second=refill
    )


def in_virtual_time(config: InstanceConfig, requests: list[engine.RankRequest]) -> tuple[list[engine.RankAnswer], engine.Observe]:
    core = GRInstanceCore(config, seed=1)
    core.warm()
    answers = []
    for number, request in enumerate(requests):
        assert request.arrival_ms is not None
        answers.append(core.rank(request, request.arrival_ms))
        change = change_after(number, core.start_id)
        if change is not None:
            assert core.put_split(change, now_ms=request.arrival_ms).status in ("applied", "deferred")
    return answers, core.observe(core.clock_ms)


async def behind_a_socket(
    process: EngineProcess, requests: list[engine.RankRequest], *, paced: bool
) -> tuple[list[engine.RankAnswer], engine.Observe]:
    """Send requests one after the other, at once or when the engine's clock has come to their stamps."""
    ready = await process.start()
    answers = []
    async with EngineClient(ready["listen"], timeout_s=20.0) as client:
        base = (await client.observe()).clock_ms if paced else 0.0
        begun = asyncio.get_running_loop().time()
        for number, request in enumerate(requests):
            assert request.arrival_ms is not None
            if paced:
                await asyncio.sleep(max(0.0, begun + request.arrival_ms / 1e3 - asyncio.get_running_loop().time()))
            answers.append(await client.rank(msgspec.structs.replace(request, arrival_ms=base + request.arrival_ms)))
            change = change_after(number, ready["startId"])
            if change is not None:
                assert (await client.put_split(change)).status in ("applied", "deferred")
        return answers, await client.observe()


def column(answers: list[engine.RankAnswer], name: str) -> np.ndarray:
    return np.array([getattr(answer, name) for answer in answers], dtype=np.float64)


@pytest.mark.slow
async def test_stamps_ahead_of_the_wall_give_the_very_answers_and_counters_of_virtual_time(
    tmp_path: Path, new_engine: Callable[..., EngineProcess]
) -> None:
    config, requests = config_of(accelerator(4.0)), traffic(mean_gap_ms=4.0 * GAP_MS)
    expected, seen = in_virtual_time(config, requests)
    answers, observed = await behind_a_socket(new_engine(*options_of(config, tmp_path)), requests, paced=False)
    assert answers == expected
    assert observed.counters == seen.counters
    assert observed.split == seen.split
    assert observed.latency == seen.latency
    counters = observed.counters  # the traffic did put all of it to the test
    assert 0.2 < counters.kv.tokens_hit_hbm / counters.kv.tokens_asked < 0.9
    assert counters.evictions.capacity > POOL
    assert counters.evictions.resize > 0
    assert counters.bytes.refill > 0
    assert (column(answers, "queue_ms") > 0).mean() > 0.3


@pytest.mark.slow
async def test_requests_paced_by_the_wall_hit_evict_and_wait_as_in_virtual_time(
    tmp_path: Path, new_engine: Callable[..., EngineProcess]
) -> None:
    config, requests = config_of(accelerator(0.33)), traffic(mean_gap_ms=0.33 * GAP_MS)
    expected, seen = in_virtual_time(config, requests)
    answers, observed = await behind_a_socket(new_engine(*options_of(config, tmp_path)), requests, paced=True)
    for place in range(min(CHANGES)):
        assert answers[place].kv_tokens_hit == expected[place].kv_tokens_hit
        assert answers[place].latency_ms == pytest.approx(expected[place].latency_ms, abs=1e-6)
    hit, ours = column(answers, "kv_tokens_hit"), column(expected, "kv_tokens_hit")
    assert (hit != ours).mean() <= 0.01
    assert hit.sum() == pytest.approx(ours.sum(), rel=0.005)
    late, virtual = column(answers, "latency_ms"), column(expected, "latency_ms")
    for share in (0.5, 0.9, 0.99):
        assert np.quantile(late, share) == pytest.approx(np.quantile(virtual, share), rel=0.05)
    evicted, virtually = observed.counters.evictions, seen.counters.evictions
    assert evicted.capacity + evicted.resize == pytest.approx(virtually.capacity + virtually.resize, rel=0.02)
    assert observed.split.limits == seen.split.limits
