"""PreInferencePolicy: which users' prefixes are computed ahead of ranking, with how much memory, and how that capacity grows.

The scaling behaviour has the names and the meaning of HorizontalPodAutoscaler.spec.behavior: nothing new to learn.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, Strict

from contract.engine import MAX_PRE_INFER_SLOTS
from crds.kind import AGE, Column, Kind
from crds.types import ApiModel, DecimalString, Percent, Resource, Rule, Seconds


class Trigger(ApiModel):
    """Which requests are worth a pre-inference."""

    min_prefix_tokens: Annotated[int, Strict(), Field(ge=0, le=10_000_000)] = 2048
    """Histories shorter than this many tokens are ranked in line."""
    risk_budget_ms: Annotated[int, Strict(), Field(ge=1, le=600_000)] | None = None
    """A request is at risk when ranking it in line is predicted to take longer than this many milliseconds. Omitted: the p99Ms
    of the pool."""
    safety_percent: Percent = 10
    """Part of the budget, in percent, kept back against prediction errors."""


class Budget(ApiModel):
    """The most that pre-inference may take from ranking."""

    prefix_percent: Annotated[int, Strict(), Field(ge=0, le=90)] = 20
    """Most HBM for prefixes that wait for their ranking request, in percent of hbmBytes - hbmReservedBytes. Reserved in eighths,
    as far as the slots need it; nothing as long as nobody asks for prefixes. 0 forbids pre-inference."""
    max_inflight: Annotated[int, Strict(), Field(ge=0, le=100_000)] = 64
    """Most pre-inferences at once in the pool. 0 forbids pre-inference."""
    max_per_second: Annotated[int, Strict(), Field(ge=0, le=1_000_000)] = 200
    """Most pre-inferences started per second in the pool."""


class Expander(ApiModel):
    """The second tier that keeps prefixes beyond HBM."""

    reuse_window_seconds: Seconds = 60
    """Seconds for which a prefix is kept in host memory for another request of the same user."""
    max_reload_ms: Annotated[int, Strict(), Field(ge=0, le=60_000)] = 20
    """A prefix is reloaded from host memory only when that takes at most this many milliseconds."""


class SlotRange(ApiModel):
    """Range of pre-inference slots of one instance."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.min <= self.max",
            message="slotsPerInstance.min must not be above slotsPerInstance.max",
            holds=lambda s: s.min <= s.max,
        ),
    )

    min: Annotated[int, Strict(), Field(ge=0, le=MAX_PRE_INFER_SLOTS)] = 1
    """Fewest slots once the pool was asked for a prefix; after half an hour without any it keeps none and no memory for them."""
    max: Annotated[int, Strict(), Field(ge=0, le=MAX_PRE_INFER_SLOTS)] = 8
    """Most slots; beyond them the pool gets more instances."""


class Targets(ApiModel):
    """What the scaler steers towards."""

    hit_before_rank_percent: Annotated[int, Strict(), Field(ge=1, le=100)] = 95
    """Share of admitted pre-inferences, in percent, that are ready when their ranking request arrives."""
    utilization_percent: Annotated[int, Strict(), Field(ge=1, le=100)] = 70
    """Share of the slots, in percent, that is busy on average."""


class PolicyType(StrEnum):
    """Unit of a scaling policy's value."""

    PODS = "Pods"
    PERCENT = "Percent"


