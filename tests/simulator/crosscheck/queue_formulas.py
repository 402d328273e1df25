"""Closed forms of single-server queues, written from the textbooks and from nothing in the simulator."""

from decimal import Decimal, getcontext

import numpy as np
from numpy.typing import NDArray


def mean_wait_ms(*, load: float, mean_ms: float, second_moment: float) -> float:
    """Pollaczek and Khinchine: the mean wait of M/G/1, lambda E[S^2] / (2 (1 - rho))."""
    return load / mean_ms * second_moment / (2.0 * (1.0 - load))


def second_moment_of_wait(*, load: float, mean_ms: float, second_moment: float, third_moment: float) -> float:
    """E[W^2] of M/G/1: 2 E[W]^2 + lambda E[S^3] / (3 (1 - rho)) (Takacs' recursion)."""
    wait = mean_wait_ms(load=load, mean_ms=mean_ms, second_moment=second_moment)
    return 2.0 * wait * wait + load / mean_ms * third_moment / (3.0 * (1.0 - load))


def md1_waits_at_most(services: float, load: float) -> float:
    """P(wait <= that many service times) in M/D/1 (Erlang 1909); an alternating sum, so with sixty digits."""
    getcontext().prec = 60
    rho, t = Decimal(load), Decimal(services)
    total, factorial = Decimal(0), Decimal(1)
    for k in range(int(services) + 1):
        factorial *= max(k, 1)
        x = rho * (k - t)
        # The first power of zero is one, which Decimal refuses to say.
        total += (x**k if k else Decimal(1)) / factorial * (-x).exp()
    return float((1 - rho) * total)


def md1_wait_quantile(share: float, load: float) -> float:
    """The wait, in service times, that this share of requests does not exceed."""
    low, high = 0.0, 1.0
    while md1_waits_at_most(high, load) < share:
        high *= 2.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if md1_waits_at_most(middle, load) < share else (low, middle)
    return high


def waits(arrival: NDArray[np.float64], service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Waits of a first-come-first-served server: how far the unfinished work lies above its lowest point so far."""
    before = np.concatenate(([0.0], np.cumsum(service)[:-1])) - arrival
    return np.asarray(before - np.minimum.accumulate(before), dtype=np.float64)
