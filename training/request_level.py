"""The second evaluation: recorded requests through the fleet simulator, decided as agents decide, with and without the model.

Only the validation part of the recordings is used; the test part stays for the evidence. Differences of some percent between two
runs are chance here, so several seeds are shown and no winner is named.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from policies.allocation.model_file import TrainedModel
from policies.allocation.types import AllocationIntent, Learned, Strategy
from simulator.core.physics import ServiceModel
from simulator.fleet.allocation import AgentSplit, UserCurves
from simulator.fleet.config import FleetConfig, Level
from simulator.fleet.run import simulate
from simulator.traces.reading import TraceError
from simulator.workloads.parts import Part
from simulator.workloads.regimes import burst, steady, trend
from simulator.workloads.traffic import Traffic
from training.report import Table

SEEDS = (1, 2, 3)
INSTANCES = 4
SECONDS = 300.0
START_UP_S = 100.0
"""Estimates count as ripe after a minute; then the split has to get from 50 to where it belongs."""
PER_INSTANCE = 60.0
POOL_BYTES = 16 << 30
SLO_MS = 100.0
_REGIMES = {"Steady": steady, "Trend": trend, "Burst": burst}
#: A small HSTU on a slow device behind a slow link: about half busy at 60 requests a second, and both caches matter to it.
SERVICE = ServiceModel(
    layers=2,
    width=256,
    flops_per_second=12e12,
    row_bytes=512,
    link_bytes_per_second=4_000_000_000,
    gather_efficiency=0.55,
    gather_fixed_ms=0.05,
    base_ms=0.1,
)


@dataclass(frozen=True)
class Seen:
    """Result of one run."""

    p99_ms: float
    goals: dict[str, int]


def request_table(
    model: TrainedModel, *, seeds: Sequence[int] = SEEDS, progress: Callable[[str], None] = lambda what: None
) -> Table | None:
    """Return the table, or None where the recordings are not there."""
    intents = {
        "static 50": AllocationIntent(strategy=Strategy.STATIC),
        "anchor": AllocationIntent(strategy=Strategy.MISS_RATIO_CURVE),
        "model, guarded": AllocationIntent(strategy=Strategy.LEARNED, learned=Learned(model_sha256=model.sha256)),
    }
    rows = []
    for regime in _REGIMES:
        progress(f"request level: {regime}")
        try:
            runs = {name: [_run(regime, intent, model, seed) for seed in seeds] for name, intent in intents.items()}
        except (TraceError, FileNotFoundError):
            return None
        answered: dict[str, int] = {}
        for run in runs["model, guarded"]:
            for reason, count in run.goals.items():
                answered[reason] = answered.get(reason, 0) + count
        total = max(sum(answered.values()), 1)
        told = ", ".join(
            f"{reason} {100 * count / total:.0f} %" for reason, count in sorted(answered.items(), key=lambda x: -x[1])[:3]
        )
        rows.append((regime, *(_spread([run.p99_ms for run in each]) for each in runs.values()), told))
    return Table(
        "Request level",
        f"P99 in ms over {INSTANCES} instances, {SECONDS:g} s of recorded arrivals and users (part `validation`), the first "
        f"{START_UP_S:g} s left out; mean and each of {len(seeds)} seeds. Last: the reasons of the guarded model's decisions.",
        ("regime", *intents, "reasons"),
        tuple(rows),
    )


def _run(regime: str, intent: AllocationIntent, model: TrainedModel, seed: int) -> Seen:
    traffic = Traffic(
        seed=seed,
        duration_s=SECONDS,
        requests_per_second=PER_INSTANCE * INSTANCES,
        instances=INSTANCES,
        part=Part.VALIDATION,
    )
    log, _ = _REGIMES[regime](traffic)
    config = FleetConfig(instances=INSTANCES, pool_bytes=POOL_BYTES, emb_percent=50, service=SERVICE, slo_ms=SLO_MS)
    split = AgentSplit(intent, model=model, users=UserCurves())
    result = simulate(log, config, level=Level.SAMPLED, split=split, seed=seed, measured_from_ms=START_UP_S * 1000.0)
    return Seen(p99_ms=float(np.percentile(result.latency_ms[result.measured], 99.0)), goals=dict(split.reasons))


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f} ({', '.join(f'{v:.1f}' for v in values)})"
