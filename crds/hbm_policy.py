"""HBMPolicy: which strategy moves the EMB/KV split of an instance, and the guards it can never leave.

Every split percent is in points of usable HBM, that is hbmBytes - hbmReservedBytes - the prefix reservation. The groups below are
also the groups of GRInstance.spec.intent, where the allocation loop writes them resolved.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, Strict

from contract.agent import Enforcement, Strategy
from crds.kind import AGE, Column, Kind
from crds.types import ApiModel, Bool, Int64, ObjectName, Percent, Quantity, Resource, Rule, Seconds, parse_quantity

Count = Annotated[int, Strict(), Field(ge=0, le=1_000_000)]


class Bounds(ApiModel):
    """The range the split may take, in points of usable HBM given to the EMB cache."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minEmbPercent <= self.maxEmbPercent",
            message="bounds.minEmbPercent must not be above bounds.maxEmbPercent",
            holds=lambda b: b.min_emb_percent <= b.max_emb_percent,
        ),
        Rule(
            cel="self.fallbackEmbPercent >= self.minEmbPercent && self.fallbackEmbPercent <= self.maxEmbPercent",
            message="bounds.fallbackEmbPercent must lie between bounds.minEmbPercent and bounds.maxEmbPercent",
            holds=lambda b: b.min_emb_percent <= b.fallback_emb_percent <= b.max_emb_percent,
        ),
    )

    min_emb_percent: Percent = 5
    """Lowest EMB share in points of usable HBM; the floor that protects the embedding cache."""
    max_emb_percent: Percent = 95
    """Highest EMB share in points of usable HBM; the rest is the floor that protects the KV cache."""
    fallback_emb_percent: Percent = 50
    """EMB share in points of usable HBM held when nothing better is known, and the split of strategy Static."""


class Step(ApiModel):
    """How fast and how finely the split moves."""

    max_percent_per_second: Annotated[int, Strict(), Field(ge=1, le=100)] = 2
    """Slew limit: points of usable HBM that may move in one second."""
    deadband_percent: Annotated[int, Strict(), Field(ge=0, le=50)] = 2
    """A new target closer than this many points of usable HBM to the present one is not acted on."""
    interval_ms: Annotated[int, Strict(), Field(ge=10, le=60_000)] = 1000
    """Time between two split decisions of an agent, in milliseconds."""


class Refill(ApiModel):
    """How much of the host link the refill of a grown cache may take from serving."""

    max_link_percent: Annotated[int, Strict(), Field(ge=1, le=100)] = 5
    """Highest refill rate in percent of the link that the engine describes."""
    max_bytes_per_second: Quantity | None = None
    """Highest refill rate in bytes per second; the lower of the two caps holds. Omitted: only maxLinkPercent caps."""

    def max_bytes(self) -> int | None:
        """The absolute cap in bytes per second, or None."""
        return None if self.max_bytes_per_second is None else parse_quantity(self.max_bytes_per_second)


class Residual(ApiModel):
    """The online correction on top of a trained model: a gated pull towards the calibrated anchor."""

    enabled: Bool = False
    """Whether the correction is added."""
    max_percent: Annotated[int, Strict(), Field(ge=0, le=50)] = 20
    """Largest correction in points of usable HBM, to either side."""
    min_gain_percent: Percent = 1
    """Predicted gain, in percent of P99, below which the correction fades."""


class Learned(ApiModel):
    """Settings of strategy Learned; the other strategies ignore them."""

    model: ObjectName | None = None
    """Name of the AllocatorModel to run, in the namespace of the policy. Required with strategy Learned."""
    clamp_percent: Annotated[int, Strict(), Field(ge=0, le=50)] = 10
    """How far, in points of usable HBM, the model may leave the analytic anchor to either side."""
    residual: Residual = Residual()
    """The online correction on top of the model."""


class Recovery(ApiModel):
    """What happens in a load burst."""

    burst_percent: Annotated[int, Strict(), Field(ge=1, le=1000)] = 15
    """A burst is utilisation this many percent over what is usual."""
    calm_seconds: Seconds = 30
    """Seconds without a burst after which the split counts as calm again."""
    freeze_when_blocking: Bool = True
    """Hold the split during a burst on engines whose refill blocks serving, for up to a minute, unless the move pays for the
    standstill; others keep moving under the refill cap."""


class Rollout(ApiModel):
    """How a change to HillClimb or Learned, from Shadow to Active, or of the model reaches the instances of a pool. All other
    changes reach all of them at once."""

    canary_percent: Annotated[int, Strict(), Field(ge=1, le=100)] = 10
    """Share of the instances that take the change first, in percent, rounded up, at least one instance and at most a hundred."""
    soak_seconds: Seconds = 300
    """Seconds that the canaries run before the rest follow. 0 goes without canaries: all instances take the change at once."""
    rollback_p99_percent: Annotated[int, Strict(), Field(ge=1, le=1000)] = 10
    """The change is taken back when the canaries' P99 is provably worse than that of the others, by this many percent or more
    against what it was before. The same percent of the share of bad requests that the objective of the pool allows."""


class RolloutPhase(StrEnum):
    """How far a change of strategy or model has come in a pool."""

    MEASURING = "Measuring"
    CANARY = "Canary"
    EXTENDED = "Extended"
    INCONCLUSIVE = "Inconclusive"
    COMPLETE = "Complete"
    ROLLED_BACK = "RolledBack"
    WITHDRAWN = "Withdrawn"


