"""The fleet that the simulator benchmark runs: its log, its figures per level, each measured in a process of its own.

A million users of unequal activity with lognormal histories, Poisson arrivals, ten million rows under a Zipf law: about 2 800
rows a request. Everything is generated, so that the size can be chosen; the KV caches start in the steady state of the users'
activity.
"""

import resource
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.engine import ItemPopularity, ModelIdentity, RankRequest, Sampling
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.core.physics import ServiceModel
from simulator.fleet.build import WarmUsers, constants_of, instance_of, placed, requests_of
from simulator.fleet.config import FleetConfig, Level
from simulator.fleet.kernel import serve
from simulator.fleet.laws import law_tables
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate
from simulator.fleet.service import fleet_floats
from simulator.replay import even_slots
from simulator.request_log import RequestLog, RowLaw

#: An A100 (170 TFLOP/s effective, 24.8 GB/s of link) with a 4 x 512 model and rows of 512 bytes: docs/physics.md.
SERVICE = ServiceModel(
    layers=4,
    width=512,
    flops_per_second=170e12,
    row_bytes=512,
    link_bytes_per_second=24_800_000_000,
    gather_efficiency=0.55,
    gather_fixed_ms=0.05,
    base_ms=0.1,
)
POOL_BYTES = 12 << 30
EMB_PERCENT = 10
ROWS = 10_000_000
EXPONENT = 0.95
PER_INSTANCE_AND_SECOND = 2300.0
DRIFTING_PER_SECOND = 50.0
CANDIDATES = 200
ROWS_PER_TOKEN = 3
USERS_PER_INSTANCE = 31_250


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: instances, requests of the speed figures and their repetitions, requests compared with exact."""

    instances: int
    requests: int
    runs: int
    compared_instances: int
    compared: int
    drifting: int
    core: int


def a_log(
    requests: int,
    *,
    instances: int,
    seed: int,
    drift_percent_per_hour: float = 0.0,
    per_instance_and_second: float = PER_INSTANCE_AND_SECOND,
) -> tuple[RequestLog, WarmUsers]:
    """Return requests and the users that are cached before the first of them."""
    random = np.random.default_rng(seed)
    users = USERS_PER_INSTANCE * instances
    activity = random.lognormal(0.0, 1.2, users)
    activity /= activity.sum()
    history = np.clip(random.lognormal(6.6, 0.6, users), 64, 8192).astype(np.int32)
    edges = np.cumsum(activity)
    user = np.searchsorted(edges, random.random(requests) * edges[-1]).astype(np.uint32)
    ages = random.exponential(size=users) / activity
    oldest_first = np.argsort(-ages).astype(np.uint32)
    law = RowLaw(exponent=EXPONENT, catalog_rows=ROWS, drift_percent_per_hour=drift_percent_per_hour)
    log = RequestLog(
        arrival_ms=np.cumsum(random.exponential(1000.0 / (per_instance_and_second * instances), requests)),
        user=user,
        history_tokens=history[user],
        candidates=np.full(requests, CANDIDATES, dtype=np.int32),
        signal_lead_ms=np.zeros(requests, dtype=np.float32),
        law=np.zeros(requests, dtype=np.uint8),
        user_slots=random.integers(0, 4096, users).astype(np.uint16),
        laws=(law,),
        rows_per_token=ROWS_PER_TOKEN,
    )
    return log, WarmUsers(user=oldest_first, tokens=history[oldest_first])


def a_fleet(instances: int) -> FleetConfig:
    return FleetConfig(instances=instances, pool_bytes=POOL_BYTES, emb_percent=EMB_PERCENT, service=SERVICE, slo_ms=5.0)


def speed(level: Level, size: Size, seed: int) -> dict[str, Any]:
    """Return requests per second of processor time, whole and in the serving loop alone, memory and digests of one level."""
    log, warm = a_log(size.requests, instances=size.instances, seed=seed)
    fleet = a_fleet(size.instances)
    simulate(log.rows(0, 2000), fleet, level=level, seed=seed, warm=warm)  # compiled, or loaded from the cache
    whole, digests = [], set()
    for _ in range(size.runs):
        started = time.process_time()
        result = simulate(log, fleet, level=level, seed=seed, warm=warm)
        whole.append(size.requests / (time.process_time() - started))
        digests.add(result.digest)
    rows = float(result.rows_asked.mean())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    del result
    loop = [_loop(log, fleet, warm, level, seed) for _ in range(size.runs)]
    return {"whole": whole, "loop": loop, "mib": peak_mib, "digests": len(digests), "rows": rows}


def _loop(log: RequestLog, config: FleetConfig, warm: WarmUsers, level: Level, seed: int) -> float:
    """Return requests per second of processor time in the serving loop, everything around it left out."""
    placement = placed(log, even_slots(config.instances), instances=config.instances, warm=warm)
    tables, requests = law_tables(log.laws, level, head=True), requests_of(log, placement)
    fleet, physics = constants_of(config, log, tables, level, seen_one_in=None), fleet_floats(config)
    spent = 0.0
    for number in range(config.instances):
        i = instance_of(number, config=config, requests=requests, placement=placement, tables=tables, fleet=fleet, seed=seed)
        started = time.process_time()
        serve(0, len(i.requests.user), i.requests, physics, fleet, i.ints, i.floats, i.users, i.rows, tables.laws, i.seed)
        spent += time.process_time() - started
    return len(log) / spent


def in_processes(size: Size, seed: int, workers: int) -> dict[str, Any]:
    """Return processor seconds on the longest way, of one process and of several at one row in 64, and the number of digests.

    The way of several is what the parent does, and an equal share of what its children do, who get as many instances each.
    Unlike the wall it says the same on a machine whose other cores are busy.
    """
    log, warm = a_log(size.requests, instances=size.instances, seed=seed)
    fleet, digests = a_fleet(size.instances), set()
    spent: dict[int, list[float]] = {1: [], workers: []}
    simulate(log.rows(0, 2000), fleet, level=Level.SAMPLED_64, seed=seed, warm=warm)
    for _ in range(size.runs):
        for count, seconds in spent.items():
            parent, children = time.process_time(), _children_seconds()
            result = simulate(log, fleet, level=Level.SAMPLED_64, seed=seed, warm=warm, workers=count)
            seconds.append(time.process_time() - parent + (_children_seconds() - children) / count)
            digests.add(result.digest)
    return {"one": spent[1], "several": spent[workers], "digests": len(digests)}


def _children_seconds() -> float:
    """Return the processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compared(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """Return the figures of each level on one log, and of the exact level with another seed (`again`)."""
    log, warm = a_log(size.compared, instances=size.compared_instances, seed=seed)
    fleet = a_fleet(size.compared_instances)
    found = {}
    for level in Level:
        started = time.process_time()
        found[level.value] = figures(simulate(log, fleet, level=level, seed=seed, warm=warm))
        found[level.value]["perSecond"] = len(log) / (time.process_time() - started)
    found["again"] = figures(simulate(log, fleet, level=Level.EXACT, seed=seed + 1, warm=warm))
    return found


def drifting(size: Size, seed: int, percent_per_hour: float) -> dict[str, dict[str, float]]:
    """Return the figures of each level on a catalogue whose head changes fast, and of a still one (`still`).

    Few requests a second, or their rows would be asked for again long before they are replaced.
    """
    pace: dict[str, Any] = {"instances": 1, "seed": seed, "per_instance_and_second": DRIFTING_PER_SECOND}
    log, warm = a_log(size.drifting, drift_percent_per_hour=percent_per_hour, **pace)
    found = {level.value: figures(simulate(log, a_fleet(1), level=level, seed=seed, warm=warm)) for level in Level}
    still, _ = a_log(size.drifting, **pace)
    found["still"] = figures(simulate(still, a_fleet(1), level=Level.REDUCED, seed=seed, warm=warm))
    return found


def figures(result: FleetResult) -> dict[str, float]:
    """Return hit ratio of rows, latency percentiles and utilisation."""
    p50, p99, p999 = np.percentile(result.latency_ms, [50.0, 99.0, 99.9])
    hit = 1.0 - float(result.rows_missed.sum()) / float(result.rows_asked.sum())
    return {"hit": hit, "p50": float(p50), "p99": float(p99), "p999": float(p999), "load": result.utilisation_percent() or 0.0}


def core_speed(size: Size, seed: int) -> float:
    """Return requests per second of the Python model of one instance, one row in 64 simulated, which is the baseline."""
    log, _ = a_log(size.core, instances=1, seed=seed)
    law = ItemPopularity(exponent=EXPONENT, catalog_rows=ROWS)
    config = InstanceConfig(
        pool_bytes=POOL_BYTES,
        emb_percent=EMB_PERCENT,
        model=ModelIdentity(name="m", version="1", emb_version="1"),
        service=SERVICE,
        popularity=law,
        sampling=Sampling(users_one_in=1, rows_one_in=64),
    )
    core = GRInstanceCore(config, seed)
    core.warm()
    requests = [
        RankRequest(
            request_id=f"r{place}",
            user_key=f"{int(log.user[place]):032x}",
            model_version="1",
            history_tokens=int(log.history_tokens[place]),
            candidates=CANDIDATES,
            rows_per_token=ROWS_PER_TOKEN,
            arrival_ms=float(log.arrival_ms[place]),
            item_popularity=law,
        )
        for place in range(size.core)
    ]
    started = time.process_time()
    for request in requests:
        core.rank(request, request.arrival_ms or 0.0)
    return size.core / (time.process_time() - started)
