"""The rollout of a change of strategy or model as it stands in the status of a pool: its durable state.

A leader that takes over goes on from what is written here, so it holds who the canaries are, what the others run meanwhile, and
what both groups were like before the change. Everything is bounded, and written only when a phase ends.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict, StringConstraints

from contract.agent import Enforcement, Strategy
from crds.hbm_policy import Bounds, Recovery, RolloutPhase, Step
from crds.instance import IntentLearned, IntentRefill, ModelRef, PolicyRef
from crds.types import ApiModel, DecimalString, ListMap, ObjectName, PercentString, Time, Uid

MOST_CANARIES = 100
MOST_CONTROLS = 32
MOST_SOAKED_SECONDS = 10_000_000

Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$", min_length=16, max_length=16)]


class PolicyPart(ApiModel):
    """What an intent takes from the policy, resolved."""

    strategy: Strategy
    """How the split is chosen."""
    enforcement: Enforcement
    """Shadow computes and reports only; Active applies."""
    bounds: Bounds
    """The range the split may take."""
    step: Step
    """How fast and how finely the split moves."""
    refill: IntentRefill
    """Caps on the refill of a grown cache."""
    learned: IntentLearned = IntentLearned()
    """How far a trained model may leave the analytic anchor."""
    recovery: Recovery = Recovery()
    """What happens in a load burst."""
    model_ref: ModelRef | None = None
    """The allocator model, where one runs."""
    policy_ref: PolicyRef
    """The policy that it was made from."""


class RolloutMember(ApiModel):
    """An instance that is compared, and its means of the time before the change; absent where too little was measured."""

    name: ObjectName
    """Name of the GRInstance."""
    uid: Uid
    """Its uid; a successor of the same name is another instance."""
    p99_ms: DecimalString | None = None
    """P99 in milliseconds, the geometric mean of its windows."""
    slo_percent: PercentString | None = None
    """Share of good requests in percent."""
    requests_per_second: DecimalString | None = None
    """Requests per second."""


class RolloutNoise(ApiModel):
    """How the difference of the two groups wandered by itself before the change."""

    windows: Annotated[int, Strict(), Field(ge=0, le=100_000)]
    """Windows of ten seconds that were compared."""
    p99_sd: DecimalString
    """Standard deviation of the difference in log P99."""
    p99_rho: DecimalString
    """Its correlation from one window to the next."""
    bad_sd: DecimalString = "0"
    """Standard deviation of the difference in the share of bad requests, in points."""
    bad_rho: DecimalString = "0"
    """Its correlation from one window to the next."""


class PoolRollout(ApiModel):
    """A change of strategy or model on its way to the instances of the pool."""

    phase: RolloutPhase
    """Measuring: figures of the time before are collected, nothing is changed. Canary and Extended: the canaries have the change.
    Inconclusive: so they do, and it cannot be told whether it harms. Complete: all have it. RolledBack: it harmed, nobody has
    it. Withdrawn: the policy is gone, nobody has it."""
    revision: Revision
    """Digest of what the change asks for, policy and model."""
    policy_ref: PolicyRef
    """The policy that asks for the change."""
    since: Time | None = None
    """When the phase began, or the clock went on after a pause; absent while the clock stands."""
    soaked_seconds: Annotated[int, Strict(), Field(ge=0, le=MOST_SOAKED_SECONDS)] = 0
    """Seconds that the canaries had the change before `since`."""
    stable: PolicyPart
    """What the others run meanwhile, and all after a rollback; the change itself once it is complete."""
    canaries: Annotated[tuple[RolloutMember, ...], Field(max_length=MOST_CANARIES), ListMap("name")] = ()
    """Instances that have the change."""
    controls: Annotated[tuple[RolloutMember, ...], Field(max_length=MOST_CONTROLS), ListMap("name")] = ()
    """Instances that they are compared with; empty where there are none."""
    canary_percent: Annotated[int, Strict(), Field(ge=1, le=100)] | None = None
    """The canaryPercent that the canaries were chosen by; another one in the policy begins the trial anew."""
    noise: RolloutNoise | None = None
    """How the difference of both groups wandered by itself before the change."""
