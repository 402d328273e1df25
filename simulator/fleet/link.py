"""The host link of one instance, compiled: the account of `simulator.core.shared_link`, which a test compares with it.

Off-load waits behind everybody and goes the other way; while some of it waits, both directions are busy and each keeps only its
duplex share. A refill that yields gets the time that demand and reload leave.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet.service import gather_ms
from simulator.fleet.state import (
    BUSY_SINCE,
    BUSY_TRANSFERS,
    DUPLEX_TO_DEVICE,
    DUPLEX_TO_HOST,
    EMPTY_AT,
    FREE_AT,
    GATHER_FIXED_MS,
    GATHER_PER_SECOND,
    HIGHER_MS,
    LAYERS,
    LINK_AT,
    LINK_PER_MS,
    OFFLOAD_BYTES,
    OFFLOAD_LEFT,
    OFFLOAD_SEEN,
    RELOAD_FIXED_MS,
    SSD_PER_MS,
    TO_HOST_PER_MS,
)


@lean
def offload_until(
    physics: NDArray[np.float64], ints: NDArray[np.int64], floats: NDArray[np.float64], refilling: bool, now_ms: float
) -> None:
    """Move what waits to the host until `now_ms`; what is new was handed over at the time of the last call."""
    floats[OFFLOAD_LEFT] += ints[OFFLOAD_BYTES] - ints[OFFLOAD_SEEN]
    ints[OFFLOAD_SEEN] = ints[OFFLOAD_BYTES]
    if now_ms > floats[LINK_AT]:
        rate = physics[TO_HOST_PER_MS] * (physics[DUPLEX_TO_HOST] if refilling else 1.0)
        _go(floats, rate, now_ms - floats[LINK_AT])


@lean
def _go(floats: NDArray[np.float64], rate: float, ms: float) -> None:
    """Move what waits to the host at so many bytes a millisecond."""
    if floats[OFFLOAD_LEFT] > 0.0:
        floats[EMPTY_AT] = floats[LINK_AT] + min(ms, floats[OFFLOAD_LEFT] / rate)
        floats[OFFLOAD_LEFT] = max(0.0, floats[OFFLOAD_LEFT] - rate * ms)
    floats[LINK_AT] += ms


@lean
def hand_over(physics: NDArray[np.float64], ints: NDArray[np.int64], floats: NDArray[np.float64], now_ms: float) -> None:
    """Hand what a job evicted to off-load at its arrival, and delay jobs from now on by what it takes from those that wait."""
    if now_ms >= floats[FREE_AT]:
        floats[BUSY_SINCE], floats[BUSY_TRANSFERS] = now_ms, 0.0
    left = float(ints[OFFLOAD_BYTES] - ints[OFFLOAD_SEEN])
    ints[OFFLOAD_SEEN] = ints[OFFLOAD_BYTES]
    beside_ms = floats[LINK_AT] - max(now_ms, floats[EMPTY_AT])
    if left <= 0.0 or floats[OFFLOAD_LEFT] > 0.0 or beside_ms <= 0.0:
        floats[OFFLOAD_LEFT] += left
        return
    keeps = physics[DUPLEX_TO_DEVICE]
    share = floats[BUSY_TRANSFERS] / (floats[FREE_AT] - floats[BUSY_SINCE])
    share = share / keeps / (share / keeps + 1.0 - share)
    rate = physics[TO_HOST_PER_MS] * (1.0 - share + share * physics[DUPLEX_TO_HOST])
    ms = min(left / rate, beside_ms)
    delay = share * ms * (1.0 - keeps)
    floats[EMPTY_AT] = max(now_ms, floats[EMPTY_AT]) + ms
    floats[OFFLOAD_LEFT] = max(0.0, left - ms * rate)
    floats[LINK_AT] += delay
    floats[FREE_AT] += delay


@lean
def transfer_ms(physics: NDArray[np.float64], left: float, size: float, alone: float, both: float) -> float:
    """Return milliseconds to bring so many bytes to the device while `left` bytes wait to go to the host."""
    if left <= 0.0:
        return size / alone
    busy_ms = left / (physics[TO_HOST_PER_MS] * physics[DUPLEX_TO_HOST])
    if size <= both * busy_ms:
        return size / both
    return float(busy_ms + (size - both * busy_ms) / alone)


@lean
def left_after(physics: NDArray[np.float64], left: float, ms: float) -> float:
    """Return what of off-load is left after a transfer to the device of so many milliseconds."""
    return float(max(0.0, left - ms * physics[TO_HOST_PER_MS] * physics[DUPLEX_TO_HOST]))


@lean
def took(physics: NDArray[np.float64], floats: NDArray[np.float64], ms: float) -> None:
    """Note that the transfers of a job took so long; off-load went on beside them."""
    _go(floats, physics[TO_HOST_PER_MS] * physics[DUPLEX_TO_HOST], ms)
    floats[BUSY_TRANSFERS] += ms
    floats[HIGHER_MS] += ms


@lean
def load_ms(physics: NDArray[np.float64], left: float, size: int, from_ssd: bool, taken: float) -> float:
    """Return milliseconds to load so many bytes of state while `left` bytes wait to go to the host."""
    alone = physics[LINK_PER_MS] * (1.0 - taken)
    both = alone * physics[DUPLEX_TO_DEVICE]
    if from_ssd:
        alone, both = min(alone, physics[SSD_PER_MS]), min(both, physics[SSD_PER_MS])
    return float(transfer_ms(physics, left, float(size), alone, both))


@lean
def stall_ms(physics: NDArray[np.float64], fleet: NDArray[np.int64], load: float, compute: float) -> float:
    """Return what such a load adds to a request that then computes for `compute` ms: layer by layer, overlapped."""
    layers = fleet[LAYERS]
    return float(physics[RELOAD_FIXED_MS] + load / layers + max(0.0, load - compute) * (layers - 1) / layers)


@lean
def gather_beside_ms(physics: NDArray[np.float64], row_bytes: int, missed: int, taken: float, left: float) -> float:
    """Return milliseconds to fetch missed rows while `left` bytes wait to go to the host."""
    if left <= 0.0 or missed == 0:
        return float(gather_ms(physics, row_bytes, missed, taken))
    alone = physics[GATHER_PER_SECOND] * (1.0 - taken) / 1e3
    taking = transfer_ms(physics, left, float(missed * row_bytes), alone, alone * physics[DUPLEX_TO_DEVICE])
    return float(physics[GATHER_FIXED_MS] + taking)
