"""A cache that has never missed must not keep the split from the one that starves: real agent loop, virtual-time engines."""

import math
from dataclasses import dataclass

import numpy as np

from contract.engine import ItemPopularity, RankRequest
from contract.keys import user_key
from grfleet.demo.rehearsal import Rehearsal, rehearse
from simulator.core.config import GIB, InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.replay import Outcomes, even_slots, replay

POOL_KEY = b"sixteen bytes at least, public"
SECONDS, SETTLED_S = 110, 70
TOKENS = 2000
STEP = {"maxPercentPerSecond": 4, "deadbandPercent": 2, "intervalMs": 1000}
INTENT = {"strategy": "MissRatioCurve", "enforcement": "Active", "step": STEP}


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Steady traffic: so many users, each as likely, with one history length; rows of one Zipf law."""

    users: int
    per_s: float
    candidates: int
    items: ItemPopularity

    def requests(self, seed: int) -> list[RankRequest]:
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(1000.0 / self.per_s, int(self.per_s * SECONDS)))
        who = rng.integers(0, self.users, len(arrivals))
        return [
            RankRequest(
                request_id=f"{seed}-{index}",
                user_key=self.key(user),
                model_version="1",
                history_tokens=TOKENS,
                candidates=self.candidates,
                arrival_ms=float(at),
                rows_per_token=8,
                item_popularity=self.items,
            )
            for index, (at, user) in enumerate(zip(arrivals, who.tolist(), strict=True))
        ]

    def key(self, user: int) -> str:
        return user_key(POOL_KEY, f"user-{user}")

    def core(self, emb_percent: int = 50) -> GRInstanceCore:
        """An instance in its steady state: rows warm, all users known, the last of them resident as far as they fit."""
        core = GRInstanceCore(InstanceConfig(pool_bytes=4 * GIB, emb_percent=emb_percent, popularity=self.items), 1)
        core.warm(users=[(self.key(user), "1", TOKENS) for user in range(self.users)])
        return core


# All rows fit an eighth of the pool; the users need three quarters of it.
FEW_ROWS = Traffic(users=200, per_s=30.0, candidates=300, items=ItemPopularity(exponent=0.8, catalog_rows=1_000_000))
# All users fit an eighth of the pool; the rows would take ten gibibytes.
FEW_USERS = Traffic(users=30, per_s=30.0, candidates=1500, items=ItemPopularity(exponent=0.8, catalog_rows=20_000_000))
# All rows fit two fifths of the pool; the users need half as much again as all of it.
MANY_USERS = Traffic(users=400, per_s=30.0, candidates=300, items=ItemPopularity(exponent=0.8, catalog_rows=3_400_000))


def p99_ms(outcomes: Outcomes) -> float:
    """P99 once the split has settled."""
    return float(np.percentile(outcomes.between(SETTLED_S * 1000.0, math.inf).latency_ms, 99.0))


def served_at_half(traffic: Traffic, requests: list[RankRequest]) -> Outcomes:
    return replay(requests, even_slots(1), [traffic.core()])


def adaptive(traffic: Traffic, requests: list[RankRequest]) -> Rehearsal:
    return rehearse(requests, even_slots(1), [traffic.core()], intent_spec=INTENT, memory_ms=20_000.0)


def shares(run: Rehearsal) -> list[float]:
    return [step.emb_percent for step in run.steps]


def test_rows_that_all_fit_give_way_to_starving_users() -> None:
    requests = FEW_ROWS.requests(seed=1)
    fixed, run = served_at_half(FEW_ROWS, requests), adaptive(FEW_ROWS, requests)

    assert fixed.emb_rows_missed.sum() == 0
    assert run.steps[-1].reason == "AnchorTarget"
    assert shares(run)[-1] < 25
    assert p99_ms(run.outcomes) < 0.8 * p99_ms(fixed)


def test_users_that_all_fit_give_way_to_starving_rows() -> None:
    requests = FEW_USERS.requests(seed=1)
    fixed, run = served_at_half(FEW_USERS, requests), adaptive(FEW_USERS, requests)

    assert np.array_equal(fixed.kv_tokens_hit, fixed.history_tokens)
    assert run.steps[-1].reason == "AnchorTarget"
    assert shares(run)[-1] > 70
    assert p99_ms(run.outcomes) < 0.95 * p99_ms(fixed)


def test_once_the_spared_cache_misses_the_measured_price_brings_the_split_back() -> None:
    # The prior is the least that a row can cost, so the split first goes further than it should, by what one look takes.
    requests = MANY_USERS.requests(seed=1)
    fixed, run = served_at_half(MANY_USERS, requests), adaptive(MANY_USERS, requests)

    assert fixed.emb_rows_missed.sum() == 0
    assert run.outcomes.emb_rows_missed.sum() > 0
    assert shares(run)[-1] > min(shares(run)) + 5
    assert p99_ms(run.outcomes) < 1.05 * p99_ms(fixed)
