"""Builders for the tests of the instance model."""

import random
from typing import Any

from contract.engine import ItemPopularity, RankRequest, Sampling, SplitRequest
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore

MIB = 1 << 20
LAW = ItemPopularity(exponent=0.95, catalog_rows=100_000)


def user(number: int) -> str:
    return f"{number:032x}"


def config(**changes: Any) -> InstanceConfig:
    """A small instance: 64 MiB of pool, so a user of 1 000 tokens (8 MiB) is an eighth of it."""
    base: dict[str, Any] = {
        "pool_bytes": 64 * MIB,
        "granule_bytes": MIB,
        "popularity": LAW,
        "sampling": Sampling(users_one_in=1, rows_one_in=16),
    }
    return InstanceConfig(**(base | changes))


def rank(number: int, *, who: int = 1, tokens: int = 1000, **changes: Any) -> RankRequest:
    base: dict[str, Any] = {
        "request_id": f"r{number}",
        "user_key": user(who),
        "model_version": "1",
        "history_tokens": tokens,
        "candidates": 100,
        "rows_per_token": 2,
    }
    return RankRequest(**(base | changes))


def split(core: GRInstanceCore, revision: int, emb: int, kv: int, *, refill: int = 0, **changes: Any) -> SplitRequest:
    base: dict[str, Any] = {"start_id": core.start_id}
    return SplitRequest(revision=revision, emb_bytes=emb, kv_bytes=kv, refill_bytes_per_second=refill, **(base | changes))


def traffic(count: int, *, users: int = 20, mean_gap_ms: float = 15.0, seed: int = 1) -> list[tuple[RankRequest, float]]:
    """Requests of users whose histories grow, with the times at which they arrive."""
    chance = random.Random(seed)
    history = {who: chance.randrange(200, 900) for who in range(users)}
    now, out = 0.0, []
    for number in range(count):
        who = chance.randrange(users)
        history[who] += 10
        now += chance.expovariate(1 / mean_gap_ms)
        out.append((rank(number, who=who, tokens=history[who]), now))
    return out
