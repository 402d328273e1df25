"""Small logs and fleets for tests of the oracle."""

from typing import Any

import numpy as np

from simulator.core.physics import ServiceModel
from simulator.fleet.config import FleetConfig
from simulator.request_log import RequestLog, RowLaw

SERVICE = ServiceModel(
    layers=4,
    width=512,
    flops_per_second=3e12,
    row_bytes=512,
    link_bytes_per_second=400_000_000,
    gather_efficiency=0.55,
    gather_fixed_ms=0.2,
    base_ms=2.0,
)


def a_fleet(**changes: Any) -> FleetConfig:
    values: dict[str, Any] = {
        "instances": 2,
        "pool_bytes": 1 << 29,
        "emb_percent": 50,
        "service": SERVICE,
        "slo_ms": 50.0,
        "granule_bytes": 1 << 20,
    }
    return FleetConfig(**{**values, **changes})


def a_log(
    requests: int = 8_000,
    *,
    per_second: float = 80.0,
    users: int = 1_500,
    laws: tuple[RowLaw, ...] = (RowLaw(exponent=0.9, catalog_rows=500_000),),
    law_of: Any = None,
    seed: int = 0,
    **changes: Any,
) -> RequestLog:
    """Zipf users with log-normal histories that grow, Poisson arrivals."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1e3 / per_second, requests))
    user = (rng.zipf(1.25, requests) % users).astype(np.uint32)
    length = np.clip(rng.lognormal(6.0, 0.6, users), 30, 2_000)
    history = np.minimum(length[user] * (1.0 + 0.2 * np.arange(requests) / requests), 2_000).astype(np.int32)
    columns: dict[str, Any] = {
        "arrival_ms": arrival,
        "user": user,
        "history_tokens": history,
        "candidates": np.full(requests, 60, dtype=np.int32),
        "signal_lead_ms": np.zeros(requests, dtype=np.float32),
        "law": (np.zeros(requests) if law_of is None else law_of(arrival)).astype(np.uint8),
        "user_slots": rng.integers(0, 4096, users).astype(np.uint16),
        "laws": laws,
        "rows_per_token": 3,
    }
    return RequestLog(**{**columns, **changes})