class SelectPolicy(StrEnum):
    """Which of several scaling policies holds."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class ScalingPolicy(ApiModel):
    """One limit on the speed of scaling, as in HorizontalPodAutoscaler."""

    type: PolicyType
    """Pods: value counts instances. Percent: value is a percent of the present number."""
    value: Annotated[int, Strict(), Field(ge=1, le=10_000)]
    """Most change within periodSeconds; above 0."""
    period_seconds: Annotated[int, Strict(), Field(ge=1, le=1800)]
    """Length of the period in seconds, at most 1800."""


Policies = Annotated[
    tuple[ScalingPolicy, ...], Field(min_length=1, max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic"})
]
Window = Annotated[int, Strict(), Field(ge=0, le=3600)]


class ScaleUp(ApiModel):
    """How fast capacity may grow."""

    stabilization_window_seconds: Window = 0
    """Seconds of past recommendations of which the lowest holds, at most 3600."""
    select_policy: SelectPolicy = SelectPolicy.MAX
    """Max: the policy that allows the largest change holds. Min: the smallest. Disabled: no change in this direction."""
    policies: Policies = (
        ScalingPolicy(type=PolicyType.PODS, value=4, period_seconds=15),
        ScalingPolicy(type=PolicyType.PERCENT, value=100, period_seconds=15),
    )
    """Limits on the speed; at least one."""
    tolerance: DecimalString = "0.1"
    """Relative distance from the target that is not acted on, as a decimal string: 0.1 is 10 percent."""


class ScaleDown(ApiModel):
    """How fast capacity may shrink."""

    stabilization_window_seconds: Window = 300
    """Seconds of past recommendations of which the highest holds, at most 3600."""
    select_policy: SelectPolicy = SelectPolicy.MAX
    """Max: the policy that allows the largest change holds. Min: the smallest. Disabled: no change in this direction."""
    policies: Policies = (ScalingPolicy(type=PolicyType.PERCENT, value=100, period_seconds=15),)
    """Limits on the speed; at least one."""
    tolerance: DecimalString = "0.1"
    """Relative distance from the target that is not acted on, as a decimal string: 0.1 is 10 percent."""


class Behavior(ApiModel):
    """Scaling behaviour in both directions, with the names and the meaning of HorizontalPodAutoscaler."""

    scale_up: ScaleUp = ScaleUp()
    """How fast capacity may grow."""
    scale_down: ScaleDown = ScaleDown()
    """How fast capacity may shrink."""


class PreInferencePolicySpec(ApiModel):
    """Trigger, budgets, targets and scaling behaviour."""

    trigger: Trigger = Trigger()
    """Which requests are worth a pre-inference."""
    budget: Budget = Budget()
    """The most that pre-inference may take from ranking."""
    expander: Expander = Expander()
    """The second tier that keeps prefixes beyond HBM."""
    slots_per_instance: SlotRange = SlotRange()
    """Range of pre-inference slots of one instance."""
    targets: Targets = Targets()
    """What the scaler steers towards."""
    behavior: Behavior = Behavior()
    """Scaling behaviour in both directions."""


class PreInferencePolicy(Resource):
    """Which prefixes are computed ahead of ranking, within which budgets, and how that capacity scales. Pools name one in
    spec.policies.preInference."""

    spec: PreInferencePolicySpec = PreInferencePolicySpec()
    """Trigger, budgets, targets and scaling behaviour."""


KIND = Kind(
    name="PreInferencePolicy",
    plural="preinferencepolicies",
    short_names=("pip",),
    model=PreInferencePolicy,
    description="Which prefixes are computed ahead of ranking, and how that capacity scales.",
    columns=(
        Column("Min-Tokens", ".spec.trigger.minPrefixTokens", "Shortest history that is pre-inferred.", "integer"),
        Column("Prefix%", ".spec.budget.prefixPercent", "HBM for waiting prefixes, percent.", "integer"),
        Column("Min-Slots", ".spec.slotsPerInstance.min", "Fewest slots of an instance.", "integer"),
        Column("Max-Slots", ".spec.slotsPerInstance.max", "Most slots of an instance.", "integer"),
        Column("Hit-Target%", ".spec.targets.hitBeforeRankPercent", "Prefixes ready before ranking.", "integer"),
        AGE,
    ),
    not_yet=(
        "`trigger`, `expander` and `budget.maxPerSecond`: whoever sends the early signals decides which requests are worth one; "
        "`grfleet simulate` goes by `trigger` and `budget`",
    ),
    example={
        "trigger": {"minPrefixTokens": 4096, "riskBudgetMs": 40},
        "budget": {"prefixPercent": 15, "maxInflight": 128},
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    },
)
