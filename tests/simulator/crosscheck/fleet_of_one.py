"""Logs and fleets for checks of the compiled fleet, and Che's approximation summed rank by rank."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.keys import slot_of
from simulator.core.physics import ServiceModel
from simulator.fleet.config import FleetConfig
from simulator.request_log import RequestLog, RowLaw

LAW = RowLaw(exponent=0.95, catalog_rows=1000)
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


def key_of(user: int) -> str:
    return f"{user:032x}"


def log_of(
    arrival_ms: NDArray[np.float64],
    user: NDArray[Any],
    history: NDArray[Any],
    *,
    candidates: int = 100,
    rows_per_token: int = 0,
    law: RowLaw = LAW,
) -> RequestLog:
    users = int(user.max()) + 1
    return RequestLog(
        arrival_ms=arrival_ms,
        user=user.astype(np.uint32),
        history_tokens=history.astype(np.int32),
        candidates=np.full(len(user), candidates, dtype=np.int32),
        signal_lead_ms=np.zeros(len(user), dtype=np.float32),
        law=np.zeros(len(user), dtype=np.uint8),
        user_slots=np.array([slot_of(key_of(number)) for number in range(users)], dtype=np.uint16),
        laws=(law,),
        rows_per_token=rows_per_token,
    )


def fleet_of(**changes: Any) -> FleetConfig:
    base: dict[str, Any] = {
        "instances": 1,
        "pool_bytes": 1 << 28,
        "emb_percent": 0,
        "service": SERVICE,
        "slo_ms": 50.0,
        "granule_bytes": 1,
    }
    return FleetConfig(**(base | changes))


def zipf(law: RowLaw) -> NDArray[np.float64]:
    """Probability of each rank."""
    weight = np.arange(1, law.catalog_rows + 1, dtype=np.float64) ** -law.exponent
    return np.asarray(weight / weight.sum())


@cache
def che_miss_ratio(law: RowLaw, rows: int) -> float:
    """Miss ratio of an LRU cache of so many rows: those touched in the last T accesses are held, and T fits the rows."""
    chance = zipf(law)
    low, high = 0.0, 1e3
    while -np.expm1(-chance * high).sum() < rows:
        high *= 2.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if -np.expm1(-chance * middle).sum() < rows else (low, middle)
    return float((chance * np.exp(-chance * high)).sum())
