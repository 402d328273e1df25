"""GRServingPool: one generative recommendation model served by a group of instances with the same memory, objective and policies.

Where the instances come from is told in `crds.pool_instances`. Only a managed pool can be resized, so only there replicas and
scaling.mode have a meaning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, Strict

from contract.engine import MAX_PRE_INFER_SLOTS
from crds.instance import Forecast
from crds.kind import AGE, Column, Kind, Scale, condition_path
from crds.pool_fronts import InferencePoolSeen
from crds.pool_instances import MAX_REPLICAS, Instances, InstancesSeen, Replicas
from crds.pool_rollout import PoolRollout
from crds.types import (
    ApiModel,
    Bool,
    Conditions,
    DecimalString,
    Int64,
    LabelName,
    ListMap,
    ObjectName,
    Percent,
    PercentString,
    Quantity,
    ReasonName,
    Resource,
    Rule,
    Version,
    parse_quantity,
)

BytesPerItem = Annotated[int, Strict(), Field(ge=1, le=1 << 30)]


class Attention(StrEnum):
    """How attention state grows with a user's history."""

    SOFTMAX = "Softmax"
    LINEAR = "Linear"


class ScalingMode(StrEnum):
    """Who writes spec.replicas."""

    MANUAL = "Manual"
    HPA = "HPA"
    PRE_INFERENCE = "PreInference"


class ModelSpec(ApiModel):
    """The served model, as far as memory and cache keys need to know it."""

    name: LabelName
    """Name of the served model."""
    version: Version
    """Version of the model weights; cached attention state is valid for one version only."""
    emb_version: Version | None = None
    """Version of the embedding tables. Omitted: the tables change together with the model version."""
    kv_bytes_per_token: BytesPerItem
    """Bytes of attention state per token of history, over all layers. With Linear attention, whose state has a fixed size: the
    bytes of the whole state divided by maxHistoryTokens."""
    emb_row_bytes: BytesPerItem
    """Bytes of one embedding row, all tables of an item together."""
    max_history_tokens: Annotated[int, Strict(), Field(ge=1, le=10_000_000)]
    """Longest history, in tokens, that the model reads for one user."""
    attention: Attention = Attention.SOFTMAX
    """Softmax: the state of a user grows with the history. Linear: it has a fixed size."""


