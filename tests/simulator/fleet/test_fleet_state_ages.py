"""State in the fleet expires and ages with the embeddings as the tiers' own rules say, which are a class of their own."""

from typing import Any

import numpy as np
import pytest
from fleet_logs import MIB, a_fleet, a_log

from simulator.fleet.config import Level
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate
from simulator.physics.batching import BatchRules
from simulator.request_log import RequestLog
from simulator.tiers.freshness import Freshness, Stamp, Verdict

#: Requests so far apart that no user asks again while it is served, for several minutes.
LOG = a_log(rows_per_token=0, per_second=10.0)
ROOMY: dict[str, Any] = {"instances": 1, "pool_bytes": 1 << 34, "granule_bytes": MIB}


def served(log: RequestLog = LOG, **changes: Any) -> FleetResult:
    return simulate(log, a_fleet(**(ROOMY | changes)), level=Level.EXACT, seed=1)


def by_the_rules(log: RequestLog, *, emb_version_ms: float | None = None, **bounds: Any) -> tuple[list[int], Freshness]:
    """Tokens found by each request where nothing is ever evicted, and the verdicts."""
    stamps: dict[int, Stamp] = {}
    held: dict[int, int] = {}
    rules, found = Freshness(**bounds), []
    for at_ms, user, history in zip(log.arrival_ms.tolist(), log.user.tolist(), log.history_tokens.tolist(), strict=True):
        rules.emb = int(at_ms / emb_version_ms) if emb_version_ms else 0
        usable = user in stamps and rules.judge(stamps[user], now_ms=at_ms).usable
        found.append(min(held[user], history) if usable else 0)
        stamps[user] = rules.stamp(stamps[user] if usable else None, now_ms=at_ms)
        held[user] = history
    return found, rules


@pytest.mark.parametrize(
    ("ttl_ms", "emb_version_ms", "max_emb_lag"),
    [(30_000.0, None, None), (None, 45_000.0, None), (None, 20_000.0, 2), (None, 60_000.0, 0), (40_000.0, 25_000.0, 1)],
)
def test_what_is_found_and_how_stale_it_is_follow_the_rules_of_the_tiers(
    ttl_ms: float | None, emb_version_ms: float | None, max_emb_lag: int | None
) -> None:
    found, rules = by_the_rules(LOG, ttl_ms=ttl_ms, emb_version_ms=emb_version_ms, max_emb_lag=max_emb_lag)

    mine = served(ttl_ms=ttl_ms, emb_version_ms=emb_version_ms, max_emb_lag=max_emb_lag)

    np.testing.assert_array_equal(mine.kv_hit_tokens, found)
    told = {name: mine.counts[name] for name in ("expired", "tooStale", "staleHits")}
    verdicts = rules.verdicts
    assert told == {
        "expired": verdicts[Verdict.EXPIRED],
        "tooStale": verdicts[Verdict.TOO_STALE],
        "staleHits": verdicts[Verdict.STALE],
    }
    assert any(told.values())


def test_state_below_hbm_expires_as_well() -> None:
    _, rules = by_the_rules(LOG, ttl_ms=30_000.0)

    mine = served(pool_bytes=256 * MIB, host_bytes=1 << 34, ttl_ms=30_000.0)

    assert mine.bytes_by_class["offload"] > 0
    assert mine.counts["expired"] == rules.verdicts[Verdict.EXPIRED]


def test_users_of_a_running_batch_keep_their_state_and_the_rest_ages_as_alone() -> None:
    crowded = a_log(rows_per_token=0, per_second=700.0)

    mine = served(crowded, batching=BatchRules(), ttl_ms=1500.0)

    _, rules = by_the_rules(crowded, ttl_ms=1500.0)
    assert 0 < mine.counts["expired"] <= rules.verdicts[Verdict.EXPIRED]


def test_bounds_that_are_never_reached_change_nothing() -> None:
    free, bounded = served(pool_bytes=256 * MIB), served(pool_bytes=256 * MIB, ttl_ms=1e9, emb_version_ms=1e9, max_emb_lag=0)

    np.testing.assert_array_equal(bounded.latency_ms, free.latency_ms)
    assert not any(bounded.counts.values())
