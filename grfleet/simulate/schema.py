"""The form of `result.json`, as types: what docs/simulator.md lists, field by field, and a test holds against it.

Latencies are in milliseconds, sizes in bytes, shares in percent; null means that nothing was asked of which a figure could be
made. The version goes up when a field changes its meaning or goes; new fields may come without.
"""

from typing import Any

import msgspec

SCHEMA_VERSION = 1


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a result, in camelCase."""


class Versions(_Part, frozen=True, kw_only=True):
    grfleet: str
    python: str
    numpy: str
    numba: str


class Trace(_Part, frozen=True, kw_only=True):
    name: str
    digest: str
    requests: int
    users: int
    duration_ms: float
    requests_per_second: float
    manifest: dict[str, Any]


class Pool(_Part, frozen=True, kw_only=True):
    name: str
    instances: int
    pool_bytes: int
    host_bytes: int
    ssd_bytes: int
    granule_bytes: int
    page_tokens: int
    kv_bytes_per_token: int
    emb_row_bytes: int
    max_history_tokens: int
    slo_ms: float
    good_percent: float
    accelerator: str
    layers: int
    width: int
    heads: int
    head_dim: int


class Policy(_Part, frozen=True, kw_only=True):
    name: str
    strategy: str
    source: str
    holds: bool
    first_emb_percent: int
    min_emb_percent: int
    max_emb_percent: int
    fallback_emb_percent: int
    max_percent_per_second: int
    deadband_percent: int
    interval_ms: int
    refill_link_percent: int


class PreInference(_Part, frozen=True, kw_only=True):
    min_prefix_tokens: int
    budget_ms: float
    safety_percent: float
    prefix_bytes: int
    slots: int
    max_per_second: float
    life_ms: float


class Batching(_Part, frozen=True, kw_only=True):
    max_requests: int
    window_ms: float


class Routing(_Part, frozen=True, kw_only=True):
    name: str
    max_moved_percent: int
    window_seconds: int
    warm_seconds: int
    warm_hit_percent: int


class Life(_Part, frozen=True, kw_only=True):
    name: str
    joins_ms: float
    drains_ms: float | None
    dies_ms: float | None
    noticed_ms: float


class Hits(_Part, frozen=True, kw_only=True):
    hbm: float | None
    host: float | None
    ssd: float | None


class Stage(_Part, frozen=True, kw_only=True):
    stage: str
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    counts: list[int]


class LengthBucket(_Part, frozen=True, kw_only=True):
    from_tokens: int
    below_tokens: int | None
    requests: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    slo_percent: float | None
    counts: list[int]


class Prediction(_Part, frozen=True, kw_only=True):
    instances: int
    decisions: int
    predicted_p99_ms: float
    measured_p99_ms: float
    error_percent: float | None


class Moves(_Part, frozen=True, kw_only=True):
    count: int
    moved_bytes: int
    evicted_bytes: int
    last_emb_percent: float


class Waste(_Part, frozen=True, kw_only=True):
    resize_evicted_bytes: int
    refill_bytes: int
    pre_infer_accepted: int
    pre_infer_used: int
    pre_infer_late: int
    pre_infer_wasted: int
    pre_infer_busy_ms: int


class Window(_Part, frozen=True, kw_only=True):
    from_ms: float
    requests: int
    p99_ms: float | None
    slo_percent: float | None
    min_emb_percent: float
    mean_emb_percent: float
    max_emb_percent: float
    moves: int


class OfInstance(_Part, frozen=True, kw_only=True):
    name: str
    requests: int
    p99_ms: float | None
    utilisation_percent: float | None
    kv_hbm_hit_percent: float | None
    emb_hit_percent: float | None
    last_emb_percent: float


class Figures(_Part, frozen=True, kw_only=True):
    digest: str
    requests: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    slo_percent: float | None
    slo_met: bool | None
    utilisation_percent: float | None
    kv_hit_percent: Hits
    emb_hit_percent: float | None
    stages: list[Stage]
    by_history_length: list[LengthBucket]
    by_instance: list[OfInstance]
    bytes_by_class: dict[str, int]
    counts: dict[str, int]
    moves: Moves
    decisions: dict[str, int]
    prediction: Prediction | None
    waste: Waste
    windows: list[Window]
    doubts: list[str]


class Difference(_Part, frozen=True, kw_only=True):
    p50_percent: float | None
    p99_percent: float | None
    p999_percent: float | None
    mean_percent: float | None
    slo_points: float | None
    utilisation_points: float | None
    kv_hbm_hit_points: float | None
    emb_hit_points: float | None


class Simulated(_Part, frozen=True, kw_only=True):
    """`result.json` of `grfleet simulate`."""

    schema_version: int
    command: str
    digest: str
    trusted: bool
    not_trusted_because: list[str]
    doubts: list[str]
    assumptions: list[str]
    versions: Versions
    seed: int
    level: str
    trace: Trace
    pool: Pool
    policy: Policy
    pre_inference: PreInference | None
    load_behind_percent: int | None
    batching: Batching | None
    offload_queue_bytes: int | None
    ttl_ms: float | None
    emb_version_ms: float | None
    max_emb_lag: int | None
    routing: Routing | None
    lives: list[Life]
    measured_from_ms: float
    histogram_edges_ms: list[float]
    run: Figures
    baseline_policy: Policy
    baseline: Figures
    difference: Difference


class OracleWindow(_Part, frozen=True, kw_only=True):
    from_ms: float
    requests: int
    counted: bool
    best_emb_percent: int | None
    planned_emb_percent: int | None
    best_p99_ms: float | None
    planned_p99_ms: float | None
    static_p99_ms: float | None
    fallback_p99_ms: float | None


class Objective(_Part, frozen=True, kw_only=True):
    static_emb_percent: int
    static_ms: float | None
    best_ms: float | None
    planned_ms: float | None
    gain_percent: float | None
    planned_gain_percent: float | None


class Noise(_Part, frozen=True, kw_only=True):
    regret_percent: float | None
    optimism_percent: float | None
    confirmed_gain_percent: float | None


class SplitFigure(_Part, frozen=True, kw_only=True):
    emb_percent: int
    p99_ms: float | None


class OracleFound(_Part, frozen=True, kw_only=True):
    """`result.json` of `grfleet oracle`."""

    schema_version: int
    command: str
    digest: str
    trusted: bool
    not_trusted_because: list[str]
    doubts: list[str]
    assumptions: list[str]
    versions: Versions
    seed: int
    trace: Trace
    pool: Pool
    window_ms: float
    counted_windows: int
    fallback_emb_percent: int
    fallback_p99_ms: float | None
    fallback_objective_ms: float | None
    fleet: Objective
    by_instance: list[Objective]
    noise: Noise
    splits: list[SplitFigure]
    windows: list[OracleWindow]


def encoded(result: Simulated | OracleFound) -> str:
    """Return a result as the JSON text of `result.json`."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n"
