"""Values of the split policy: what was measured, what is wanted, what was decided and why.

Every value is a frozen msgspec struct, so a decision with its inputs goes to JSON and back without loss and replaying the
record gives the same decision. All percents are points of `usable_bytes`; EMB is the side that is named, KV is the rest.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.allocation.recovery import BurstWatch, Phase, Recovery
from policies.allocation.residual import Residual
from policies.measurement import Measurement, Missing, NotANumber, Stale


class Strategy(StrEnum):
    """How the wanted split is found."""

    STATIC = "Static"
    HILL_CLIMB = "HillClimb"
    MISS_RATIO_CURVE = "MissRatioCurve"
    LEARNED = "Learned"
    TWO_POOL_ARC = "TwoPoolArc"
    """A baseline for comparison; no policy object offers it."""


class Enforcement(StrEnum):
    """Whether a decision is carried out (Active) or only recorded (Shadow)."""

    SHADOW = "Shadow"
    ACTIVE = "Active"


class Layer(StrEnum):
    """Which layer of the policy chose the split."""

    HOLD = "Hold"
    FALLBACK = "Fallback"
    STATIC = "Static"
    HILL_CLIMB = "HillClimb"
    ANCHOR = "Anchor"
    BASE = "Base"
    RESIDUAL = "Residual"
    TWO_POOL_ARC = "TwoPoolArc"


class Reason(StrEnum):
    """Why the decision is what it is; a closed list that conditions and metrics may show."""

    # Nothing moves:
    NO_INTENT = "NoIntent"
    PAUSED = "Paused"
    SECOND_WRITER = "SecondWriter"
    NOT_RESIZABLE = "NotResizable"
    MISSING_DATA = "MissingData"
    STALE_DATA = "StaleData"
    NOT_A_NUMBER = "NotANumber"
    POOL_TOO_SMALL = "PoolTooSmall"
    ENGINE_DEFERRING = "EngineDeferring"
    REFILL_BACKLOG = "RefillBacklog"
    IDLE = "Idle"
    ESTIMATE_NOT_TRUSTED = "EstimateNotTrusted"
    BURST_FREEZE = "BurstFreeze"
    # A strategy answered:
    STATIC_TARGET = "StaticTarget"
    ANCHOR_TARGET = "AnchorTarget"
    HILL_STEP = "HillStep"
    HILL_TOP = "HillTop"
    LEARNED_TARGET = "LearnedTarget"
    GHOST_HITS = "GhostHits"
    # Strategy Learned, and the anchor answered in its place:
    MODEL_MISSING = "ModelMissing"
    OUT_OF_DISTRIBUTION = "OutOfDistribution"


class Clip(StrEnum):
    """What changed the wanted split on its way to the target, in the order of application."""

    CLAMP = "Clamp"
    STANDSTILL = "Standstill"
    BOUNDS = "Bounds"
    MINIMUM_GRANULE = "MinimumGranule"
    DEADBAND = "Deadband"
    SLEW = "Slew"
    GRANULE = "Granule"


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Where the EMB share may lie, in points of usable."""

    min_emb_percent: float = 5.0
    max_emb_percent: float = 95.0
    fallback_emb_percent: float = 50.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """How fast and how readily the split moves (points of usable per second; points; milliseconds)."""

    max_percent_per_second: float = 2.0
    deadband_percent: float = 2.0
    interval_ms: float = 1000.0


