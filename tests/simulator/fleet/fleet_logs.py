"""Builders for the tests of the fleet: small logs, small fleets, and the same requests in the words of the engine contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.engine import ItemPopularity, ModelIdentity, RankRequest, Sampling
from contract.keys import slot_of
from simulator.core.config import InstanceConfig
from simulator.core.physics import ServiceModel
from simulator.fleet.config import FleetConfig
from simulator.fleet.policies import FleetObservation
from simulator.request_log import RequestLog, RowLaw

MIB = 1 << 20
#: Ten times slower than an A100 with a 4 x 512 model, so that a hundred requests a second load an instance.
SERVICE = ServiceModel(
    layers=4,
    width=512,
    flops_per_second=17e12,
    row_bytes=512,
    link_bytes_per_second=2_480_000_000,
    gather_efficiency=0.55,
    gather_fixed_ms=0.5,
    base_ms=1.0,
)
LAW = RowLaw(exponent=0.95, catalog_rows=100_000)


def key_of(number: int) -> str:
    return f"{number:032x}"


def a_log(
    count: int = 4000,
    *,
    users: int = 300,
    per_second: float = 300.0,
    rows_per_token: int = 1,
    laws: tuple[RowLaw, ...] = (LAW,),
    seed: int = 1,
    **changes: Any,
) -> RequestLog:
    """Requests at Poisson times by users of unequal activity, whose histories grow."""
    random = np.random.default_rng(seed)
    activity = random.lognormal(0.0, 1.0, users)
    user = random.choice(users, size=count, p=activity / activity.sum()).astype(np.uint32)
    length = np.clip(random.lognormal(6.0, 0.7, users), 32, 4096)
    grown = np.zeros(count)
    for place, who in enumerate(user):
        length[who] += random.integers(0, 12)
        grown[place] = length[who]
    columns: dict[str, Any] = {
        "arrival_ms": np.cumsum(random.exponential(1000.0 / per_second, count)),
        "user": user,
        "history_tokens": grown.astype(np.int32),
        "candidates": random.integers(10, 200, count).astype(np.int32),
        "signal_lead_ms": np.zeros(count, dtype=np.float32),
        "law": np.zeros(count, dtype=np.uint8),
        "user_slots": np.array([slot_of(key_of(number)) for number in range(users)], dtype=np.uint16),
        "laws": laws,
        "rows_per_token": rows_per_token,
    }
    return RequestLog(**(columns | changes))


def a_fleet(**changes: Any) -> FleetConfig:
    """Four instances of 256 MiB, of which 25 % hold all rows of LAW: a user of 1 000 tokens takes 8 MiB."""
    base: dict[str, Any] = {
        "instances": 4,
        "pool_bytes": 256 * MIB,
        "emb_percent": 10,
        "service": SERVICE,
        "slo_ms": 50.0,
        "granule_bytes": MIB,
    }
    return FleetConfig(**(base | changes))


def core_config(fleet: FleetConfig, law: RowLaw) -> InstanceConfig:
    """One instance of a fleet as the reference engine's core has it, every row simulated."""
    return InstanceConfig(
        pool_bytes=fleet.pool_bytes,
        emb_percent=fleet.emb_percent,
        p99_ms=fleet.slo_ms,
        model=ModelIdentity(name="m", version="1", emb_version="1"),
        service=fleet.service,
        popularity=ItemPopularity(exponent=law.exponent, catalog_rows=law.catalog_rows),
        sampling=Sampling(users_one_in=1, rows_one_in=1),
        granule_bytes=fleet.granule_bytes,
        page_tokens=fleet.page_tokens,
        load_behind_percent=fleet.load_behind_percent,
        host_bytes=fleet.host_bytes,
        ssd_bytes=fleet.ssd_bytes,
        ssd_bytes_per_second=fleet.ssd_bytes_per_second,
        reload_fixed_ms=fleet.reload_fixed_ms,
        refill_yields=fleet.refill_yields,
        offload_queue_bytes=fleet.offload_queue_bytes,
    )


def as_rank_requests(log: RequestLog) -> list[RankRequest]:
    law = log.laws[0]
    return [
        RankRequest(
            request_id=f"r{place}",
            user_key=key_of(int(log.user[place])),
            model_version="1",
            history_tokens=int(log.history_tokens[place]),
            candidates=int(log.candidates[place]),
            rows_per_token=log.rows_per_token,
            arrival_ms=float(log.arrival_ms[place]),
            item_popularity=ItemPopularity(exponent=law.exponent, catalog_rows=law.catalog_rows),
        )
        for place in range(len(log))
    ]


@dataclass
class Scripted:
    """A split policy that wants what it was told, one entry an interval, and keeps what it saw."""

    interval_ms: float
    wanted: Sequence[int | None]

    def __post_init__(self) -> None:
        self.seen: list[Sequence[FleetObservation]] = []

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        self.seen.append(observations)
        place = len(self.seen) - 1
        return [self.wanted[place] if place < len(self.wanted) else None] * len(observations)
