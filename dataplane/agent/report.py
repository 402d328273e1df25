"""What a round comes to, in the words of the agent contract: verdict, decision record, status, gauges. Pure translation."""

from dataclasses import dataclass, field

import msgspec

from contract.agent import AgentStatus, DecisionRecord, EngineReport, ServingReport, SplitReport, Strategy
from contract.engine import Describe, LimitsRequest, Observe, SplitState
from dataplane.agent.drive import Driven
from dataplane.agent.intent import AcceptedIntent, usable_bytes
from dataplane.agent.metrics import AgentMetrics
from dataplane.agent.observe import NoReading, Reading
from dataplane.agent.reasons import MESSAGES, Hold
from dataplane.agent.window import Report
from policies.allocation.recovery import Phase
from policies.allocation.types import AllocationIntent, Decision, Enforcement, Layer, Reason

_DATA_FREEZES = frozenset({Reason.MISSING_DATA, Reason.STALE_DATA, Reason.NOT_A_NUMBER, Reason.SECOND_WRITER})
_ORDERS = frozenset({Reason.NO_INTENT, Reason.PAUSED})


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a round: its reason, whether something is wrong, and whether the split may be driven."""

    reason: str
    message: str
    frozen: bool
    may_drive: bool


@dataclass(kw_only=True)
class Known:
    """What the agent last learned of its engine and last concluded; written by the loop only."""

    describe: Describe | None = None
    split: SplitState | None = None
    observed: Observe | None = None
    cap_bytes: int | None = None
    limits: LimitsRequest | None = None
    draining: bool = False
    idle_seconds: float | None = None
    notes: str = ""
    models: tuple[str, ...] = ()
    model_in_force: str | None = None
    start_id: str = ""
    epoch: int = 0
    reachable: bool = False
    trouble: str = ""
    target_emb_bytes: int | None = None
    predicted_p99_ms: float | None = None
    goal_p99_ms: float | None = None
    forecaster: tuple[str, str | None] | None = None
    verdict: Verdict = field(
        default_factory=lambda: Verdict(reason="Starting", message="no round yet", frozen=False, may_drive=False)
    )

    @property
    def serving(self) -> ServingReport | None:
        """What capacity decisions need of the last trusted observation."""
        return serving_of(self.observed) if self.observed is not None else None


def verdict(reading: Reading | NoReading, decision: Decision, *, distrusted: NoReading | None, calm_left: int) -> Verdict:
    """Say what a round comes to.

    Faults of the reading come first, then the time after a fault, then orders to hold, then what the policy decided.
    """
    if isinstance(reading, NoReading):
        return frozen_verdict(reading)
    if distrusted is not None and calm_left > 0:
        return frozen_verdict(distrusted, after=f"; {calm_left} more good readings are needed")
    if reading.previous is None and decision.reason not in _ORDERS:
        none = Hold.NO_WINDOW
        return Verdict(reason=none.value, message=MESSAGES[none], frozen=False, may_drive=False)
    message = MESSAGES.get(decision.reason, "")
    if decision.guest is not None and decision.guest.outlier:
        message = f"{message} ({decision.guest.outlier})"
    intent = decision.inputs.intent
    if intent is not None and intent.enforcement is Enforcement.SHADOW:
        message = f"shadow, recorded and not applied: {message}"
    return Verdict(
        reason=decision.reason,
        message=message,
        frozen=decision.reason in _DATA_FREEZES,
        may_drive=decision.may_apply,
    )


def frozen_verdict(reading: NoReading, *, after: str = "") -> Verdict:
    """Return the verdict of a round that has no figures to act on."""
    detail = f": {reading.message}" if reading.message else ""
    message = f"{MESSAGES[reading.reason]}{after}{detail}"
    return Verdict(reason=reading.reason.value, message=message[:1024], frozen=True, may_drive=False)


def strategy_asked(held: AcceptedIntent | None) -> str:
    """Return the strategy of the intent in force, or None as a word."""
    return held.spec.strategy if held is not None else "None"


def strategy_of(decided_for: AllocationIntent | None) -> str:
    """Return the same of the intent that a decision was made for."""
    return decided_for.strategy.value if decided_for is not None else "None"


def record(
    reading: Reading | NoReading, decision: Decision, outcome: Verdict, driven: Driven | None, *, strategy: str
) -> DecisionRecord:
    """Return the record of a round, without its typed inputs, which the ring keeps beside it."""
    known = isinstance(reading, Reading)
    from_emb = reading.now.split.limits.emb_bytes if isinstance(reading, Reading) else 0
    target = decision.target_emb_bytes if decision.target_emb_bytes is not None else from_emb
    facts: dict[str, object] = {"message": outcome.message, "mayApply": outcome.may_drive}
    costs = decision.inputs.view.costs
    for name, value in (
        ("policyReason", decision.reason.value if outcome.reason != decision.reason.value else None),
        ("goalEmbBytes", decision.goal_emb_bytes),
        ("predictedP99Ms", decision.predicted_p99_ms),
        ("goalP99Ms", decision.goal_p99_ms),
        ("phase", decision.phase.value if decision.phase is not Phase.CALM else None),
        ("refillLinkPercent", decision.refill_link_percent),
        ("guest", msgspec.to_builtins(decision.guest) if decision.guest is not None else None),
        ("kernel", decision.kernel or None),
        ("assumedPrices", [price.value for price in costs.assumed] if costs is not None and costs.assumed else None),
        ("answers", driven.statuses if driven is not None and driven.statuses else None),
        ("waitsForGateways", True if driven is not None and driven.waits else None),
        ("restarted", True if isinstance(reading, Reading) and reading.restarted else None),
        ("emptied", True if isinstance(reading, Reading) and reading.emptied else None),
    ):
        if value is not None:
            facts[name] = value
    return DecisionRecord(
        sequence=0,
        clock_ms=reading.now.clock_ms if isinstance(reading, Reading) else 0.0,
        strategy=strategy,
        layer=decision.layer.value if outcome.reason == decision.reason.value else Layer.HOLD.value,
        reason=outcome.reason,
        clips=[clip.value for clip in decision.clips],
        from_emb_bytes=from_emb,
        target_emb_bytes=target if known else from_emb,
        applied=driven is not None and driven.moved,
        inputs={"round": facts},
    )


def status(known: Known, figures: Report | None, held: AcceptedIntent | None, *, start_id: str, decisions: int) -> AgentStatus:
    """Return the answer of GET /status; figures are None while the engine is not to be trusted or not there."""
    shown = figures if figures is not None else Report()
    describe = known.describe
    return AgentStatus(
        agent_start_id=start_id,
        uid=held.uid if held is not None else "",
        generation=held.generation if held is not None else 0,
        engine=EngineReport(
            reachable=known.reachable,
            start_id=known.start_id,
            epoch=known.epoch,
            name=describe.engine if describe is not None else "",
            emulation=describe.emulation if describe is not None else False,
            reason=known.trouble[:1024],
        ),
        strategy_in_force=_strategy_in_force(known, held),
        reason=known.verdict.reason,
        message="; ".join(part for part in (known.verdict.message, known.notes) if part)[:1024],
        frozen=known.verdict.frozen,
        decisions=decisions,
        split=_split_report(known, held),
        emb_hit_percent=shown.emb_hit_percent,
        kv_hit_percent=shown.kv_hit_percent,
        p99_ms=shown.p99_ms,
        slo_percent=shown.slo_percent,
        requests_per_second=shown.requests_per_second,
        serving=known.serving if figures is not None else None,
        limits=known.limits,
        draining=known.draining,
        idle_seconds=known.idle_seconds,
        models=known.models,
        model_in_force=known.model_in_force,
        predicted_p99_ms=known.predicted_p99_ms,
        goal_p99_ms=known.goal_p99_ms,
    )


def serving_of(now: Observe) -> ServingReport:
    """Return what capacity decisions need of one trusted observation."""
    return ServingReport(
        clock_ms=now.clock_ms,
        requests=now.counters.requests,
        queue=now.gauges.queue,
        in_flight=now.gauges.in_flight,
        live_prefix_bytes=now.gauges.live_prefix_bytes,
        pre_infer=now.counters.pre_infer,
    )


def show(metrics: AgentMetrics, known: Known, figures: Report, held: AcceptedIntent | None) -> None:
    """Set the gauges; a figure that is not known keeps no old value but becomes NaN."""
    metrics.reachable.set(known.reachable)
    metrics.frozen.set(known.verdict.frozen)
    metrics.generation.set(held.generation if held is not None else 0)
    metrics.model_in_force.set(known.model_in_force is not None)
    nan = float("nan")
    metrics.hit.labels(cache="emb").set(nan if figures.emb_hit_percent is None else figures.emb_hit_percent)
    metrics.hit.labels(cache="kv").set(nan if figures.kv_hit_percent is None else figures.kv_hit_percent)
    metrics.p99.set(nan if figures.p99_ms is None else figures.p99_ms)
    metrics.draining.set(known.draining)
    metrics.idle_seconds.set(nan if known.idle_seconds is None else known.idle_seconds)
    limits = known.limits
    metrics.limit_slots.set(nan if limits is None else limits.pre_infer_slots)
    metrics.limit_bytes.labels(tier="prefix").set(nan if limits is None else limits.pre_infer_bytes)
    metrics.limit_bytes.labels(tier="dram").set(nan if limits is None else limits.host_bytes)
    metrics.limit_bytes.labels(tier="ssd").set(nan if limits is None else limits.ssd_bytes)
    split = _split_report(known, held)
    if split is None:
        return
    metrics.target.labels(cache="emb").set(split.target_emb_bytes)
    metrics.target.labels(cache="kv").set(max(0, split.usable_bytes - split.target_emb_bytes))
    metrics.accepted.labels(cache="emb").set(split.accepted_emb_bytes)
    metrics.accepted.labels(cache="kv").set(split.accepted_kv_bytes)
    metrics.used.labels(cache="emb").set(split.used_emb_bytes)
    metrics.used.labels(cache="kv").set(split.used_kv_bytes)
    metrics.overage.set(split.overage_bytes)
    metrics.backlog.set(split.refill_backlog_bytes)
    metrics.revision.set(split.revision)


def _strategy_in_force(known: Known, held: AcceptedIntent | None) -> str:
    """The strategy that really decides: without a model, Learned is its anchor."""
    if held is not None and held.spec.strategy is Strategy.LEARNED and known.model_in_force is None:
        return Strategy.MISS_RATIO_CURVE.value
    return strategy_asked(held)


def _split_report(known: Known, held: AcceptedIntent | None) -> SplitReport | None:
    split, describe = known.split, known.describe
    if split is None or describe is None:
        return None
    usable = usable_bytes(held, pool_bytes=describe.pool_bytes)
    if known.cap_bytes is not None:
        usable = min(usable, known.cap_bytes)
    target = known.target_emb_bytes if known.target_emb_bytes is not None else split.limits.emb_bytes
    return SplitReport(
        usable_bytes=usable,
        target_emb_bytes=min(target, max(usable, split.limits.emb_bytes)),  # chosen before the intent made the pool smaller
        accepted_emb_bytes=split.limits.emb_bytes,
        accepted_kv_bytes=split.limits.kv_bytes,
        used_emb_bytes=split.used.emb_bytes,
        used_kv_bytes=split.used.kv_bytes,
        revision=split.revision,
        settled=split.settled,
        overage_bytes=split.overage_bytes,
        refill_backlog_bytes=split.refill_backlog_bytes,
    )