class Assumed(StrEnum):
    """A price that stands on a prior because no such miss has been measured yet."""

    EMB_MISS_ROW = "EmbMissRow"
    KV_MISS_TOKEN = "KvMissToken"


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a miss costs and how much is asked for; measured, but for the prices named in `assumed`.

    Attributes
    ----------
    ms_per_emb_miss_row
        Service time added by one missed embedding row.
    ms_per_kv_miss_token
        Service time added by one history token whose attention state must be computed again.
    emb_rows_per_kv_miss_token
        Embedding rows that such a token asks for again (this couples the two caches).
    base_service_ms
        Mean service time of a request when everything hits.
    service_variance_ms2
        Variance of that base part.
    arrival_per_s
        Requests per second.
    emb_rows_per_request
        Rows asked per request, without those asked again because of KV misses.
    kv_tokens_per_request
        History tokens asked per request.
    assumed
        Prices that are priors, because their cache has never missed.
    """

    ms_per_emb_miss_row: float
    ms_per_kv_miss_token: float
    emb_rows_per_kv_miss_token: float
    base_service_ms: float
    service_variance_ms2: float
    arrival_per_s: float
    emb_rows_per_request: float
    kv_tokens_per_request: float
    assumed: tuple[Assumed, ...] = ()


class SplitInForce(msgspec.Struct, frozen=True, kw_only=True, tag="split"):
    """The split as the engine reports it: limits accepted and bytes used, both per side."""

    start_id: str
    revision: int
    emb_bytes: int
    kv_bytes: int
    emb_used_bytes: int = 0
    kv_used_bytes: int = 0
    overage_bytes: int = 0
    refill_backlog_bytes: int = 0

    @property
    def deferring(self) -> bool:
        """Whether a side still uses more than its limit, so that nothing may grow."""
        return self.overage_bytes > 0 or self.emb_used_bytes > self.emb_bytes or self.kv_used_bytes > self.kv_bytes


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent measured over the last interval; counters are deltas over `interval_ms`.

    `resizable` is False once the engine answered `unsupported`; `second_writer` comes from the apply state. The sizes of a row
    and of a token's state are 0 where nobody said them; only the two-pool ARC rule asks.
    """

    interval_ms: float
    usable_bytes: int
    granule_bytes: int
    split: SplitInForce | Stale | Missing | NotANumber
    requests: Measurement
    kv_tokens_asked: Measurement
    kv_tokens_hit: Measurement
    emb_rows_asked: Measurement
    emb_rows_hit: Measurement
    demand_bytes: Measurement
    p99_ms: Measurement
    utilisation: Measurement
    second_writer: bool = False
    resizable: bool = True
    emb_row_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A miss-ratio curve with the facts that say how far to trust it.

    The two arrays are packed as little-endian float64 (base64 in JSON): exact, compact and free to unpack.

    Attributes
    ----------
    packed_capacity_bytes, packed_miss_ratio
        The curve's support (rising, bytes) and its value there (falling, 0..1; weighted by bytes).
    samples
        Sampled accesses behind the curve, after decay.
    age_ms
        Time since the last sampled access.
    window_ms
        Time since the first one: reuse times beyond it cannot have been seen.
    memory_ms
        Time constant with which the estimate forgets: watching longer than that makes it no riper.
    volatility
        Mean absolute difference between a quick and a slow estimate, in miss ratio; 0 is a steady stream.
    size_cv2
        Squared coefficient of variation of the bytes asked per access.

    Raises
    ------
    ValueError
        If the two arrays are not as long as each other, or empty.
    """

    packed_capacity_bytes: bytes
    packed_miss_ratio: bytes
    samples: float
    age_ms: float
    window_ms: float
    volatility: float
    size_cv2: float
    memory_ms: float = 60_000.0

    def __post_init__(self) -> None:
        size = len(self.packed_capacity_bytes)
        if size != len(self.packed_miss_ratio) or size == 0 or size % 8:
            raise ValueError("a curve has as many miss ratios as capacities, eight bytes each, and at least one")

    @property
    def capacity_bytes(self) -> NDArray[np.float64]:
        """Capacities at which the curve is known, rising, in bytes; read-only."""
        return np.frombuffer(self.packed_capacity_bytes, dtype="<f8")

    @property
    def miss_ratio(self) -> NDArray[np.float64]:
        """Miss ratio at each of `capacity_bytes`; read-only."""
        return np.frombuffer(self.packed_miss_ratio, dtype="<f8")

    def at(self, capacities_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Miss ratio at the capacities (bytes), linear between known points, flat beyond the ends."""
        return np.interp(capacities_bytes, self.capacity_bytes, self.miss_ratio)