class Memory(ApiModel):
    """Memory of one instance; an instance of several accelerators counts with its totals."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="quantity(self.hbmReservedBytes).isLessThan(quantity(self.hbmBytes))",
            message="memory.hbmReservedBytes must be smaller than memory.hbmBytes",
            holds=lambda m: parse_quantity(m.hbm_reserved_bytes) < parse_quantity(m.hbm_bytes),
            field_path=".hbmReservedBytes",
        ),
    )

    hbm_bytes: Quantity
    """Accelerator memory of one instance, for example 80Gi."""
    hbm_reserved_bytes: Quantity = "0"
    """Part of hbmBytes that the caches never get: weights, activations, workspace."""
    host_bytes: Quantity = "0"
    """Host memory of one instance for the second tier of attention state; 0 turns the tier off."""
    ssd_bytes: Quantity = "0"
    """Local SSD of one instance for the third tier of attention state; 0 turns the tier off."""

    def usable_bytes(self, *, prefix_bytes: int = 0) -> int:
        """HBM bytes that the two caches share: hbmBytes - hbmReservedBytes - prefix reservation, not below 0."""
        return max(0, parse_quantity(self.hbm_bytes) - parse_quantity(self.hbm_reserved_bytes) - prefix_bytes)


class Slo(ApiModel):
    """Latency objective of ranking requests."""

    p99_ms: Annotated[int, Strict(), Field(ge=1, le=600_000)]
    """A request is good when it is answered within this many milliseconds."""
    good_percent: PercentString = "99"
    """Share of requests that must be good, in percent, as a decimal string."""


class Scaling(ApiModel):
    """Who changes the number of instances, and how far."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            message="scaling.minReplicas must not be above scaling.maxReplicas",
            holds=lambda s: s.max_replicas is None or s.min_replicas <= s.max_replicas,
            field_path=".minReplicas",
        ),
        Rule(
            cel="self.mode != 'PreInference' || has(self.maxReplicas)",
            message="scaling.maxReplicas is required when scaling.mode is PreInference",
            holds=lambda s: s.mode is not ScalingMode.PRE_INFERENCE or s.max_replicas is not None,
            field_path=".maxReplicas",
        ),
    )

    mode: ScalingMode = ScalingMode.MANUAL
    """The one writer of spec.replicas. Manual: a person. HPA: a HorizontalPodAutoscaler or KEDA on the scale subresource of the
    pool. PreInference: grfleet's own scaler."""
    min_replicas: Annotated[int, Strict(), Field(ge=1, le=MAX_REPLICAS)] = 1
    """Fewest instances that grfleet's scaler asks for."""
    max_replicas: Annotated[int, Strict(), Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Most instances that grfleet's scaler asks for; required with mode PreInference."""


class PolicyNames(ApiModel):
    """Names of the policies in force. Each is looked up in the namespace of the pool; for the name default also in that of the
    operator; and where that has none either, the built-in defaults hold with reason DefaultsInUse."""

    hbm: ObjectName = "default"
    """Name of the HBMPolicy."""
    routing: ObjectName = "default"
    """Name of the RoutingPolicy."""
    pre_inference: ObjectName = "default"
    """Name of the PreInferencePolicy."""


class GRServingPoolSpec(ApiModel):
    """What people want from the pool."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.instances.managed) || self.scaling.mode == 'Manual'",
            message="scaling.mode must be Manual unless instances.managed is used; grfleet scales only instances it runs",
            holds=lambda s: s.instances.managed is not None or s.scaling.mode is ScalingMode.MANUAL,
            field_path=".scaling.mode",
        ),
        Rule(
            cel="has(self.instances.managed) || self.replicas == 1",
            message="replicas can be set only with instances.managed; adopted and external pools count what they find",
            holds=lambda s: s.instances.managed is not None or s.replicas == 1,
            field_path=".replicas",
        ),
    )

    model: ModelSpec
    """The served model."""
    instances: Instances
    """Where the instances come from: exactly one of managed, adopted and external."""
    memory: Memory
    """Memory of one instance."""
    slo: Slo
    """Latency objective."""
    replicas: Replicas = 1
    """Number of managed instances; written by the one that scaling.mode names. Leave it out for adopted and external pools."""
    scaling: Scaling = Scaling()
    """Who changes the number of instances, and how far."""
    policies: PolicyNames = PolicyNames()
    """Names of the policies in force. Each is looked up in the namespace of the pool; the name default also in that of the
    operator; and where that has none either, the built-in defaults hold with reason DefaultsInUse."""
    paused: Bool = False
    """Hold everything as it is: no split moves, no scaling, no table change; instances keep serving and status stays fresh."""


class InstanceCounts(ApiModel):
    """Instances by state."""

    total: InstancesSeen
    """Instances that belong to the pool."""
    ready: InstancesSeen
    """Instances whose engine and agent are ready."""
    settled: InstancesSeen
    """Instances whose split has arrived at its target."""
    unreachable: InstancesSeen
    """Instances whose agent does not answer."""
    shadow: InstancesSeen | None = None
    """Instances whose strategy only watches."""
    draining: InstancesSeen | None = None
    """Instances on their way out: they have left the routing table and finish their requests. Pools of pods only."""
    updated: InstancesSeen | None = None
    """Instances that run the wanted model version. Pools of pods only."""


class PercentSummary(ApiModel):
    """Spread of a share over the instances, whole points."""

    min: Percent
    """Lowest value of an instance."""
    mean: Percent
    """Mean over the instances, rounded."""
    max: Percent
    """Highest value of an instance."""


class PreInferenceSummary(ApiModel):
    """Pre-inference capacity of the pool, and how well it does."""

    slots: Annotated[int, Strict(), Field(ge=0, le=100_000)]
    """Slots of all instances together."""
    demand_slots: Annotated[int, Strict(), Field(ge=0, le=MAX_PRE_INFER_SLOTS)] | None = None
    """Slots wanted on each instance for the measured load; absent while a measurement is in doubt."""
    desired_replicas: Replicas | None = None
    """Instances that the scaler wants; absent unless scaling.mode is PreInference."""
    hit_before_rank_percent: Percent | None = None
    """Admitted pre-inferences that were ready when their ranking request came, percent; absent without a fresh measurement."""


class GRServingPoolStatus(ApiModel):
    """What grfleet sees: counts and summaries, rounded so that noise writes nothing."""

    observed_generation: Int64 | None = None
    """The metadata.generation that Ready was computed from."""
    replicas: InstancesSeen | None = None
    """Instances seen; what the scale subresource reports as current."""
    selector: Annotated[str, Field(max_length=1024)] | None = None
    """Label selector of the instances, for the scale subresource; always filled, also for pools without pods."""
    instances: InstanceCounts | None = None
    """Instances by state."""
    emb_percent: PercentSummary | None = None
    """EMB share in force, in points of usable HBM."""
    p99_ms: DecimalString | None = None
    """Worst P99 of an instance in milliseconds, two digits; absent without a fresh measurement."""
    slo_percent: PercentString | None = None
    """Share of good requests in percent; absent without a fresh measurement."""
    strategy_in_force: ReasonName | None = None
    """Strategy that decides on most instances at present."""
    table_generation: Int64 | None = None
    """Generation of the routing table published last."""
    pre_inference: PreInferenceSummary | None = None
    """Pre-inference capacity of the pool, and how well it does."""
    forecast: Forecast | None = None
    """What the strategy would change, mean over the instances; only while it is in Shadow and predicts a P99."""
    inference_pools: Annotated[tuple[InferencePoolSeen, ...], Field(max_length=16), ListMap("name")] = ()
    """InferencePools of the Gateway API that select pods of this pool; looked at once a minute, where that kind is installed."""
    rollout: PoolRollout | None = None
    """The last change of strategy or model that needed canaries, and how far it has come."""
    conditions: Conditions = ()
    """Ready and the conditions it depends on, and RolloutProgressing once there was a rollout."""


class GRServingPool(Resource):
    """A generative recommendation model served by a group of instances with the same memory, objective and policies."""

    spec: GRServingPoolSpec
    """What people want from the pool."""
    status: GRServingPoolStatus = GRServingPoolStatus()
    """What grfleet sees."""


KIND = Kind(
    name="GRServingPool",
    plural="grservingpools",
    short_names=("grp",),
    model=GRServingPool,
    description="A generative recommendation model served by a group of instances.",
    columns=(
        Column("Ready", condition_path("Ready"), "Whether the pool serves as wanted."),
        Column("Up", ".status.instances.ready", "Instances that are ready.", "integer"),
        Column("Of", ".status.instances.total", "Instances that belong to the pool.", "integer"),
        Column("EMB%", ".status.embPercent.mean", "Mean EMB share in force, points of usable HBM.", "integer"),
        Column("P99", ".status.p99Ms", "Worst P99 of an instance, milliseconds."),
        Column("SLO%", ".status.sloPercent", "Share of good requests, percent."),
        Column("Strategy", ".status.strategyInForce", "Strategy that decides at present."),
        Column("Reason", condition_path("Ready", "reason"), "Why Ready has its value."),
        Column("Settled", ".status.instances.settled", "Instances at their target split.", "integer", priority=1),
        Column("Table", ".status.tableGeneration", "Generation of the routing table.", "integer", priority=1),
        Column(
            "Policy", condition_path("PolicyHealthy", "reason"), "Whether the wanted strategy decides, or why not.", priority=1
        ),
        Column("Rollout", ".status.rollout.phase", "How far a change of strategy or model has come.", priority=1),
        Column("Model", ".spec.model.name", "Served model.", priority=1),
        Column("Version", ".spec.model.version", "Model version.", priority=1),
        Column("Paused", ".spec.paused", "Whether the pool is held as it is.", "boolean", priority=1),
        AGE,
    ),
    scale=Scale(".spec.replicas", ".status.replicas", ".status.selector"),
    selectable_fields=(".spec.model.name", ".spec.scaling.mode", ".spec.policies.hbm", ".spec.paused"),
    not_yet=(
        "`memory.hostBytes` and `memory.ssdBytes`: told to engines that describe such tiers; the reference engine has what "
        "its options give it, "
        "`grfleet simulate` has both",
        "`model` and `slo.goodPercent`: shown, and compared neither with what engines describe nor with what is measured; "
        "`grfleet simulate` goes by them",
    ),
    example={
        "model": {"name": "ranker", "version": "7", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192},
        "instances": {
            "external": [
                {"name": "a", "serviceURL": "http://gr-a.example:9000", "agentURL": "http://gr-a.example:9001"},
                {"name": "b", "serviceURL": "http://gr-b.example:9000", "agentURL": "http://gr-b.example:9001"},
            ]
        },
        "memory": {"hbmBytes": "80Gi", "hbmReservedBytes": "20Gi", "hostBytes": "256Gi"},
        "slo": {"p99Ms": 50, "goodPercent": "99.6"},
    },
)
