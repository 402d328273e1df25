"""Where the allocation study takes place: the fleet, its episodes, and the rules that fix load and objective beforehand.

The rules are code, applied to static splits and the oracle alone before anything adapts: an accelerator and a pool that were
chosen when the regimes were composed; the rate at which the best static split is 65 % busy; an objective of 1.25 times the
oracle's Steady P99. They are applied to each part of the recordings by itself, on logs whose seeds no episode has.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.core.physics import ServiceModel
from simulator.fleet.config import MIB, FleetConfig, RefillMode
from simulator.oracle.result import OracleResult
from simulator.oracle.run import best_splits
from simulator.replay import even_slots
from simulator.request_log import RequestLog, RowLaw
from simulator.workloads.manifest import Manifest
from simulator.workloads.parts import Part
from simulator.workloads.regimes import burst, steady, trend
from simulator.workloads.traffic import Traffic

#: Compute of an A100 (170 TFLOP/s effective) under a 2 x 1024 HSTU with rows of 4 KiB (1 024 x fp32) behind 20 GB/s of link, and
#: 48 GiB for the two caches: the accelerator for which the regimes were composed, by the oracle's splits alone (docs/traces.md).
ACCELERATOR = ServiceModel(
    layers=2,
    width=1024,
    flops_per_second=170e12,
    row_bytes=4096,
    link_bytes_per_second=20_000_000_000,
    gather_efficiency=0.3,
    gather_fixed_ms=0.05,
    base_ms=0.5,
)
POOL_BYTES = 48 << 30
GRANULE_BYTES = 64 * MIB
INSTANCES = 32
FEWER = (4, 8, 16)  # instances do not see each other: of a run of more, the first so many are a run of so many

WINDOW_S = 30.0  # below it, the oracle says, a P99 is mostly noise
START_UP_S = 90.0  # a minute until estimates are trusted, and half of one to get there
REGIMES: Mapping[str, Callable[[Traffic], tuple[RequestLog, Manifest]]] = {
    "steady": steady,
    "trend": partial(trend, begins_s=START_UP_S),
    "burst": burst,
}
#: Seconds, as many as the events need: none in Steady; in Burst two bursts come after the start; in Trend a crowd turns.
SECONDS = {"steady": 150.0, "trend": 330.0, "burst": 240.0}

LOAD_PERCENT = 65.0
LOAD_WITHIN = 0.25
SLO_FACTOR = 1.25
RULE_SEEDS = (900_001, 900_002)
RULED = 4  # instances that the rate is found on
_MOST_STEPS = 10
_FIRST_RATES = {"steady": 130.0, "trend": 160.0, "burst": 128.0}  # where the search begins


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A world made of Steady that training did not draw from: what it changes, and how busy the best static split is in it."""

    says: str
    exponent: float = 0.0
    drift: float = 1.0
    histories: float = 1.0
    candidates: float = 1.0
    load_percent: float = LOAD_PERCENT
    arrivals: str = "conversation"
    pool: float = 1.0
    link: float = 1.0
    flops: float = 1.0


SHIFTS: Mapping[str, Shift] = {
    "": Shift(says="as the regime is"),
    "flat-rows": Shift(says="Zipf exponent of rows 0.7 in place of 0.95", exponent=-0.25),
    "steep-rows": Shift(says="Zipf exponent of rows 1.2", exponent=0.25),
    "fast-drift": Shift(says="head of the catalogue replaced 50 times as fast", drift=50.0),
    "long-histories": Shift(says="histories 3 times as long", histories=3.0),
    "short-histories": Shift(says="histories a quarter as long", histories=0.25),
    "many-candidates": Shift(says="5 times the candidates", candidates=5.0),
    "high-load": Shift(says="best static split 82 % busy", load_percent=82.0),
    "low-load": Shift(says="best static split 30 % busy", load_percent=30.0),
    "bursty-arrivals": Shift(says="arrivals of the code trace, which come in clumps", arrivals="code"),
    "small-pool": Shift(says="a third of the pool", pool=1 / 3),
    "slow-link": Shift(says="a quarter of the link", link=0.25),
    "slow-compute": Shift(says="a third of the compute", flops=1 / 3),
}
_LONGEST = 49_152


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the rules gave for one part: requests a second and instance by (regime, shift), and the objective."""

    part: str
    rates: Mapping[str, float]
    busy_percent: Mapping[str, float]
    slo_ms: float

    def rate(self, regime: str, shift: str = "") -> float:
        return self.rates[_name(regime, shift)]


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One log through one fleet; everything that is drawn follows from it."""

    regime: str
    part: str
    seed: int
    rate: float
    slo_ms: float
    instances: int = INSTANCES
    refill: str = RefillMode.THROTTLED.value
    shift: str = ""
    noise: float = 0.0

    @property
    def seconds(self) -> float:
        return SECONDS[self.regime]

    @property
    def traffic(self) -> tuple[str, str, int, float, str]:
        """What its requests follow from."""
        return self.regime, self.part, self.seed, self.rate, self.shift

    def whole(self) -> tuple[RequestLog, Manifest]:
        """Return the requests of all instances of the fleet, and what of them is real."""
        shift = SHIFTS[self.shift]
        traffic = Traffic(
            seed=self.seed,
            duration_s=self.seconds,
            requests_per_second=self.rate * INSTANCES,
            instances=INSTANCES,
            part=Part(self.part),
            arrivals=shift.arrivals,
        )
        log, manifest = REGIMES[self.regime](traffic)
        return (log if self.shift == "" else shifted(log, shift)), manifest

    def fleet(self, *, emb_percent: int = 50) -> FleetConfig:
        """Return its fleet at a first split."""
        shift = SHIFTS[self.shift]
        service = replace(
            ACCELERATOR,
            link_bytes_per_second=round(ACCELERATOR.link_bytes_per_second * shift.link),
            flops_per_second=ACCELERATOR.flops_per_second * shift.flops,
        )
        return FleetConfig(
            instances=self.instances,
            pool_bytes=round(POOL_BYTES * shift.pool) // GRANULE_BYTES * GRANULE_BYTES,
            emb_percent=emb_percent,
            service=service,
            slo_ms=self.slo_ms,
            granule_bytes=GRANULE_BYTES,
            refill=RefillMode(self.refill),
        )

    def plain(self) -> dict[str, Any]:
        """Return all that it depends on."""
        return {**asdict(self), "seconds": self.seconds, "fleet": _plain(self.fleet()), "says": asdict(SHIFTS[self.shift])}


