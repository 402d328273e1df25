"""Warm starts: caches in the steady state of a law or of known users, without simulating the way there.

Under independent draws the age of row i, in accesses, is exponential with rate p_i; sorting such ages gives the order of an LRU
cache. The warm start decides the answer of a short run. Ages are sorted by counting, in 65 536 classes of their logarithm: ten
million rows in a third of a second, with the order inside a class left to chance.
"""

import math

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.fleet import users as kv
from simulator.fleet.randomness import GOLDEN, mix, unit
from simulator.fleet.state import (
    GHOST_LIMIT,
    GHOSTS,
    HEAD,
    RATIO,
    ROWS_CAPACITY,
    ROWS_USED,
    TAIL,
    TIER,
    Rows,
    Users,
)

_CLASSES = 65_536
_PRIMED = 800.0  # samples that a primed miss ratio counts for: the window of the kernel


@compiled
def warm_rows(
    seed: np.uint64,
    law: int,
    mass: NDArray[np.float64],
    ints: NDArray[np.int64],
    floats: NDArray[np.float64],
    rows: Rows,
) -> None:
    """Fill the ring of an instance with its youngest cells, ghosts behind them, and prime the miss ratio of a law.

    Parameters
    ----------
    mass : float64[cells]
        Popularity of each cell; those without any stay out.
    """
    cells = len(mass)
    least = most = 0.0
    stream, count = seed, 0
    ages = np.empty(cells, dtype=np.float32)
    for cell in range(cells):
        stream += GOLDEN
        if mass[cell] <= 0.0:
            ages[cell] = np.inf
            continue
        age = math.log(-math.log(1.0 - unit(mix(stream))) / mass[cell] + 1e-300)
        ages[cell] = age
        least, most = (age, age) if count == 0 else (min(least, age), max(most, age))
        count += 1
    scale = (_CLASSES - 1) / (most - least) if most > least else 0.0
    begins = np.zeros(_CLASSES + 1, dtype=np.int64)
    for cell in range(cells):
        if ages[cell] < np.inf:
            begins[int((ages[cell] - least) * scale) + 1] += 1
    for number in range(_CLASSES):
        begins[number + 1] += begins[number]
    youngest = np.empty(count, dtype=np.int32)
    for cell in range(cells):
        if ages[cell] < np.inf:
            number = int((ages[cell] - least) * scale)
            youngest[begins[number]] = cell
            begins[number] += 1
    cached = min(ints[ROWS_CAPACITY], count)
    ghosts = min(ints[GHOST_LIMIT], count - cached)
    rows.last[:] = -1
    held = total = 0.0
    for cell in range(cells):
        total += mass[cell]
    for time in range(ghosts + cached):
        cell = youngest[ghosts + cached - 1 - time]
        rows.ring[time] = cell
        rows.last[cell] = time
        if time >= ghosts:
            held += mass[cell]
    ints[HEAD], ints[TAIL], ints[ROWS_USED], ints[GHOSTS] = ghosts + cached, ghosts, cached, ghosts
    floats[RATIO] = 1.0 - held / total if total > 0.0 else 0.0
    rows.misses[law], rows.expected[law], rows.memory[law] = floats[RATIO] * _PRIMED, _PRIMED, _PRIMED


@compiled
def warm_users(
    fleet: NDArray[np.int64], ints: NDArray[np.int64], users: Users, numbers: NDArray[np.int32], tokens: NDArray[np.int32]
) -> None:
    """Let users ask for their histories, the least recent first, without counting anything."""
    counted = ints.copy()
    for place in range(len(numbers)):
        user = int(numbers[place])
        if users.record[user, TIER] >= kv.HOST:
            kv.leave_lower_tier(fleet, ints, users, user)
        kv.access(fleet, ints, users, user, int(tokens[place]), kv.NOBODY)
    for place in kv.COUNTERS:
        ints[place] = counted[place]
