"""How many slots an instance needs so that few pre-inferences are refused: Erlang's loss formula.

An instance with c slots refuses what comes while all are busy and queues nothing, which is the M/G/c/c system. Its refused share
depends on the offered load alone (mean slots busy if there were enough), not on how long computations take or how they vary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def refused_share(offered: float, *, slots: int) -> float:
    """Return Erlang B: the share of arrivals that find all slots busy, 0..1, by the stable recursion over the slots."""
    share = 1.0
    for c in range(1, slots + 1):
        share = offered * share / (c + offered * share)
    return share if offered > 0.0 else 0.0


def fewest_slots(offered: Sequence[float], *, refused_percent: float, most: int) -> int:
    """Return the fewest slots, the same on every instance, that keep the refused share of the whole pool below a limit.

    Parameters
    ----------
    offered
        Offered load of each instance, in slots. A user belongs to one instance, so loads differ and do not help each other.
    refused_percent
        Share of all arrivals that may be refused.
    most
        Returned when even that many do not suffice.
    """
    loads = np.asarray(offered, dtype=np.float64)
    loads = loads[loads > 0.0]
    if loads.size == 0:
        return 0
    allowed = float(loads.sum()) * refused_percent / 100.0
    share = np.ones_like(loads)
    for slots in range(1, most + 1):
        share = loads * share / (slots + loads * share)
        if float((loads * share).sum()) <= allowed:
            return slots
    return most
