"""Requests between the order of the log and that of an instance, in one compiled pass each way."""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.fleet.state import Requests


@lean
def gather(
    order: NDArray[np.int64],
    arrival_ms: NDArray[np.float64],
    user: NDArray[np.uint32],
    local_user: NDArray[np.int32],
    history: NDArray[np.int32],
    candidates: NDArray[np.int32],
    law: NDArray[np.uint8],
    into: Requests,
) -> None:
    """Copy what the log says of the requests in `order`."""
    for place in range(len(order)):
        job = order[place]
        into.arrival_ms[place] = arrival_ms[job]
        into.user[place] = local_user[user[job]]
        into.history[place] = history[job]
        into.candidates[place] = candidates[job]
        into.law[place] = law[job]


@lean
def scatter(
    order: NDArray[np.int64],
    requests: Requests,
    latency_ms: NDArray[np.float64],
    service_ms: NDArray[np.float64],
    kv_hit: NDArray[np.int32],
    rows_asked: NDArray[np.int32],
    rows_missed: NDArray[np.int32],
) -> None:
    """Copy the outcome of an instance's requests to their places in the log."""
    for place in range(len(order)):
        job = order[place]
        latency_ms[job] = requests.latency_ms[place]
        service_ms[job] = requests.service_ms[place]
        kv_hit[job] = requests.kv_hit[place]
        rows_asked[job] = requests.rows_asked[place]
        rows_missed[job] = requests.rows_missed[place]
