"""One rehearsal: a policy and its baseline over the same requests, side by side, and whether to believe the figures."""

import hashlib
import math
import platform
from dataclasses import dataclass, replace
from importlib import metadata

from crds.routing_policy import RoutingPolicySpec
from grfleet.simulate import schema
from grfleet.simulate.bars import Bars
from grfleet.simulate.choice import Choice
from grfleet.simulate.errors import BadInput
from grfleet.simulate.figures import difference_of, figures_of, histogram_edges_ms
from grfleet.simulate.predicted import Foretold, doubt_of
from grfleet.simulate.replayed import Replayed
from grfleet.simulate.served import Router, Served, router_of
from grfleet.simulate.signals import Ahead, ahead_of
from grfleet.simulate.translate import Fleet, refill_percent
from grfleet.simulate.wanted import Wanted
from simulator.fleet.allocation import AgentSplit
from simulator.fleet.config import FleetConfig, Level
from simulator.fleet.policies import FixedSplit
from simulator.fleet.processes import ProcessLost
from simulator.fleet.result import REQUESTS_FOR_P99, FleetResult
from simulator.fleet.routing import Life
from simulator.fleet.run import simulate
from simulator.request_log import RequestLog

NOTHING_SAID = Served()
PROBED_PERCENTS = (5, 20, 35, 50, 65, 80, 95)
FULL_PERCENT = 100.0
_SAME = "policy and baseline are the same ({}), so nothing is compared; name another one with --policy or --baseline"
TRUE_CURVE = "level reduced: agents are told the true curve of the rows, which is better than any agent knows it"


def rehearse(
    wanted: Wanted,
    fleet: Fleet,
    choice: Choice,
    beside: Choice,
    replayed: Replayed,
    *,
    level: Level,
    seed: int,
    measured_from_ms: float,
    workers: int,
    bars: Bars,
    served: Served = NOTHING_SAID,
) -> schema.Simulated:
    """Return the content of `result.json`: a policy beside its baseline.

    Parameters
    ----------
    beside : Choice
        The baseline.
    measured_from_ms : float
        Requests before it warm the caches and are not counted.
    workers : int
        Processes, where neither run decides anything on the way.
    served : Served
        What the command line says of serving.

    Raises
    ------
    BadInput
        When the log cannot be decided over, or a process was lost.
    """
    log = replayed.log
    ahead = ahead_of(wanted, fleet, log)
    fleet = served.applied(ahead.reserved(fleet, wanted), wanted.routing)
    router = router_of(served, fleet, log, policy=wanted.routing, seed=seed, ahead=ahead.rules is not None)
    both = _Both(
        log=log,
        fleet=fleet,
        router=router,
        ahead=ahead,
        level=level,
        seed=seed,
        measured_from_ms=measured_from_ms,
        workers=workers,
        watched_ms=min((each.spec.step.interval_ms for each in (choice, beside) if not each.holds), default=None),
        good_percent=float(wanted.pool.spec.slo.good_percent),
        bars=bars,
    )
    same = _equal(choice, beside)
    result, figures = both.run(choice)
    baseline, base = (result, figures) if same else both.run(beside)
    reasons, more_doubts = _reasons_for_distrust(log, fleet.config, router, figures, seed=seed, bars=bars)
    foretold = [
        doubt_of(each.prediction, policy=chosen.name, utilisation_percent=each.utilisation_percent)
        for chosen, each in (((choice, figures),) if same else ((choice, figures), (beside, base)))
    ]
    others = (f"baseline: {doubt}" for doubt in baseline.doubts if doubt not in result.doubts)
    return schema.Simulated(
        schema_version=schema.SCHEMA_VERSION,
        command="simulate",
        digest=hashlib.sha256(f"{figures.digest} {base.digest}".encode()).hexdigest(),
        trusted=not reasons,
        not_trusted_because=reasons,
        doubts=[
            *([_SAME.format(choice.name)] if same else []),
            *result.doubts,
            *more_doubts,
            *(each for each in foretold if each is not None),
            *others,
            *replayed.doubts,
        ],
        assumptions=[
            *fleet.assumptions,
            ahead.note,
            *replayed.assumptions,
            *([TRUE_CURVE] if level is Level.REDUCED and not (choice.holds and beside.holds) else []),
            *choice.notes,
            *wanted.notes,
        ],
        versions=versions(),
        seed=seed,
        level=level.value,
        trace=trace_of(replayed),
        pool=pool_of(wanted, fleet),
        policy=_policy_of(choice, fleet),
        pre_inference=_pre_inference_of(ahead),
        load_behind_percent=fleet.config.load_behind_percent,
        batching=_batching_of(fleet.config),
        offload_queue_bytes=fleet.config.offload_queue_bytes,
        ttl_ms=fleet.config.ttl_ms,
        emb_version_ms=fleet.config.emb_version_ms,
        max_emb_lag=fleet.config.max_emb_lag,
        routing=_routing_of(router),
        lives=_lives_of(router),
        measured_from_ms=round(measured_from_ms, 3),
        histogram_edges_ms=histogram_edges_ms().tolist(),
        run=figures,
        baseline_policy=_policy_of(beside, fleet),
        baseline=base,
        difference=difference_of(figures, base),
    )


