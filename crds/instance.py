"""GRInstance: one engine process group with one split, as the loops see and want it.

The pool loop creates one per pod or external entry; a new pod uid means delete and create. spec.intent is the desired state that
the allocation loop hands to the agent: metadata.generation numbers it, metadata.uid binds it. status.split keeps apart what is
wanted (target), what the engine enforces (accepted) and what has arrived (settled).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, Strict

from contract.agent import Enforcement, Strategy
from contract.engine import MAX_PRE_INFER_SLOTS
from crds.hbm_policy import Bounds, Recovery, Residual, Step
from crds.kind import AGE, Column, Kind, condition_path
from crds.types import (
    ApiModel,
    Bool,
    Conditions,
    DecimalString,
    Int64,
    LabelName,
    Message,
    ObjectName,
    Percent,
    PercentString,
    ReasonName,
    Resource,
    Rule,
    ServiceUrl,
    Sha256,
    Time,
    Uid,
    Version,
)


class SourceKind(StrEnum):
    """What stands behind an instance."""

    EXTERNAL = "External"
    POD = "Pod"


class PolicySource(StrEnum):
    """Where the policy in force was found."""

    POOL = "Pool"
    OPERATOR = "Operator"
    DEFAULTS = "Defaults"


class Source(ApiModel):
    """What stands behind the instance, and its addresses."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.kind != 'Pod' || has(self.podName)",
            message="source.podName is required when source.kind is Pod",
            holds=lambda s: s.kind is not SourceKind.POD or s.pod_name is not None,
            field_path=".podName",
        ),
    )

    kind: SourceKind
    """External: an entry of the pool's list. Pod: a pod of the pool."""
    service_url: ServiceUrl
    """Address where the engine serves requests."""
    agent_url: ServiceUrl
    """Address of the agent beside the engine."""
    pod_name: ObjectName | None = None
    """Name of the pod behind the instance."""
    pod_uid: Uid | None = None
    """Uid of the pod behind the instance; another uid is another instance."""
    model_version: Version | None = None
    """Model version that the pod was made for, from its label; absent where nobody says."""


class DrainReason(StrEnum):
    """Why an instance leaves."""

    SCALE_DOWN = "ScaleDown"
    TERMINATING = "Terminating"


class Drain(ApiModel):
    """The instance leaves: out of the routing table, no new requests, the rest is finished until the deadline."""

    reason: DrainReason
    """ScaleDown: the pool gets fewer instances. Terminating: its pod is being deleted, by whomever."""
    started_at: Time
    """When it began, by the clock of the operator that led then."""
    deadline_seconds: Annotated[int, Strict(), Field(ge=0, le=86_400)]
    """Seconds after which nobody waits any longer for requests in flight."""


class PolicyRef(ApiModel):
    """The policy object that the intent was made from."""

    name: ObjectName
    """Name of the policy."""
    namespace: LabelName | None = None
    """Namespace of the policy; absent for the built-in defaults."""
    generation: Int64 | None = None
    """metadata.generation of the policy; absent for the built-in defaults."""
    source: PolicySource
    """Pool: found in the namespace of the pool. Operator: in that of the operator. Defaults: nowhere, the built-in ones hold."""


class ModelRef(ApiModel):
    """The allocator model that the agent is to run."""

    name: ObjectName
    """Name of the AllocatorModel."""
    sha256: Sha256
    """Digest of its bytes; the agent refuses any others."""
    feature_spec: Version
    """Feature layout that the model reads."""


class IntentRefill(ApiModel):
    """Caps on the refill of a grown cache."""

    max_link_percent: Annotated[int, Strict(), Field(ge=1, le=100)] = 5
    """Highest refill rate in percent of the link that the engine describes."""
    max_bytes_per_second: Int64 | None = None
    """Highest refill rate in bytes per second; absent: only maxLinkPercent caps."""


class IntentLearned(ApiModel):
    """How far a trained model may leave the analytic anchor."""

    clamp_percent: Annotated[int, Strict(), Field(ge=0, le=50)] = 10
    """Points of usable HBM to either side of the anchor."""
    residual: Residual = Residual()
    """The online correction on top of the model."""


class Intent(ApiModel):
    """The desired state of the split, resolved from pool and policy; signed and pushed to the agent as it stands here."""

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
    usable_bytes: Int64 | None = None
    """HBM bytes that the two caches share; absent: what the engine describes."""
    host_bytes: Int64 | None = None
    """Host memory for the second tier of attention state, told to the engine together with preInfer; absent: none."""
    ssd_bytes: Int64 | None = None
    """Local SSD for the third tier of attention state, told to the engine together with preInfer; absent: none."""
    p99_ms: Annotated[int, Strict(), Field(ge=1, le=600_000)]
    """Latency objective in milliseconds."""
    model_ref: ModelRef | None = None
    """The allocator model to run; absent unless strategy is Learned and the model is verified."""
    paused: Bool = False
    """Hold the present split."""
    policy_ref: PolicyRef
    """The policy that this intent was made from."""


class PreInfer(ApiModel):
    """Pre-inference capacity of the instance."""

    slots: Annotated[int, Strict(), Field(ge=0, le=MAX_PRE_INFER_SLOTS)]
    """Pre-inference requests that may run at once; the engine refuses more with 429."""
    bytes: Int64
    """HBM bytes reserved for prefixes that wait for their ranking request."""


