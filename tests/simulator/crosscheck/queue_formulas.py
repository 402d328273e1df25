"""Closed forms of single-server queues, written from the textbooks and from nothing in the simulator."""

import math
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


def preemptive_times_ms(rates_per_ms: list[float], means_ms: list[float], second_moments: list[float]) -> list[float]:
    """Mean time in system of each class of M/G/1, first class first, where a higher class interrupts and work is resumed."""
    times, above, residual = [], 0.0, 0.0
    for rate, mean, second in zip(rates_per_ms, means_ms, second_moments, strict=True):
        upto = above + rate * mean
        residual += rate * second / 2.0
        times.append(mean / (1.0 - above) + residual / ((1.0 - above) * (1.0 - upto)))
        above = upto
    return times


def md1_refused_share(load: float, places: int) -> float:
    """Share of arrivals that M/D/1 with so many places, the one in service included, turns away.

    From the queue lengths that departures of M/D/1 without a limit leave behind: below the limit they have the same proportions
    (Keilson 1966).
    """
    arrivals = [math.exp(-load) * load**count / math.factorial(count) for count in range(places + 1)]
    left = [1.0]
    for count in range(places - 1):
        reached = left[0] * arrivals[count] + sum(left[i] * arrivals[count - i + 1] for i in range(1, count + 1))
        left.append((left[count] - reached) / arrivals[0])
    total = sum(left)
    return 1.0 - total / (1.0 + load * total)


def bulk_wait(load: float, most: int) -> float:
    """Mean wait, in service times, of Poisson requests at one server that takes up to so many at once in one unit of time.

    Load is arrivals per service time and may be up to `most`. From the chain of requests left behind at the end of each service
    (Bailey 1954, but an idle server begins with the first that comes), and Little's law.
    """
    size = 400
    chance = np.array([math.exp(-load + count * math.log(load) - math.lgamma(count + 1)) for count in range(size)])
    moves = np.zeros((size, size))
    for left in range(size):
        kept = max(left - most, 0)
        moves[left, kept:] = chance[: size - kept]
    moves /= moves.sum(axis=1, keepdims=True)
    share = np.linalg.matrix_power(moves, 1 << 14)[0]
    kept = np.maximum(np.arange(size) - most, 0)
    waiting = float(share @ (kept + load / 2.0))  # while one service lasts
    cycle = 1.0 + float(share[0]) / load  # with the time in which nobody is there
    return waiting / cycle / load
