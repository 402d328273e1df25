"""What an agent beside an instance could have measured over one interval, read off the state of the simulation."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.allocation.estimator import mix64
from policies.allocation.types import Curve
from simulator.fleet import state
from simulator.fleet.build import SAMPLES_KEPT, Instance
from simulator.fleet.config import FleetConfig
from simulator.fleet.laws import LawTables
from simulator.fleet.policies import FleetObservation
from simulator.fleet.resize import emb_used_bytes, refill_backlog
from simulator.request_log import RequestLog

_CERTAIN_SAMPLES = 1e6
_CERTAIN_MS = 1e9


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What all observations of a run have in common."""

    log: RequestLog
    config: FleetConfig
    tables: LawTables
    fleet: NDArray[np.int64]


class Asked(NamedTuple):
    """Spread keys of the users and bytes of their histories, for every request of an instance in its order."""

    keys: NDArray[np.uint64]
    size_bytes: NDArray[np.float64]


def asked_of(watched: Watched, instance: Instance) -> Asked:
    """Return what all requests of an instance ask for, where they are known before the first is served."""
    return _asked(watched, instance, slice(None))


def _asked(watched: Watched, instance: Instance, places: slice) -> Asked:
    requests = instance.requests
    return Asked(
        keys=mix64(requests.user[places].astype(np.uint64) + np.uint64(1)),
        size_bytes=requests.history[places].astype(np.float64) * watched.config.service.kv_bytes_per_token,
    )


def observe(
    watched: Watched,
    instance: Instance,
    before: tuple[NDArray[np.int64], NDArray[np.float64]],
    places: slice,
    *,
    interval_ms: float,
    asked: Asked | None = None,
) -> FleetObservation:
    """Return the observation of one instance over the requests at `places` of its order, and forget the row samples.

    Parameters
    ----------
    before : copies of the instance's whole numbers and floats at the start of the interval
    asked : of all its requests, where known; it saves time
    """
    config, requests, fleet = watched.config, instance.requests, watched.fleet
    ints, floats = instance.ints, instance.floats
    more, more_ms = ints - before[0], floats - before[1]
    # Not a signal that came to nothing; where requests run together there are none, but some still wait.
    finished = requests.service_ms[places] > 0.0
    served = finished if config.batching is None else np.ones(len(finished), dtype=np.bool_)
    every = bool(served.all())
    latency_ms = requests.latency_ms[places] if bool(finished.all()) else requests.latency_ms[places][finished]
    users = _asked(watched, instance, places) if asked is None else Asked(asked.keys[places], asked.size_bytes[places])
    times_ms = requests.arrival_ms[places]
    simulated = fleet[state.MODE] != state.NO_ROWS
    samples = min(int(ints[state.SAMPLES]), SAMPLES_KEPT)
    rows = instance.rows
    seen = FleetObservation(
        instance=instance.number,
        interval_ms=interval_ms,
        pool_bytes=config.pool_bytes,
        granule_bytes=config.granule_bytes,
        link_bytes_per_second=config.service.link_bytes_per_second,
        emb_bytes=int(ints[state.EMB_LIMIT]),
        kv_bytes=int(ints[state.KV_LIMIT]),
        emb_used_bytes=int(emb_used_bytes(fleet, ints, floats, rows, watched.tables.laws)),
        kv_used_bytes=int(ints[state.KV_USED]),
        refill_backlog_bytes=_owed(watched, instance),
        requests=int(more[state.REQUESTS]),
        kv_tokens_asked=int(more[state.KV_ASKED]),
        kv_tokens_hit=int(more[state.KV_HIT] + more[state.LOWER_HIT]),
        emb_rows_asked=int(more[state.ROWS_ASKED]),
        emb_rows_missed=int(more[state.ROWS_MISSED]),
        demand_bytes=int(more[state.ROWS_MISSED]) * config.service.row_bytes,
        service_ms=float(more_ms[state.SERVICE_MS]),
        service_squared_ms2=float(more_ms[state.SERVICE_SQUARED]),
        emb_miss_ms=float(more_ms[state.EMB_MISS_MS]),
        kv_miss_ms=float(more_ms[state.KV_MISS_MS]),
        p99_ms=p99_of(latency_ms) if len(latency_ms) else None,
        rows_per_token=watched.log.rows_per_token,
        emb_row_bytes=config.service.row_bytes,
        kv_bytes_per_token=config.service.kv_bytes_per_token,
        rows_one_in=_rows_one_in(watched),
        user_keys=users.keys if every else users.keys[served],
        user_times_ms=times_ms if every else times_ms[served],
        user_bytes=users.size_bytes if every else users.size_bytes[served],
        row_keys=mix64(rows.sampled[:samples].astype(np.uint64) + np.uint64(1)),
        row_times_ms=rows.sampled_ms[:samples].copy(),
        row_samples_lost=int(ints[state.SAMPLES]) - samples,
        emb_curve=None if simulated else _curve(watched, instance),
    )
    ints[state.SAMPLES] = 0
    return seen


def p99_of(values: NDArray[np.float64]) -> float:
    """Return the 99th percentile as `numpy.percentile` does, to the last digit; of a few hundred in a tenth of the time."""
    place = 0.99 * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    ordered = np.partition(values, (below, above))
    low, high, share = float(ordered[below]), float(ordered[above]), place - below
    return high - (high - low) * (1.0 - share) if share >= 0.5 else low + (high - low) * share


def _rows_one_in(watched: Watched) -> int:
    shift = int(watched.fleet[state.RECORD_SHIFT])
    shown = 1 << (64 - shift) if shift else 1
    return max(1, int(watched.fleet[state.RECORD_ONE_IN])) * watched.tables.one_in * shown


def _owed(watched: Watched, instance: Instance) -> int:
    """Room fills by misses alone without a refill rate: then nothing is owed."""
    if not watched.config.refill_bytes_per_second:
        return 0
    return int(refill_backlog(watched.fleet, instance.ints, instance.floats, instance.rows, watched.tables.laws))


def _curve(watched: Watched, instance: Instance) -> Curve:
    """Return the miss-ratio curve of the law asked last: what an estimator would find after a long look at steady traffic."""
    laws = watched.tables.laws
    known = instance.rows.window_law[instance.rows.window_law >= 0]
    law = int(instance.ints[state.KNOWN_LAW]) if instance.ints[state.KNOWN_LAW] >= 0 else int(known[0])
    capacity = laws.rows[law] * watched.config.service.row_bytes
    return Curve(
        packed_capacity_bytes=np.maximum.accumulate(capacity).astype("<f8").tobytes(),
        packed_miss_ratio=np.minimum(laws.miss[law], 1.0).astype("<f8").tobytes(),
        samples=_CERTAIN_SAMPLES,
        age_ms=0.0,
        window_ms=_CERTAIN_MS,
        volatility=0.0,
        size_cv2=0.0,
    )
