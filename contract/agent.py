"""Agent contract v1: how the operator hands an intent to the agent beside an engine, and what the agent reports back.

The desired state is GRInstance.spec.intent; the object's generation numbers it and its uid binds it, so it stays monotone over
operator restarts. An intent is signed and carries the time until which it may be *accepted*; once accepted it holds until
replaced, also with the operator gone. Measured values are None when missing; zero always means a measured zero.
"""

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from contract.engine import MAX_PRE_INFER_SLOTS, Bytes, Count, LimitsRequest, Milliseconds, Name, PreInferCounters, Wire

VERSION = "v1"
PREFIX = "/agent/v1"
MAX_DECISIONS = 1000
MAX_IDLE_AFTER_SECONDS = 3600
MAX_IDLE_DEADLINE_SECONDS = 86_400
MAX_MODEL_BYTES = 256 * 1024
"""Largest body of PUT /model/{sha256}; a model of this release has a sixth of it."""
MAX_MODELS_NAMED = 16
"""Most digests in one answer. An agent of this release holds two models; others may hold more."""

Percent = Annotated[int, Meta(ge=0, le=100)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Strategy(enum.StrEnum):
    """How the wanted split is found."""

    STATIC = "Static"
    HILL_CLIMB = "HillClimb"
    MISS_RATIO_CURVE = "MissRatioCurve"
    LEARNED = "Learned"


class Enforcement(enum.StrEnum):
    """Whether decisions are only recorded (Shadow) or carried out (Active)."""

    SHADOW = "Shadow"
    ACTIVE = "Active"


class IntentBounds(Wire, frozen=True, kw_only=True):
    """The range of the EMB share and where it goes when nothing better is known, in points of usable HBM."""

    min_emb_percent: Percent = 5
    max_emb_percent: Percent = 95
    fallback_emb_percent: Percent = 50


class IntentStep(Wire, frozen=True, kw_only=True):
    """How fast (points a second), how readily (points) and how often (milliseconds between rounds) the split moves."""

    max_percent_per_second: Percent = 2
    deadband_percent: Percent = 2
    interval_ms: Annotated[int, Meta(ge=10, le=60_000)] = 1000


class IntentRefill(Wire, frozen=True, kw_only=True):
    """Caps on the refill of a grown cache: percent of the described link, and bytes per second; the lower holds."""

    max_link_percent: Percent = 5
    max_bytes_per_second: Bytes | None = None


class IntentPreInfer(Wire, frozen=True, kw_only=True):
    """Capacity for pre-inference and for the tiers below HBM, which the agent hands to the engine as its limits."""

    slots: Annotated[int, Meta(ge=0, le=MAX_PRE_INFER_SLOTS)]
    bytes: Bytes
    host_bytes: Bytes = 0
    ssd_bytes: Bytes = 0


class IntentResidual(Wire, frozen=True, kw_only=True):
    """The online correction on top of a model: how large (points of usable HBM), and from which gain on (percent of P99)."""

    enabled: bool = False
    max_percent: Percent = 20
    min_gain_percent: Percent = 1


class IntentLearned(Wire, frozen=True, kw_only=True):
    """How far a model may leave the analytic anchor to either side, in points of usable HBM."""

    clamp_percent: Percent = 10
    residual: IntentResidual = IntentResidual()


class IntentRecovery(Wire, frozen=True, kw_only=True):
    """What a burst is (utilisation, percent over usual), when it is over (s), whether refill that blocks freezes the split."""

    burst_percent: Annotated[int, Meta(ge=1, le=1000)] = 15
    calm_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 30
    freeze_when_blocking: bool = True


class IntentModelRef(Wire, frozen=True, kw_only=True):
    """The model that is to decide, by the digest of its bytes; they come by PUT /model/{sha256}."""

    name: Name
    sha256: Sha256


class IntentSpec(Wire, frozen=True, kw_only=True):
    """What an intent means to an agent: GRInstance.spec.intent with the capacity for pre-inference and the word to drain.

    Fields that the agent does not know are ignored. Without `preInfer` the engine keeps the limits that it has.
    """

    strategy: Strategy = Strategy.MISS_RATIO_CURVE
    enforcement: Enforcement = Enforcement.ACTIVE
    bounds: IntentBounds = IntentBounds()
    step: IntentStep = IntentStep()
    refill: IntentRefill = IntentRefill()
    learned: IntentLearned = IntentLearned()
    recovery: IntentRecovery = IntentRecovery()
    model_ref: IntentModelRef | None = None
    paused: bool = False
    usable_bytes: Bytes | None = None
    pre_infer: IntentPreInfer | None = None
    draining: bool = False


class IntentAudience(Wire, frozen=True, kw_only=True):
    """Whom an intent is for, as `spec.audience`: the namespace of the GRInstance, and the uid of its pod, empty without one.

    Every namespace's intents bear the same operator's signature, and whoever may make a pool can have one signed and sent, or
    recorded and sent again, to an address of their choice. An agent that knows where it runs takes only what is meant for it.
    """

    namespace: Name = ""
    pod_uid: Name = ""


class Intent(Wire, frozen=True, kw_only=True):
    """Body of PUT /intent. `issued` and `expires` are Unix seconds; `signature` is Ed25519, base64, over `signing.payload`."""

    uid: Name
    generation: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    issued: Count
    expires: Count
    spec: dict[str, Any]
    signature: Annotated[str, Meta(max_length=256)] = ""


class IntentStatus(enum.StrEnum):
    """What became of an intent that was offered; the first two mean that the agent holds it."""

    ACCEPTED = "accepted"
    UNCHANGED = "unchanged"
    STALE = "stale"
    EXPIRED = "expired"
    FORGED = "forged"
    INVALID = "invalid"


class IntentAnswer(Wire, frozen=True, kw_only=True):
    """Answer of PUT /intent: the verdict, and uid and generation of the intent in force afterwards (empty and 0 for none)."""

    status: IntentStatus
    uid: Name
    generation: Count
    reason: Annotated[str, Meta(max_length=1024)] = ""


class ModelStatus(enum.StrEnum):
    """What became of the bytes of a model that were offered; the first two mean that the agent holds it."""

    HELD = "held"
    UNCHANGED = "unchanged"
    NOT_WANTED = "notWanted"
    REFUSED = "refused"


class ModelAnswer(Wire, frozen=True, kw_only=True):
    """Answer of PUT /model/{sha256}: the verdict, the kind of fault as `reason`, words for people, and the digests held now."""

    status: ModelStatus
    models: Annotated[list[Sha256], Meta(max_length=MAX_MODELS_NAMED)]
    reason: Name = ""
    message: Annotated[str, Meta(max_length=1024)] = ""


class SplitReport(Wire, frozen=True, kw_only=True):
    """Target = wanted; accepted = limits in force; settled = accepted, nothing above a limit, nothing left to refill."""

    usable_bytes: Bytes
    target_emb_bytes: Bytes
    accepted_emb_bytes: Bytes
    accepted_kv_bytes: Bytes
    used_emb_bytes: Bytes
    used_kv_bytes: Bytes
    revision: Count
    settled: bool
    overage_bytes: Bytes
    refill_backlog_bytes: Bytes


class EngineReport(Wire, frozen=True, kw_only=True):
    """The engine as its agent sees it; `reason` says why it is not reachable."""

    reachable: bool
    start_id: Name = ""
    epoch: Count = 0
    name: Name = ""
    emulation: bool = False
    reason: Annotated[str, Meta(max_length=1024)] = ""


class ServingReport(Wire, frozen=True, kw_only=True):
    """Counters and gauges of the engine process `engine.startId` at `clockMs` of its clock, as capacity decisions need them."""

    clock_ms: Milliseconds
    requests: Count
    queue: Count
    in_flight: Count
    live_prefix_bytes: Bytes
    pre_infer: PreInferCounters


class AgentStatus(Wire, frozen=True, kw_only=True):
    """Answer of GET /status. Hit ratios and shares are percent of the last reporting window, None when nothing was asked.

    `limits` are those that the engine said it enforces; None until it has been told any. `draining` says that the engine was told
    to drain. `idleSeconds` is how long nothing was in flight and nothing new came, counted anew from the word to drain: 0 while
    something is in flight, None when that is not known. `models` are the digests of the models that it holds, `modelInForce` the
    one that decides, None when none does. `predictedP99Ms` and `goalP99Ms` are what the strategy expects at the split in force
    and at the one that it wants, by the last decision that weighed both.
    """

    agent_start_id: Name
    uid: Name
    generation: Count
    engine: EngineReport
    strategy_in_force: Name
    reason: Name
    message: Annotated[str, Meta(max_length=1024)]
    frozen: bool
    decisions: Count
    split: SplitReport | None = None
    emb_hit_percent: float | None = None
    kv_hit_percent: float | None = None
    p99_ms: float | None = None
    slo_percent: float | None = None
    requests_per_second: float | None = None
    serving: ServingReport | None = None
    limits: LimitsRequest | None = None
    draining: bool = False
    idle_seconds: Annotated[float, Meta(ge=0)] | None = None
    models: Annotated[tuple[Sha256, ...], Meta(max_length=MAX_MODELS_NAMED)] = ()
    model_in_force: Sha256 | None = None
    predicted_p99_ms: float | None = None
    goal_p99_ms: float | None = None


class IdleReason(enum.StrEnum):
    """Why a wait for an idle engine ended."""

    IDLE = "Idle"
    DEADLINE = "Deadline"
    ENGINE_UNREACHABLE = "EngineUnreachable"


class IdleAnswer(Wire, frozen=True, kw_only=True):
    """Answer of GET /idle: why the wait ended and after how long; `inFlight` is the last that is known, None when nothing is."""

    idle: bool
    reason: IdleReason
    waited_seconds: Annotated[float, Meta(ge=0)]
    in_flight: Count | None = None


class DecisionRecord(Wire, frozen=True, kw_only=True):
    """One decision of the split loop: what it saw, which layer decided, what clipped it, what came out."""

    sequence: Count
    clock_ms: float
    strategy: Name
    layer: Name
    reason: Name
    clips: Annotated[list[str], Meta(max_length=16)]
    from_emb_bytes: Bytes
    target_emb_bytes: Bytes
    applied: bool
    inputs: dict[str, Any]


class DecisionsAnswer(Wire, frozen=True, kw_only=True):
    """Answer of GET /decisions?after=N: records with a higher sequence, oldest first, and the cursor to ask next."""

    decisions: Annotated[list[DecisionRecord], Meta(max_length=MAX_DECISIONS)]
    next: Count


def intent_audience(raw: dict[str, Any]) -> IntentAudience:
    """Return whom an intent is for by its spec; nobody in particular where it does not say.

    Raises
    ------
    msgspec.ValidationError
        Names the field that is wrong.
    """
    return msgspec.convert(raw.get("audience", {}), IntentAudience)


def intent_spec(raw: dict[str, Any]) -> IntentSpec:
    """Return the typed spec of an intent.

    Raises
    ------
    msgspec.ValidationError
        Names the field that is wrong.
    """
    return msgspec.convert(raw, IntentSpec)