def of_some_instances(log: RequestLog, simulated: int) -> RequestLog:
    """Return the requests that reach the first instances of the fleet, in slots that go to them when there are no others."""
    owner = np.array(even_slots(INSTANCES))[log.user_slots]
    kept = owner[log.user] < simulated
    users, user = np.unique(log.user[kept], return_inverse=True)
    return RequestLog(
        arrival_ms=log.arrival_ms[kept],
        user=user.astype(np.uint32),
        history_tokens=log.history_tokens[kept],
        candidates=log.candidates[kept],
        signal_lead_ms=log.signal_lead_ms[kept],
        law=log.law[kept],
        user_slots=owner[users].astype(np.uint16),
        laws=log.laws,
        rows_per_token=log.rows_per_token,
    )


def shifted(log: RequestLog, shift: Shift) -> RequestLog:
    """Return a log with other laws, histories or candidates."""
    laws = tuple(_law(law, shift) for law in log.laws)
    history = np.clip(log.history_tokens * shift.histories, 1, _LONGEST).astype(np.int32)
    candidates = np.maximum(log.candidates * shift.candidates, 1).astype(np.int32)
    return replace(log, laws=laws, history_tokens=history, candidates=candidates)


def _law(law: RowLaw, shift: Shift) -> RowLaw:
    drift = law.drift_percent_per_hour * shift.drift
    return replace(law, exponent=law.exponent + shift.exponent, drift_percent_per_hour=drift)


def measured(found: OracleResult, start_up_s: float = START_UP_S) -> NDArray[np.bool_]:
    """Return which windows of the oracle count: after the start, and whole."""
    begins = found.start_ms + found.window_ms * np.arange(found.count.shape[1])
    whole: NDArray[np.bool_] = (begins >= 1000.0 * start_up_s) & (found.count.sum(axis=0) > 0)
    return whole


def static_place(found: OracleResult) -> int:
    """Return the place of the static split that is best in hindsight over the windows that count."""
    chosen = measured(found)
    weight = found.count.sum(axis=0)[chosen].astype(np.float64)
    return int(np.argmin(weight @ found.fleet_p99_ms[chosen]))


def look(log: RequestLog, episode: Episode) -> OracleResult:
    """Return what hindsight says about the requests of the episode's instances."""
    return best_splits(log, episode.fleet(), window_ms=1000.0 * WINDOW_S, seed=episode.seed)


def rate_by_rule(regime: str, part: str, shift: str = "") -> tuple[float, float, float]:
    """Return the rate at which the best static split is as busy as the rule wants, how busy it is, and the oracle's P99 there.

    Returns
    -------
    (requests a second and instance, percent, ms)
    """
    wanted = SHIFTS[shift].load_percent
    rate = _FIRST_RATES[regime]
    for _ in range(_MOST_STEPS):
        busy, planned_ms = _at_rate(regime, part, shift, rate)
        if abs(busy - wanted) <= LOAD_WITHIN:
            break
        rate = round(rate * min(max(wanted / busy, 0.25), 4.0), 2)
    return rate, busy, planned_ms


def _at_rate(regime: str, part: str, shift: str, rate: float) -> tuple[float, float]:
    busy, planned = [], []
    for seed in RULE_SEEDS[:1] if shift else RULE_SEEDS:
        episode = Episode(regime=regime, part=part, seed=seed, rate=rate, slo_ms=100.0, shift=shift)
        found = look(of_some_instances(episode.whole()[0], RULED), replace(episode, instances=RULED))
        chosen, place = measured(found), static_place(found)
        busy.append(float(found.utilisation_percent[:, chosen, place].mean()))
        places = np.where(found.fleet.planned >= 0, found.fleet.planned, found.fleet.static)
        weight = found.count.sum(axis=0)[chosen]
        planned.append(float(np.average(found.fleet_p99_ms[np.arange(len(places)), places][chosen], weights=weight)))
    return float(np.mean(busy)), float(np.mean(planned))


def rules_of(part: str, found: Mapping[str, tuple[float, float, float]]) -> Rules:
    """Return the rules' outcome from what `rate_by_rule` gave by name."""
    return Rules(
        part=part,
        rates={name: rate for name, (rate, _, _) in found.items()},
        busy_percent={name: round(busy, 2) for name, (_, busy, _) in found.items()},
        slo_ms=round(SLO_FACTOR * found["steady"][2], 2),
    )


def _name(regime: str, shift: str) -> str:
    return f"{regime}/{shift}" if shift else regime


def _plain(config: FleetConfig) -> dict[str, Any]:
    return {**asdict(config), "refill": config.refill.value}
