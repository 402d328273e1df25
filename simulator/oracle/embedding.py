"""The EMB cache of a fleet's instances over time, at every split.

Routing by users deals every law out to all instances alike, so a few of them stand for all: how many rows they look up under
which law, and when, is the clock by which the miss ratios of a log run.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.oracle.rows import miss_ratios
from simulator.oracle.windows import Group, Lane, lanes_of, steps_of
from simulator.request_log import RequestLog

STEPS_PER_WINDOW = 3
STEPS_OF_DRIFT = 12
SAMPLED_INSTANCES = 4


def with_miss_ratios(group: Group, log: RequestLog) -> Group:
    """Return a group with miss ratios: one step for a log of one still law, a few where it drifts, else three a window.

    Time is counted in rows looked up at the middle split; other splits look up a little more or less.
    """
    grid = group.grid
    used = np.flatnonzero(np.bincount(log.law, minlength=len(log.laws)))
    steps = 1
    if len(used) > 1:
        steps = grid.windows * STEPS_PER_WINDOW
    elif log.laws[used[0]].drift_percent_per_hour > 0.0:
        steps = min(grid.windows, STEPS_OF_DRIFT)
    edges: NDArray[np.float64] = grid.start_ms + np.arange(steps + 1, dtype=np.float64) * (grid.windows * grid.window_ms / steps)
    asked = np.zeros((steps, len(log.laws)))
    sampled = [requests for requests in group.requests if len(requests.arrival_ms)][:SAMPLED_INSTANCES]
    for requests in sampled:
        rows = _rows_at(tuple(lanes_of(group, requests)), grid.splits // 2)
        np.add.at(asked, (steps_of(requests.arrival_ms, edges), requests.law), rows / len(sampled))
    before = np.zeros(len(log.laws))
    before[log.law[0]] = 1.0
    capacity = (grid.emb_bytes // group.config.service.row_bytes).astype(np.float64)
    miss = miss_ratios(log.laws, edge_ms=edges, asked=asked, capacity_rows=capacity, before=before)
    return replace(group, step_edges_ms=edges, miss=miss)


def middle_miss_ratio(log: RequestLog, capacity_rows: float) -> float:
    """Return the miss ratio of one capacity under the log's mix of laws, by which loading and computing are compared."""
    shares = np.bincount(log.law, minlength=len(log.laws)) / len(log)
    still = [replace(law, drift_percent_per_hour=0.0) for law in log.laws]
    ratios = miss_ratios(
        still, edge_ms=np.array([0.0, 1.0]), asked=shares[None, :], capacity_rows=np.array([capacity_rows]), before=shares
    )
    return float(ratios[0, :, 0] @ shares)


def _rows_at(lanes: tuple[Lane, ...], split: int) -> NDArray[np.float64]:
    """Return the rows that each request looks up at one split."""
    lane = next(lane for lane in lanes if lane.start <= split < lane.stop)
    place = (lane.found <= split - lane.start).sum(axis=0)
    out: NDArray[np.float64] = lane.rows[place, np.arange(lane.rows.shape[1])]
    return out
