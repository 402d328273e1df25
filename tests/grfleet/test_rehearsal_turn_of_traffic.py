"""When users stop coming back, the split leaves KV within seconds: real agent loop, virtual-time engine."""

import numpy as np

from contract.engine import ItemPopularity, RankRequest
from contract.keys import user_key
from grfleet.demo.rehearsal import rehearse
from simulator.core.config import GIB, InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.replay import even_slots

POOL_KEY = b"sixteen bytes at least, public"
TURN_S, SECONDS = 70, 100
USERS, PER_S = 250, 25.0
HOT = ItemPopularity(exponent=1.05, catalog_rows=8_000_000)
WIDE = ItemPopularity(exponent=0.9, catalog_rows=20_000_000)
INTENT = {
    "strategy": "MissRatioCurve",
    "enforcement": "Active",
    "step": {"maxPercentPerSecond": 4, "deadbandPercent": 2, "intervalMs": 1000},
}


def requests(seed: int) -> list[RankRequest]:
    """Long histories of users who return and few candidates; then short ones of newcomers and many candidates."""
    rng = np.random.default_rng(seed)
    made: list[RankRequest] = []
    for index, at_ms in enumerate(np.cumsum(rng.exponential(1000.0 / PER_S, int(PER_S * SECONDS)))):
        returning = at_ms < TURN_S * 1000.0
        made.append(
            RankRequest(
                request_id=f"{seed}-{index}",
                user_key=user_key(POOL_KEY, f"user-{rng.integers(0, USERS)}" if returning else f"newcomer-{index}"),
                model_version="1",
                history_tokens=1 + int(min(4000.0, rng.lognormal(0.0, 0.6) * (1500.0 if returning else 500.0))),
                candidates=100 if returning else 2500,
                arrival_ms=float(at_ms),
                rows_per_token=8,
                item_popularity=HOT if returning else WIDE,
            )
        )
    return made


def test_the_split_turns_within_seconds_of_the_traffic_and_not_first_the_other_way() -> None:
    core = GRInstanceCore(InstanceConfig(pool_bytes=4 * GIB, emb_percent=50, popularity=HOT), 1)
    core.warm()
    run = rehearse(requests(1), even_slots(1), [core], intent_spec=INTENT, memory_ms=20_000.0)
    before = [step for step in run.steps if step.time_ms < TURN_S * 1000.0]
    after = [step for step in run.steps if step.time_ms >= TURN_S * 1000.0]

    assert before[-1].emb_percent < 25
    assert min(step.emb_percent for step in after) > before[-1].emb_percent - 5
    # Two or three seconds to notice, five to know the new curve, ten at the pace that the policy allows.
    assert next(step.time_ms for step in after if step.emb_percent > 50) < (TURN_S + 22) * 1000.0
    assert after[-1].emb_percent > 70