class HBMPolicySpec(ApiModel):
    """Strategy and guards of the EMB/KV split."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.strategy != 'Learned' || has(self.learned.model)",
            message="learned.model is required when strategy is Learned",
            holds=lambda s: s.strategy is not Strategy.LEARNED or s.learned.model is not None,
            field_path=".learned.model",
        ),
        Rule(
            cel=(
                "self.bounds.minEmbPercent >= self.bounds.maxEmbPercent"
                " || self.step.deadbandPercent < self.bounds.maxEmbPercent - self.bounds.minEmbPercent"
            ),
            message="step.deadbandPercent must be smaller than bounds.maxEmbPercent - bounds.minEmbPercent",
            holds=lambda s: (
                s.bounds.min_emb_percent >= s.bounds.max_emb_percent
                or s.step.deadband_percent < s.bounds.max_emb_percent - s.bounds.min_emb_percent
            ),
            field_path=".step.deadbandPercent",
        ),
    )

    strategy: Strategy = Strategy.MISS_RATIO_CURVE
    """How the split is chosen. Static holds bounds.fallbackEmbPercent; HillClimb follows measured marginal gains;
    MissRatioCurve minimises the predicted P99 from the miss-ratio curves of both caches; Learned runs a trained model inside a
    clamp around MissRatioCurve."""
    enforcement: Enforcement | None = None
    """Shadow computes and reports decisions but leaves the split alone; Active applies them. Omitted: Active, except for
    strategy Learned, which starts in Shadow until you set Active. No server default, because it depends on strategy."""
    bounds: Bounds = Bounds()
    """The range the split may take."""
    step: Step = Step()
    """How fast and how finely the split moves."""
    refill: Refill = Refill()
    """Caps on the refill of a grown cache."""
    learned: Learned = Learned()
    """Settings of strategy Learned."""
    recovery: Recovery = Recovery()
    """What happens in a load burst."""
    rollout: Rollout = Rollout()
    """How a change of this policy reaches the instances of a pool."""

    def effective_enforcement(self) -> Enforcement:
        """The enforcement in force: the written one, else Shadow for a Learned strategy and Active for every other."""
        if self.enforcement is not None:
            return self.enforcement
        return Enforcement.SHADOW if self.strategy is Strategy.LEARNED else Enforcement.ACTIVE


class HBMPolicyStatus(ApiModel):
    """Where the policy is in force: counts over all pools that resolve to it."""

    observed_generation: Int64 | None = None
    """The metadata.generation that the counts were made for."""
    pools: Count | None = None
    """Pools that the policy holds for."""
    instances: Count | None = None
    """Their instances that stay."""
    current: Count | None = None
    """Instances whose intent was made from this generation of the policy."""
    rollout: RolloutPhase | None = None
    """How far this generation has come in the pool that needs a look most: RolledBack, then Inconclusive, Withdrawn, Extended,
    Canary, Measuring, Complete. Absent where no pool needed canaries."""
    model: ObjectName | None = None
    """The AllocatorModel that strategy Learned runs, once it may. Absent with another strategy, which runs none whatever
    spec.learned names."""


class HBMPolicy(Resource):
    """Strategy and guards of the split between the EMB and the KV cache in accelerator memory. Pools name one in
    spec.policies.hbm."""

    spec: HBMPolicySpec = HBMPolicySpec()
    """Strategy and guards of the EMB/KV split."""
    status: HBMPolicyStatus = HBMPolicyStatus()
    """Where the policy is in force."""


KIND = Kind(
    name="HBMPolicy",
    plural="hbmpolicies",
    short_names=("hbmp",),
    model=HBMPolicy,
    description="Strategy and guards of the split between the EMB and the KV cache.",
    columns=(
        Column("Strategy", ".spec.strategy", "How the split is chosen."),
        Column("Enforcement", ".spec.enforcement", "Shadow or Active; empty means the default of the strategy."),
        Column("Min EMB%", ".spec.bounds.minEmbPercent", "Lowest EMB share, points of usable HBM.", type="integer"),
        Column("Max EMB%", ".spec.bounds.maxEmbPercent", "Highest EMB share, points of usable HBM.", type="integer"),
        Column("Fallback", ".spec.bounds.fallbackEmbPercent", "EMB share when nothing better is known.", "integer"),
        Column("Current", ".status.current", "Instances with an intent of this generation.", type="integer"),
        Column("Of", ".status.instances", "Instances that the policy holds for.", type="integer"),
        Column("Rollout", ".status.rollout", "How far a change of strategy or model has come."),
        Column("Model", ".status.model", "AllocatorModel that the strategy runs; empty unless it is Learned."),
        AGE,
    ),
    selectable_fields=(".spec.strategy", ".spec.learned.model"),
    example={
        "strategy": "Learned",
        "enforcement": "Shadow",
        "bounds": {"minEmbPercent": 20, "fallbackEmbPercent": 50, "maxEmbPercent": 80},
        "learned": {"model": "split-2026-01", "clampPercent": 10},
        "refill": {"maxLinkPercent": 5, "maxBytesPerSecond": "4G"},
    },
)
