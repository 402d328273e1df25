"""What one pass says about single requests, to be compared with a replay at that split."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.fleet.build import WarmUsers
from simulator.fleet.config import FleetConfig
from simulator.oracle.costs import HBM, NOWHERE
from simulator.oracle.run import grid_of, groups_of
from simulator.oracle.windows import lanes_of
from simulator.replay import even_slots
from simulator.request_log import RequestLog


def users_found(
    log: RequestLog, config: FleetConfig, *, splits: Sequence[int], warm: WarmUsers | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return whether each request finds its user in HBM at each split, and the rows that it then looks up.

    Without tiers below HBM, and with slots dealt out in turn.

    Returns
    -------
    found, rows : shape (splits, requests)
    """
    slots = np.asarray(even_slots(config.instances))
    grid = grid_of(log, config, window_ms=float(log.arrival_ms[-1]) + 1.0, splits=splits)
    (group,) = groups_of(log, config, grid, slots=slots, seed=0, warm=warm, workers=1)
    owner = slots[log.user_slots[log.user]]
    found = np.zeros((len(splits), len(log)), dtype=np.bool_)
    rows = np.zeros((len(splits), len(log)), dtype=np.int64)
    for requests in group.requests:
        mine = np.flatnonzero(owner == requests.instance)
        for lane in lanes_of(group, requests):
            for split in range(lane.start, lane.stop):
                here = lane.found[HBM] > split - lane.start
                found[split, mine] = here
                rows[split, mine] = np.where(here, lane.rows[HBM], lane.rows[NOWHERE])
    return found, rows