class EstimatorView(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimators know at the moment of a decision; None where nothing has been seen yet."""

    emb: Curve | None = None
    kv: Curve | None = None
    costs: Costs | None = None


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What strategy Learned runs, and how far it may go.

    Attributes
    ----------
    model_sha256
        Digest of the model; None while there is none to run.
    clamp_percent
        Points of usable to either side of the anchor, on a steady stream.
    residual
        The correction on top of the model.
    """

    model_sha256: str | None = None
    clamp_percent: float = 10.0
    residual: Residual = Residual()


class AllocationIntent(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted policy of one instance, resolved from its HBMPolicy; `refill_blocking` is what the engine says of itself."""

    strategy: Strategy = Strategy.MISS_RATIO_CURVE
    enforcement: Enforcement = Enforcement.ACTIVE
    bounds: Bounds = Bounds()
    step: Step = Step()
    learned: Learned = Learned()
    recovery: Recovery = Recovery()
    paused: bool = False
    freeze_on_backlog: bool = True
    refill_blocking: bool = False


class AllocationState(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision needs to remember of the ones before; the agent keeps it in memory only.

    Attributes
    ----------
    start_id
        Engine process the rest belongs to; a new one starts over, except for the goal.
    model_sha256
        Model that `last_action` and the residual belong to; another one starts those over.
    decided_at_ms
        When the last decision was made.
    target_emb_bytes
        The last target.
    goal_emb_bytes
        The smoothed anchor; None until the first trusted estimate, which is then taken over as it is.
    usable_bytes
        What the goal is a part of; when it changes, the goal keeps its share. 0 before the first decision.
    moving
        Whether a move is under way: the deadband applies only to its start.
    slew_credit_bytes
        Unused part of the slew limit, so that slow limits still add up to whole granules.
    burst
        What the burst detector remembers.
    residual_points
        The correction on top of the model, in points of usable.
    last_action
        The model's last answer, -1..1.
    """

    start_id: str = ""
    decided_at_ms: float | None = None
    target_emb_bytes: int | None = None
    goal_emb_bytes: float | None = None
    usable_bytes: int = 0
    moving: bool = False
    slew_credit_bytes: float = 0.0
    burst: BurstWatch = BurstWatch()
    model_sha256: str = ""
    residual_points: float = 0.0
    last_action: float = 0.0


class DecisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All arguments of `strategy.decide`, kept with the decision for replay."""

    observation: Observation
    view: EstimatorView
    intent: AllocationIntent | None
    state: AllocationState
    now_ms: float


class GuestWord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the trained model said at one decision.

    Attributes
    ----------
    action
        Its answer, -1..1.
    emb_bytes
        The split that this asks for, after bounds and clamp.
    p99_ms
        Predicted P99 there.
    clamped
        Whether the clamp changed it.
    residual_points
        The correction that was added, in points of usable.
    outlier
        Name of the first feature outside what training saw; empty for none. The anchor decides then.
    """

    action: float
    emb_bytes: float
    p99_ms: float
    clamped: bool
    residual_points: float
    outlier: str = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: the split to go to now, who chose it, why, and from what.

    Attributes
    ----------
    target_emb_bytes
        EMB bytes to apply now; None where not even the split in force is known.
    goal_emb_bytes
        Where the layer wants to end up, before deadband, slew and granules; None on a hold.
    may_apply
        Whether the agent may send a split at all (False in Shadow and on every freeze but the engine's own pace).
    predicted_p99_ms, goal_p99_ms
        Predicted P99 at the split in force and at the goal; None where nothing was predicted.
    phase
        Where the load stands: calm, in a burst, or recovering from one.
    refill_link_percent
        Share of the host link that refill may take until the next decision; None leaves it to the policy's cap.
    guest
        What the trained model said; None where none ran.
    kernel
        What evaluated the path; the same one replays to the same bits.
    """

    target_emb_bytes: int | None
    goal_emb_bytes: int | None
    layer: Layer
    reason: Reason
    may_apply: bool
    clips: tuple[Clip, ...] = ()
    predicted_p99_ms: float | None = None
    goal_p99_ms: float | None = None
    phase: Phase = Phase.CALM
    refill_link_percent: float | None = None
    guest: GuestWord | None = None
    kernel: str = ""
    inputs: DecisionInputs


def encode_decision(decision: Decision) -> bytes:
    """Return the decision, inputs included, as one line of JSON."""
    return msgspec.json.encode(decision)


def decode_decision(line: bytes | str) -> Decision:
    """Read what `encode_decision` wrote.

    Raises
    ------
    msgspec.ValidationError
        If the text is JSON but not a decision.
    msgspec.DecodeError
        If it is not JSON.
    """
    return msgspec.json.decode(line, type=Decision)
