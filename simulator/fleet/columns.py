"""Requests between the order of the log and that of the instances, one behind the other, in one compiled pass each way.

Both passes walk the log in order and as many streams as there are instances, so that every cache line is fetched once.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet.state import Requests


@lean
def gather(
    next_place: NDArray[np.int64],
    instance: NDArray[np.uint16],
    local_user: NDArray[np.int32],
    arrival_ms: NDArray[np.float64],
    user: NDArray[np.uint32],
    history: NDArray[np.int32],
    candidates: NDArray[np.int32],
    law: NDArray[np.uint8],
    into: Requests,
) -> None:
    """Copy what the log says of each request to the next place of its instance."""
    for job in range(len(instance)):
        place = next_place[instance[job]]
        next_place[instance[job]] = place + 1
        into.arrival_ms[place] = arrival_ms[job]
        into.user[place] = local_user[user[job]]
        into.history[place] = history[job]
        into.candidates[place] = candidates[job]
        into.law[place] = law[job]


@lean
def scatter(
    next_place: NDArray[np.int64],
    instance: NDArray[np.uint16],
    requests: Requests,
    latency_ms: NDArray[np.float64],
    service_ms: NDArray[np.float64],
    kv_hit: NDArray[np.int32],
    rows_asked: NDArray[np.int32],
    rows_missed: NDArray[np.int32],
) -> None:
    """Copy the outcome of each request to its place in the log."""
    for job in range(len(instance)):
        place = next_place[instance[job]]
        next_place[instance[job]] = place + 1
        latency_ms[job] = requests.latency_ms[place]
        service_ms[job] = requests.service_ms[place]
        kv_hit[job] = requests.kv_hit[place]
        rows_asked[job] = requests.rows_asked[place]
        rows_missed[job] = requests.rows_missed[place]


@lean
def scatter_lower(
    next_place: NDArray[np.int64],
    instance: NDArray[np.uint16],
    requests: Requests,
    host_hit: NDArray[np.int32],
    ssd_hit: NDArray[np.int32],
) -> None:
    """Copy what the tiers below HBM held to the requests' places in the log."""
    for job in range(len(instance)):
        place = next_place[instance[job]]
        next_place[instance[job]] = place + 1
        host_hit[job] = requests.host_hit[place]
        ssd_hit[job] = requests.ssd_hit[place]