class GRInstanceSpec(ApiModel):
    """The desired state of one instance, written by the loops."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(cel="self.poolRef == oldSelf.poolRef", message="poolRef cannot change", field_path=".poolRef"),
    )

    pool_ref: ObjectName
    """Name of the GRServingPool in the same namespace."""
    source: Source
    """What stands behind the instance, and its addresses."""
    drain: Drain | None = None
    """Set while the instance leaves."""
    intent: Intent | None = None
    """The desired state of the split; absent until the allocation loop has written it."""
    pre_infer: PreInfer | None = None
    """Pre-inference capacity; absent until the pre-inference loop has written it."""


class SplitValue(ApiModel):
    """One split of the usable HBM."""

    emb_bytes: Int64
    """Bytes of the EMB cache."""
    kv_bytes: Int64
    """Bytes of the KV cache."""
    emb_percent: Percent
    """EMB share in whole points of usable HBM."""


class Split(ApiModel):
    """The split on its way from wanted to arrived."""

    target: SplitValue | None = None
    """What the strategy in force wants."""
    accepted: SplitValue | None = None
    """The limits that the engine enforces now."""
    settled: SplitValue | None = None
    """The last split that fully arrived: nothing above a limit, nothing left to refill."""
    revision: Int64 | None = None
    """Revision of the accepted split in the engine."""
    usable_bytes: Int64 | None = None
    """HBM bytes that the split divides."""


class Caches(ApiModel):
    """Measured cache behaviour; a value is absent when nothing was asked."""

    emb_hit_percent: Percent | None = None
    """Embedding rows found in HBM, percent of those asked, whole points."""
    kv_hit_percent: Percent | None = None
    """History tokens found in HBM, percent of those asked, whole points."""


class Forecast(ApiModel):
    """What a strategy in Shadow would change, as its model of the instance predicts it."""

    in_force_p99_ms: DecimalString
    """Predicted P99 in milliseconds, two digits, at the split in force."""
    goal_p99_ms: DecimalString
    """Predicted P99 in milliseconds, two digits, at the split that the strategy wants."""


class AgentState(ApiModel):
    """The agent as the operator sees it."""

    reachable: Bool
    """Whether the agent answered at the last attempt."""
    start_id: Uid | None = None
    """Identity of the agent process; another one means a restart."""
    engine_start_id: Uid | None = None
    """Identity of the engine process behind the agent."""
    intent_generation: Int64 | None = None
    """metadata.generation of the intent that the agent holds."""


class GRInstanceStatus(ApiModel):
    """What grfleet sees of one instance, rounded so that noise writes nothing."""

    observed_generation: Int64 | None = None
    """The metadata.generation that Ready was computed from."""
    split: Split | None = None
    """The split on its way from wanted to arrived."""
    strategy_in_force: ReasonName | None = None
    """Strategy that decides at present; differs from spec.intent.strategy after a fall-back."""
    reason: ReasonName | None = None
    """Why the split is what it is: the reason of the last decision that changed it, or why it is held."""
    message: Message | None = None
    """The reason in words, with the numbers behind it."""
    caches: Caches | None = None
    """Measured cache behaviour."""
    pre_infer: PreInfer | None = None
    """Pre-inference capacity that the engine enforces."""
    p99_ms: DecimalString | None = None
    """P99 in milliseconds, two digits; absent without a fresh measurement."""
    slo_percent: PercentString | None = None
    """Share of good requests in percent; absent without a fresh measurement."""
    forecast: Forecast | None = None
    """What the strategy would change; only while it is in Shadow and predicts a P99."""
    last_observed_time: Time | None = None
    """When the values above were observed. Written only together with another change, so it is no heartbeat."""
    agent: AgentState | None = None
    """The agent as the operator sees it."""
    conditions: Conditions = ()
    """Ready, SplitSettled, PolicyHealthy, and Drained while it leaves."""


class GRInstance(Resource):
    """One engine process group with one EMB/KV split. Written by grfleet; people read it."""

    spec: GRInstanceSpec
    """The desired state of one instance, written by the loops."""
    status: GRInstanceStatus = GRInstanceStatus()
    """What grfleet sees of the instance."""


KIND = Kind(
    name="GRInstance",
    plural="grinstances",
    short_names=("gri",),
    model=GRInstance,
    description="One engine process group with one EMB/KV split.",
    columns=(
        Column("Pool", ".spec.poolRef", "Pool of the instance."),
        Column("Ready", condition_path("Ready"), "Whether engine and agent are ready."),
        Column("Target", ".status.split.target.embPercent", "Wanted EMB share, points of usable HBM.", "integer"),
        Column("EMB%", ".status.split.accepted.embPercent", "EMB share in force, points of usable HBM.", "integer"),
        Column("Settled", condition_path("SplitSettled"), "Whether the split has arrived at its target."),
        Column("KV-Hit", ".status.caches.kvHitPercent", "History tokens found in HBM, percent.", "integer"),
        Column("EMB-Hit", ".status.caches.embHitPercent", "Embedding rows found in HBM, percent.", "integer"),
        Column("P99", ".status.p99Ms", "P99 in milliseconds."),
        Column("Strategy", ".status.strategyInForce", "Strategy that decides at present."),
        Column("Reason", ".status.reason", "Why the split is what it is."),
        Column("Ready-Why", condition_path("Ready", "reason"), "Why Ready has its value.", priority=1),
        Column(
            "Policy", condition_path("PolicyHealthy", "reason"), "Whether the wanted strategy decides, or why not.", priority=1
        ),
        Column("SLO%", ".status.sloPercent", "Share of good requests, percent.", priority=1),
        Column("Enforcement", ".spec.intent.enforcement", "Shadow or Active.", priority=1),
        Column("Revision", ".status.split.revision", "Revision of the split in the engine.", "integer", priority=1),
        Column("Address", ".spec.source.serviceURL", "Where the engine serves.", priority=1),
        AGE,
    ),
    selectable_fields=(".spec.poolRef", ".spec.source.kind"),
    not_yet=("`spec.intent.p99Ms`: agents judge by the `p99Ms` that their engine describes",),
)