@dataclass(frozen=True, kw_only=True)
class _Both:
    """What the run of a policy and that of its baseline have in common.

    `watched_ms` is the shortest interval at which either of them decides, None where both hold: a fleet that is watched draws its
    rows from samples alone, so both runs must be, or the difference is one of models.
    """

    log: RequestLog
    fleet: Fleet
    router: Router
    ahead: Ahead
    level: Level
    seed: int
    measured_from_ms: float
    workers: int
    watched_ms: float | None
    good_percent: float
    bars: Bars

    def run(self, chosen: Choice) -> tuple[FleetResult, schema.Figures]:
        """Simulate the fleet under a policy."""
        agents = (
            None if chosen.holds else Foretold(AgentSplit(chosen.intent(), model=chosen.model), from_ms=self.measured_from_ms)
        )
        held = FixedSplit(interval_ms=float(self.watched_ms)) if self.watched_ms is not None else None
        config = _config(self.fleet, chosen)
        try:
            made = simulate(
                self.log,
                config,
                level=self.level,
                split=agents or held,
                routing=self.router.routing(config),
                lives=self.router.lives,
                seed=self.seed,
                measured_from_ms=self.measured_from_ms,
                pre_infer=self.ahead.rules,
                workers=self.workers,
                progress=self.bars(chosen.name),
            )
        except ProcessLost as error:
            raise BadInput("--workers", str(error), then="fewer processes need less memory") from None
        except ValueError as error:
            sparse = str(error).startswith("window_ms: ")  # so long a log that its decisions cannot be counted
            then = "replay a part of the log, or let step.intervalMs be longer" if sparse else ""
            raise BadInput("--trace", str(error), then=then) from None
        reasons = agents.agents.reasons if agents is not None else {}
        foretold = agents.beside(made) if agents is not None else None
        figures = figures_of(made, names=self.fleet.names, decisions=reasons, prediction=foretold, good_percent=self.good_percent)
        return made, figures


def _config(fleet: Fleet, choice: Choice) -> FleetConfig:
    """The fleet as a policy has it: its first split, and its cap of the refill."""
    refill, _ = refill_percent(choice.spec.refill, fleet.accelerator)
    return replace(fleet.config, emb_percent=choice.first_percent, refill_link_percent=refill)


def _equal(one: Choice, other: Choice) -> bool:
    """Whether two policies do the same; the guards of one that holds have no effect."""
    if one.holds and other.holds:
        return one.first_percent == other.first_percent
    return one.holds == other.holds and (one.strategy, one.spec) == (other.strategy, other.spec)


def versions() -> schema.Versions:
    """Return what the figures may depend on."""
    return schema.Versions(
        grfleet=metadata.version("grfleet"),
        python=platform.python_version(),
        numpy=metadata.version("numpy"),
        numba=metadata.version("numba"),
    )


def trace_of(replayed: Replayed) -> schema.Trace:
    """Return what was replayed."""
    log = replayed.log
    seconds = log.duration_ms / 1e3
    return schema.Trace(
        name=replayed.name,
        digest=log.digest,
        requests=len(log),
        users=log.users,
        duration_ms=round(log.duration_ms, 3),
        requests_per_second=round(len(log) / seconds, 3) if seconds > 0.0 else 0.0,
        manifest=replayed.manifest,
    )


def pool_of(wanted: Wanted, fleet: Fleet) -> schema.Pool:
    """Return the fleet as it was simulated."""
    config, shape, spec = fleet.config, fleet.shape, wanted.pool.spec
    return schema.Pool(
        name=wanted.pool.metadata.name,
        instances=config.instances,
        pool_bytes=config.pool_bytes,
        host_bytes=config.host_bytes,
        ssd_bytes=config.ssd_bytes,
        granule_bytes=config.granule_bytes,
        page_tokens=config.page_tokens,
        kv_bytes_per_token=config.service.kv_bytes_per_token,
        emb_row_bytes=config.service.row_bytes,
        max_history_tokens=spec.model.max_history_tokens,
        slo_ms=config.slo_ms,
        good_percent=float(spec.slo.good_percent),
        accelerator=fleet.accelerator.name,
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        head_dim=shape.head_dim,
    )


