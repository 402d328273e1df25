"""The whole policy against two real LRU lists and a queue: samples, costs, decisions and writes, in virtual time."""

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from policies.allocation.apply import Answer, ApplyState, SplitPut, next_put
from policies.allocation.costs import CostMemory, CostPrior, WorkDelta, costs_of, update_costs
from policies.allocation.estimator import ReuseTimeEstimator, mix64, sample_mask
from policies.allocation.strategy import decide
from policies.allocation.types import (
    AllocationIntent,
    AllocationState,
    EstimatorView,
    Observation,
    SplitInForce,
    Step,
    Strategy,
)
from policies.measurement import Fresh

POOL, GRANULE = 32_000_000, 250_000
ROW_BYTES, TOKEN_BYTES = 512, 200
BASE_MS = 1.0
ROWS_PER_REQUEST, REQUESTS_PER_S = 40, 60
ROW_SAMPLE = 1 / 4
USERS, ROWS = 500, 100_000
# Milliseconds per missed row and per missed token.
EMB_BOUND, BALANCED, KV_BOUND = (0.25, 0.001), (0.08, 0.008), (0.01, 0.02)


class Lru:
    """Byte-bounded LRU of whole entries."""

    def __init__(self) -> None:
        self.entries: OrderedDict[int, int] = OrderedDict()
        self.used = 0

    def touch(self, key: int, size: int, limit: int) -> bool:
        """Whether the key was there; afterwards it is, and the list fits its limit."""
        hit = key in self.entries
        if hit:
            self.entries.move_to_end(key)
        else:
            self.entries[key] = size
            self.used += size
        self.fit(limit)
        return hit

    def fit(self, limit: int) -> None:
        while self.used > limit and self.entries:
            self.used -= self.entries.popitem(last=False)[1]


@dataclass
class Engine:
    """One first-come-first-served server over two LRU lists; draws its own requests from a seed."""

    costs: tuple[float, float]
    seed: int = 5
    emb_bytes: int = POOL // 2
    kv_bytes: int = POOL // 2
    revision: int = 0
    free_at_ms: float = 0.0
    emb: Lru = field(default_factory=Lru)
    kv: Lru = field(default_factory=Lru)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.tokens = (np.random.default_rng(1).lognormal(0.0, 0.5, USERS) * 400).astype(int) + 1
        self.users = np.cumsum(np.arange(1, USERS + 1) ** -0.4)
        self.rows = np.cumsum(np.arange(1, ROWS + 1) ** -0.7)

    def put(self, put: SplitPut) -> Answer:
        assert put.revision == self.revision + 1
        assert put.emb_bytes + put.kv_bytes <= POOL
        self.revision, self.emb_bytes, self.kv_bytes = put.revision, put.emb_bytes, put.kv_bytes
        self.emb.fit(self.emb_bytes)
        self.kv.fit(self.kv_bytes)
        return Answer.APPLIED

    def split(self) -> SplitInForce:
        return SplitInForce(
            start_id="one",
            revision=self.revision,
            emb_bytes=self.emb_bytes,
            kv_bytes=self.kv_bytes,
            emb_used_bytes=self.emb.used,
            kv_used_bytes=self.kv.used,
        )

    def second(self, second: int) -> tuple[NDArray[np.float64], WorkDelta, list[tuple[float, int, int]], list[tuple[float, int]]]:
        """Serve one second of requests: latencies, work, user accesses (time, key, tokens) and row accesses (time, key)."""
        n = int(self.rng.poisson(REQUESTS_PER_S))
        at = np.sort(self.rng.uniform(0.0, 1000.0, n)) + 1000.0 * second
        who = np.searchsorted(self.users, self.rng.uniform(0.0, self.users[-1], n))
        rows = np.searchsorted(self.rows, self.rng.uniform(0.0, self.rows[-1], (n, ROWS_PER_REQUEST)))
        ms_row, ms_token = self.costs
        latencies, served = np.empty(n), np.empty(n)
        asked = missed = rows_asked = rows_missed = 0
        user_log, row_log = [], []
        for i in range(n):
            tokens = int(self.tokens[who[i]])
            hit = self.kv.touch(int(who[i]), tokens * TOKEN_BYTES, self.kv_bytes)
            keys = rows[i].tolist()
            row_misses = sum(not self.emb.touch(key, ROW_BYTES, self.emb_bytes) for key in keys)
            served[i] = BASE_MS + ms_row * row_misses + (0.0 if hit else ms_token * tokens)
            self.free_at_ms = max(self.free_at_ms, at[i]) + served[i]
            latencies[i] = self.free_at_ms - at[i]
            asked += tokens
            missed += 0 if hit else tokens
            rows_asked += ROWS_PER_REQUEST
            rows_missed += row_misses
            user_log.append((float(at[i]), int(who[i]), tokens))
            row_log += [(float(at[i]), key) for key in keys]
        work = WorkDelta(
            interval_ms=1000.0,
            requests=n,
            kv_tokens_asked=asked,
            kv_tokens_missed=missed,
            emb_rows_asked=rows_asked,
            emb_rows_missed=rows_missed,
            service_ms=float(served.sum()),
            service_squared_ms2=float((served**2).sum()),
            emb_miss_ms=ms_row * rows_missed,
            kv_miss_ms=ms_token * missed,
        )
        return latencies, work, user_log, row_log


