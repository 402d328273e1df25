"""What each term of the routing score is worth: routings over the same logs, one fleet in virtual time, with unequal splits.

Instances hold between a fifth and four fifths of their memory for EMB, so that neither users nor rows are equally at home
everywhere. All routings know the same at the same time and obey the same bound; the baseline of each figure is the joint score.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.oracle import SERVICE
from bench.report import Result, publish, summarise
from policies.routing.score import Costs, scores_ms
from policies.routing.types import Limits
from simulator.fleet.config import FleetConfig, Level
from simulator.fleet.policies import FleetObservation
from simulator.fleet.result import FleetResult
from simulator.fleet.routing import RoutingPolicy
from simulator.fleet.routings.choices import BoundedHash, LeastLoaded, RandomRouting, Scored, Terms
from simulator.fleet.routings.overrides import OverrideRouting
from simulator.fleet.routings.work import work_of
from simulator.fleet.run import simulate
from simulator.request_log import RequestLog, RowLaw
from simulator.workloads.generated import generated
from simulator.workloads.traffic import Traffic

INSTANCES = 8
PER_INSTANCE = 50.0
USERS = 4000
LEAST_EMB, MOST_EMB = 20, 80
JOINT = "joint"
COMPARED = ("random", "least loaded", "consistent hash with bound", "KV only", "EMB only", "load only")
LAW = RowLaw(exponent=0.9, catalog_rows=4_000_000)

#: The small HSTU of the oracle's benchmark on a device eight times slower, behind a link of 125 MB/s: busy for 57 % of the
#: time at 50 requests a second where half of the histories are found, and overrun where they are not.
SLOW = replace(SERVICE, flops_per_second=SERVICE.flops_per_second / 8, link_bytes_per_second=125_000_000)


class Figures(NamedTuple):
    """Of one routing and one log."""

    p99_ms: float
    mean_ms: float
    history_percent: float
    rows_percent: float


@dataclass
class UnequalSplits:
    """Gives the instances EMB shares between two bounds, evenly, at the first look, and holds them."""

    instances: int
    interval_ms: float = 5_000.0
    _done: bool = field(default=False, init=False)

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        if self._done:
            return [None] * len(observations)
        self._done = True
        percents = np.linspace(LEAST_EMB, MOST_EMB, self.instances)
        return [int(seen.pool_bytes * percents[seen.instance] / 100.0) for seen in observations]


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    seconds, seeds = (60.0, 1) if quick else (160.0, 3)
    results = [*ablation([_log(seconds, seed=seed + number) for number in range(seeds)], seed=seed), _speed(seed=seed)]
    publish(
        "routing-ablation",
        results,
        seed=seed,
        quick=quick,
        as_json=as_json,
        notes=(
            f"Virtual time: {INSTANCES} instances, EMB shares {LEAST_EMB} to {MOST_EMB} %, the first quarter left out; each run"
            " is a log of another seed. The baseline is joint in the same run: above 1, joint has the lower latency. Random,"
            " least loaded and load only find so little that the fleet falls behind: their latency grows with the log."
            " Baseline of the scores: user by user, with numpy."
        ),
    )


def _speed(*, seed: int) -> Result:
    """Score all users in one call, and user by user."""
    rng = np.random.default_rng(seed)
    shape = (100_000, 32)
    held = rng.random(shape) < 0.05

    def tokens() -> NDArray[np.float32]:
        return np.asarray(np.where(held, rng.integers(0, 2000, shape), 0), dtype=np.float32)

    hbm, host, ssd = tokens(), tokens(), tokens()
    history = (hbm + host + ssd).max(axis=1)
    token_ms, host_ms, ssd_ms, rows_ms, wait_ms = np.outer([20, 4, 10, 500, 2000], rng.random(shape[1])).astype(np.float32) / 1000
    costs = Costs(token_ms, host_ms, ssd_ms, rows_ms, wait_ms)

    def ns_a_pair(users: int, together: int) -> float:
        start = time.process_time()
        for at in range(0, users, together):
            part = slice(at, at + together)
            scores_ms(costs, history=history[part], hbm=hbm[part], host=host[part], ssd=ssd[part])
        return (time.process_time() - start) / users / shape[1] * 1e9

    alone = min(ns_a_pair(2_000, 1) for _ in range(3))
    at_once = [ns_a_pair(shape[0], shape[0]) for _ in range(5)]
    return summarise("100 000 users x 32 instances in one call, a pair", at_once, unit="ns", baseline=alone)


def _log(seconds: float, *, seed: int) -> RequestLog:
    traffic = Traffic(seed=seed, duration_s=seconds, requests_per_second=PER_INSTANCE * INSTANCES, instances=INSTANCES)
    return generated(traffic, users=USERS, law=LAW, think_median_s=8.0, history_median_tokens=2000.0, history_sigma=0.5)[0]


def ablation(logs: Sequence[RequestLog], *, seed: int) -> list[Result]:
    """Return P99 and mean latency of each routing over some logs, and how much of histories and rows it found in HBM."""
    config = FleetConfig(instances=INSTANCES, pool_bytes=1 << 30, emb_percent=50, service=SLOW, slo_ms=50.0)
    found: dict[str, list[Figures]] = {}
    for log in logs:
        for name, policy in _routings(log, config, seed=seed).items():
            found.setdefault(name, []).append(_figures(_served(log, config, policy, seed=seed)))
    joint = [median(column) for column in zip(*found[JOINT], strict=True)]
    out = []
    for name, runs in found.items():
        p99, mean, history, rows = zip(*runs, strict=True)
        compared = {"goal": joint[0], "at_least": True} if name in COMPARED else {}
        out += [
            summarise(f"{name}: P99", p99, unit="ms", baseline=joint[0], **compared),
            summarise(f"{name}: mean", mean, unit="ms", baseline=joint[1]),
            summarise(f"{name}: history found", history, unit="%", baseline=joint[2]),
            summarise(f"{name}: rows found", rows, unit="%", baseline=joint[3]),
        ]
    return out


def _routings(log: RequestLog, config: FleetConfig, *, seed: int) -> dict[str, RoutingPolicy]:
    work, users, instances = work_of(config, log), log.users, config.instances

    def scored(**terms: bool) -> Scored:
        return Scored(work, terms=Terms(**terms), users=users, instances=instances)

    return {
        "random": RandomRouting(work, users=users, instances=instances, seed=seed),
        "least loaded": LeastLoaded(work, users=users, instances=instances),
        "consistent hash with bound": BoundedHash(work, users=users, instances=instances),
        "KV only": scored(kv=True),
        "EMB only": scored(emb=True),
        "load only": scored(load=True),
        JOINT: scored(kv=True, emb=True, load=True),
        "slots alone, no bound": OverrideRouting(work, users=users, instances=instances, limits=Limits(most=0)),
        "slots and overrides": OverrideRouting(work, users=users, instances=instances),
    }


def _served(log: RequestLog, config: FleetConfig, policy: RoutingPolicy, *, seed: int) -> FleetResult:
    return simulate(
        log,
        config,
        level=Level.SAMPLED,
        split=UnequalSplits(config.instances),
        routing=policy,
        seed=seed,
        measured_from_ms=float(log.arrival_ms[0]) + log.duration_ms / 4.0,
    )


def _figures(result: FleetResult) -> Figures:
    part = result.measured
    latency = result.latency_ms[part]
    return Figures(
        p99_ms=float(np.percentile(latency, 99.0)),
        mean_ms=float(latency.mean()),
        history_percent=float(100.0 * result.kv_hit_tokens[part].sum() / result.log.history_tokens[part].sum()),
        rows_percent=float(100.0 * (1.0 - result.rows_missed[part].sum() / max(int(result.rows_asked[part].sum()), 1))),
    )
