"""Bounded load: nobody is sent on purpose to an instance that is above its share, and a quiet fleet refuses nobody.

Model: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018), with shares by weight and a floor below
which the bound does not count, so that two requests on an idle fleet are no reason to leave a cache behind. Overrides, which a
proxy follows blindly, are admitted one by one, those that save most first, against the load that they would leave.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from policies.routing.score import NOBODY, Wishes
from policies.routing.types import LoadBound

SLACK = 1e-9
"""Sums of floats in another order differ by so much."""


def caps(load: NDArray[np.float64], weight: NDArray[np.float64], bound: LoadBound) -> NDArray[np.float64]:
    """Return the greatest load of each instance, float64[instances]: a percent of its share of all load, or the floor.

    Parameters
    ----------
    load
        float64[instances], of all that serve.
    weight
        float64[instances]; one without weight may be given nothing.
    bound
        As in the routing policy.
    """
    total = weight.sum()
    share = load.sum() * weight / total if total > 0.0 else np.zeros(len(load))
    return np.where(weight > 0.0, np.maximum(bound.percent / 100.0 * share, bound.floor), 0.0)


def first_below(order: Iterable[int], load: NDArray[np.float64], cap: NDArray[np.float64], *, more: float = 1.0) -> int:
    """Return the first instance of an order that stays within its cap with `more` load, NOBODY where there is none."""
    return next((at for at in order if load[at] + more <= cap[at] + SLACK), NOBODY)


def admit(
    wishes: Wishes,
    *,
    home: NDArray[np.int64],
    load: NDArray[np.float64],
    cap: NDArray[np.float64],
    brings: NDArray[np.float64],
    most: int,
    margin_ms: float,
) -> NDArray[np.int64]:
    """Return which wish of each user comes true, int64[users]: a place in its choices, or NOBODY for being at home.

    The greatest savings come first; one that is in force is ahead by the margin, and of equal ones without any margin. A wish is
    granted where the load afterwards is within the cap; otherwise the next choice is looked at.

    Parameters
    ----------
    wishes
        By user.
    home
        int64[users], NOBODY for nowhere.
    load
        float64[instances], without any override.
    cap
        float64[instances].
    brings
        float64[users], load that moves along with each user.
    most
        Greatest number of wishes to grant.
    margin_ms
        As in `weigh`.
    """
    granted = np.full(len(home), NOBODY, dtype=np.int64)
    asking = np.flatnonzero(wishes.choices[:, 0] != NOBODY)
    urgency = wishes.saved_ms[asking, 0] + margin_ms * wishes.kept[asking]
    asking = asking[np.lexsort((~wishes.kept[asking], -urgency))]
    now, limit, left = load.tolist(), (cap + SLACK).tolist(), most
    columns = (asking.tolist(), wishes.choices[asking].tolist(), home[asking].tolist(), brings[asking].tolist())
    for user, choices, at_home, more in zip(*columns, strict=True):
        if left <= 0:
            break
        for place, at in enumerate(choices):
            if at != NOBODY and now[at] + more <= limit[at]:
                granted[user] = place
                now[at] += more
                if at_home != NOBODY:
                    now[at_home] -= more
                left -= 1
                break
    return granted