@dataclass
class Agent:
    """What an agent does once a second, with nothing but the policies."""

    strategy: Strategy
    state: AllocationState = field(default_factory=AllocationState)
    applied: ApplyState = field(default_factory=ApplyState)
    costs: CostMemory = field(default_factory=CostMemory)

    def __post_init__(self) -> None:
        self.kv = ReuseTimeEstimator(sample_rate=1.0, decay_ms=60_000.0)
        self.emb = ReuseTimeEstimator(sample_rate=ROW_SAMPLE, decay_ms=60_000.0)

    def second(self, engine: Engine, second: int) -> NDArray[np.float64]:
        latencies, work, users, rows = engine.second(second)
        now_ms = 1000.0 * (second + 1)
        self.costs = update_costs(self.costs, work)
        t, keys, tokens = (np.array(column) for column in zip(*users, strict=True))
        self.kv.ingest(mix64(keys.astype(np.uint64)), t, tokens * float(TOKEN_BYTES), now_ms=now_ms)
        t, keys = (np.array(column) for column in zip(*rows, strict=True))
        hashed = mix64(keys.astype(np.uint64) + np.uint64(77))
        mask = sample_mask(hashed, ROW_SAMPLE)
        self.emb.ingest(hashed[mask], t[mask], float(ROW_BYTES), asked_bytes=work.emb_rows_asked * ROW_BYTES, now_ms=now_ms)
        kv = self.kv.view(now_ms=now_ms)
        cv2 = kv.size_cv2 if kv else 0.0
        view = EstimatorView(
            emb=self.emb.view(now_ms=now_ms),
            kv=kv,
            costs=costs_of(self.costs, kv_size_cv2=cv2, prior=CostPrior(emb_rows_per_kv_miss_token=0.0)),
        )
        observation = Observation(
            interval_ms=1000.0,
            usable_bytes=POOL,
            granule_bytes=GRANULE,
            split=engine.split(),
            requests=Fresh(work.requests),
            kv_tokens_asked=Fresh(work.kv_tokens_asked),
            kv_tokens_hit=Fresh(work.kv_tokens_asked - work.kv_tokens_missed),
            emb_rows_asked=Fresh(work.emb_rows_asked),
            emb_rows_hit=Fresh(work.emb_rows_asked - work.emb_rows_missed),
            demand_bytes=Fresh(work.emb_rows_missed * ROW_BYTES),
            p99_ms=Fresh(float(np.quantile(latencies, 0.99))),
            utilisation=Fresh(work.service_ms / 1000.0),
        )
        intent = AllocationIntent(strategy=self.strategy, step=Step(max_percent_per_second=3.0))
        decision, self.state = decide(observation, view, intent, self.state, now_ms)
        assert decision.may_apply
        answer = Answer.NONE
        for _ in range(2):  # shrink, then grow: this engine frees memory at once
            put, self.applied = next_put(
                engine.split(),
                pool_bytes=POOL,
                target_emb_bytes=decision.target_emb_bytes,
                refill_bytes_per_second=0,
                answer=answer,
                state=self.applied,
                now_ms=now_ms,
            )
            answer = engine.put(put) if put else Answer.NONE
        return latencies


SECONDS, WARM = 100, 50


@cache
def static_p99_ms(percent: int, costs: tuple[float, float]) -> float:
    engine = Engine(costs, emb_bytes=POOL * percent // 100, kv_bytes=POOL - POOL * percent // 100)
    return float(np.quantile(np.concatenate([engine.second(s)[0] for s in range(SECONDS)][WARM:]), 0.99))


@pytest.mark.parametrize(
    ("strategy", "costs", "slack", "between"),
    [
        (Strategy.MISS_RATIO_CURVE, EMB_BOUND, 1.05, (75, 95)),
        (Strategy.MISS_RATIO_CURVE, BALANCED, 1.05, (25, 50)),
        (Strategy.MISS_RATIO_CURVE, KV_BOUND, 1.05, (5, 20)),
        (Strategy.HILL_CLIMB, BALANCED, 1.1, (15, 50)),
    ],
    ids=["rows dear", "balanced", "tokens dear", "balanced, hill climb"],
)
def test_the_policy_finds_its_way_to_about_the_best_static_split(
    strategy: Strategy, costs: tuple[float, float], slack: float, between: tuple[int, int]
) -> None:
    engine, agent = Engine(costs), Agent(strategy)
    latencies = [agent.second(engine, s) for s in range(SECONDS)]
    adaptive = float(np.quantile(np.concatenate(latencies[WARM:]), 0.99))
    static = {percent: static_p99_ms(percent, costs) for percent in (10, 25, 40, 55, 90)}
    assert adaptive <= slack * min(static.values()), static
    assert between[0] <= 100 * engine.emb_bytes / POOL <= between[1]


def test_when_the_traffic_turns_the_split_turns_with_it_and_not_first_the_other_way() -> None:
    engine, agent = Engine(BALANCED), Agent(Strategy.MISS_RATIO_CURVE)
    for second in range(60):
        agent.second(engine, second)
    before = engine.emb_bytes
    engine.users = np.cumsum(np.arange(1, USERS + 1) ** -1.6)  # few users make most requests: KV needs much less memory
    path = []
    for second in range(60, 95):
        agent.second(engine, second)
        path.append(engine.emb_bytes)
    assert min(path) >= before - POOL // 20
    assert path[-1] >= before + POOL // 10