def _policy_of(choice: Choice, fleet: Fleet) -> schema.Policy:
    spec = choice.spec
    return schema.Policy(
        name=choice.name,
        strategy=choice.strategy.value,
        source=choice.source,
        holds=choice.holds,
        first_emb_percent=choice.first_percent,
        min_emb_percent=spec.bounds.min_emb_percent,
        max_emb_percent=spec.bounds.max_emb_percent,
        fallback_emb_percent=spec.bounds.fallback_emb_percent,
        max_percent_per_second=spec.step.max_percent_per_second,
        deadband_percent=spec.step.deadband_percent,
        interval_ms=spec.step.interval_ms,
        refill_link_percent=refill_percent(spec.refill, fleet.accelerator)[0],
    )


def _pre_inference_of(ahead: Ahead) -> schema.PreInference | None:
    rules = ahead.rules
    if rules is None:
        return None
    return schema.PreInference(
        min_prefix_tokens=rules.min_prefix_tokens,
        budget_ms=rules.budget_ms,
        safety_percent=rules.safety_percent,
        prefix_bytes=rules.prefix_bytes,
        slots=rules.max_inflight,
        max_per_second=round(rules.max_per_second, 3),
        life_ms=rules.life_ms,
    )


def _batching_of(config: FleetConfig) -> schema.Batching | None:
    rules = config.batching
    return schema.Batching(max_requests=rules.max_requests, window_ms=rules.window_ms) if rules is not None else None


def _routing_of(router: Router) -> schema.Routing | None:
    if router.served.routing is None:
        return None
    spec = router.policy or RoutingPolicySpec()
    return schema.Routing(
        name=router.served.routing.value,
        max_moved_percent=spec.churn.max_moved_percent,
        window_seconds=spec.churn.window_seconds,
        warm_seconds=spec.warmup.max_seconds,
        warm_hit_percent=spec.warmup.hit_percent,
    )


def _lives_of(router: Router) -> list[schema.Life]:
    return [
        schema.Life(
            name=name,
            joins_ms=life.joins_ms,
            drains_ms=life.drains_ms if math.isfinite(life.drains_ms) else None,
            dies_ms=life.dies_ms if math.isfinite(life.dies_ms) else None,
            noticed_ms=life.noticed_ms,
        )
        for name, life in zip(router.fleet.names, router.lives or (), strict=False)
        if life != Life()
    ]


def _reasons_for_distrust(
    log: RequestLog, config: FleetConfig, router: Router, figures: schema.Figures, *, seed: int, bars: Bars
) -> tuple[list[str], list[str]]:
    """Why figures cannot be believed, and what else to know of an overload."""
    reasons, doubts = [], []
    if figures.requests < REQUESTS_FOR_P99:
        reasons.append(
            f"{figures.requests} requests are measured, too few for a P99: {REQUESTS_FOR_P99} are needed; replay a longer log, or"
            " leave less of it out with --warm-up"
        )
    load = figures.utilisation_percent
    ahead = 100.0 * figures.waste.pre_infer_busy_ms / max(log.duration_ms * config.instances, 1.0)
    if load is not None and load < FULL_PERCENT <= load + ahead:
        doubts.append(
            f"with pre-inferences instances are busy for {load + ahead:.0f} %: queues grow for as long as the log lasts"
        )
    if load is not None and load >= FULL_PERCENT:
        percent, least = least_busy(log, config, router, seed=seed, bars=bars)
        if least >= FULL_PERCENT:
            reasons.append(
                f"overload at every split: the load is {least:.0f} % of what the instances can do even at the best of"
                f" {len(PROBED_PERCENTS)} splits, so latencies say how long the log is; add instances, or replay less traffic"
            )
        else:
            doubts.append(f"overload is a matter of the split: a fixed one of {percent} % keeps instances busy for {least:.0f} %")
    return reasons, doubts


def least_busy(log: RequestLog, config: FleetConfig, router: Router, *, seed: int, bars: Bars) -> tuple[int, float]:
    """Return the fixed split with the lowest utilisation of some, at the reduced level, and that utilisation in percent."""
    progress, found = bars("is there a split that carries the load?"), []
    for place, percent in enumerate(PROBED_PERCENTS):
        probe = replace(config, emb_percent=percent)
        probed = simulate(log, probe, level=Level.REDUCED, routing=router.routing(probe), lives=router.lives, seed=seed)
        found.append((probed.utilisation_percent() or 0.0, percent))
        progress(place + 1, len(PROBED_PERCENTS))
    least, percent = min(found)
    return percent, least
