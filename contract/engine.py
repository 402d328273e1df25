"""Engine contract v1: what an engine tells about its caches, and how its EMB/KV split is changed while it serves.

HTTP/1.1 with JSON bodies under /gr/v1. Counters only grow for one `startId`; a new `startId` means a new process, a new
`epoch` means emptied caches. A split change names the process it is meant for and a revision; the answer always carries the
split in force, so that a caller which lost its memory can adopt it. docs/contract.md explains the calls in order.
"""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from contract.histogram import LatencyHistogram

VERSION = "v1"
PREFIX = "/gr/v1"
CURSOR_HEADER = "x-gr-cursor"
LOST_HEADER = "x-gr-lost"
MAX_PRE_INFER_SLOTS = 4096
"""Most prefixes at once that an instance may be asked to compute; nothing to do with the slots of a routing table."""

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 62)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e15)]
Name = Annotated[str, Meta(max_length=256)]
FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}\Z"
FileName = Annotated[str, Meta(pattern=FILE_NAME)]
UserKey = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Wire(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of all wire values: immutable, camelCase, unknown fields ignored so that versions can differ."""


class ModelIdentity(Wire, frozen=True, kw_only=True):
    """Which model an engine serves, and which embedding tables; KV state is valid for one version of both."""

    name: Name
    version: Name
    emb_version: Name = ""


class Sampling(Wire, frozen=True, kw_only=True):
    """One in how many users and rows is sampled (by key)."""

    users_one_in: Annotated[int, Meta(ge=1, le=1 << 20)]
    rows_one_in: Annotated[int, Meta(ge=1, le=1 << 20)]


class Describe(Wire, frozen=True, kw_only=True):
    """Answer of GET /describe: what this engine is and what may be resized online.

    `samplesRing` names a file beside the engine's Unix socket that holds the access samples too, see `contract.ring`; None where
    GET /samples is the only way to them.

    `refillBlocksServing` says that nothing is served while a grown cache is filled; agents then move slowly and hold in bursts.
    """

    contract_version: str
    engine: Name
    emulation: bool
    start_id: Name
    epoch: Count
    model: ModelIdentity
    pool_bytes: Bytes
    granule_bytes: Annotated[int, Meta(ge=1, le=1 << 40)]
    link_bytes_per_second: Annotated[int, Meta(ge=1, le=1 << 62)]
    kv_bytes_per_token: Annotated[int, Meta(ge=1, le=1 << 40)]
    emb_row_bytes: Annotated[int, Meta(ge=1, le=1 << 40)]
    resizable: Annotated[list[str], Meta(max_length=8)]
    key_kinds: Annotated[list[str], Meta(max_length=8)]
    tiers: Annotated[list[str], Meta(max_length=8)]
    p99_ms: Annotated[float, Meta(gt=0, le=1e9)]
    sampling: Sampling
    max_split_change_bytes: Bytes | None = None
    refill_blocks_serving: bool = False
    samples_ring: FileName | None = None


class KvCounters(Wire, frozen=True, kw_only=True):
    """Tokens of history that requests asked for, and how many each tier already held."""

    tokens_asked: Count
    tokens_hit_hbm: Count
    tokens_hit_dram: Count = 0
    tokens_hit_ssd: Count = 0


class EmbCounters(Wire, frozen=True, kw_only=True):
    """Embedding rows looked up, how many the hot cache held, and how many requests went on without, with default vectors."""

    rows_asked: Count
    rows_hit: Count
    rows_defaulted: Count = 0


class TransferBytes(Wire, frozen=True, kw_only=True):
    """Bytes moved over the host link by class, in falling priority."""

    demand: Bytes = 0
    reload: Bytes = 0
    prefetch: Bytes = 0
    refill: Bytes = 0
    offload: Bytes = 0


class Evictions(Wire, frozen=True, kw_only=True):
    """Bytes evicted from HBM by reason."""

    capacity: Bytes = 0
    resize: Bytes = 0
    invalidated: Bytes = 0
    requested: Bytes = 0


class PreInferCounters(Wire, frozen=True, kw_only=True):
    """Prefixes admitted and refused, and what became of them: ready in time, evicted unused, or late for their ranking request.

    `slotMs` is the time that all slots together were busy, so that its growth over that of the clock is the mean number of busy
    slots; None where the engine does not count it.
    """

    accepted: Count = 0
    rejected: Count = 0
    used: Count = 0
    wasted: Count = 0
    late: Count = 0
    slot_ms: Milliseconds | None = None


class WorkMs(Wire, frozen=True, kw_only=True):
    """Time spent serving, in milliseconds, split by cause; the agent measures its costs from the differences.

    `serviceSquared` is the sum of the squares of the service times, in square milliseconds.
    """

    service: Milliseconds
    service_squared: Annotated[float, Meta(ge=0, le=1e24)]
    emb_miss: Milliseconds
    kv_miss: Milliseconds


class Counters(Wire, frozen=True, kw_only=True):
    """Monotone since the start of the process."""

    requests: Count
    kv: KvCounters
    emb: EmbCounters
    bytes: TransferBytes
    evictions: Evictions
    work_ms: WorkMs
    offload_drops: Count = 0
    pre_infer: PreInferCounters = PreInferCounters()


class Gauges(Wire, frozen=True, kw_only=True):
    """At this moment: requests waiting, requests waiting or in service, bytes of prefixes not used yet."""

    queue: Count
    in_flight: Count
    live_prefix_bytes: Bytes = 0


class PoolBytes(Wire, frozen=True, kw_only=True):
    """A pair of byte counts for the two tenants of the HBM pool."""

    emb_bytes: Bytes
    kv_bytes: Bytes


class SplitState(Wire, frozen=True, kw_only=True):
    """The split in force: limits, what is used, what is still above a limit, what refill still owes."""

    revision: Count
    limits: PoolBytes
    used: PoolBytes
    overage_bytes: Bytes
    refill_backlog_bytes: Bytes
    refill_bytes_per_second: Bytes

    @property
    def settled(self) -> bool:
        """Accepted, nothing above its limit and nothing left to refill."""
        return (
            self.overage_bytes == 0
            and self.refill_backlog_bytes == 0
            and self.used.emb_bytes <= self.limits.emb_bytes
            and self.used.kv_bytes <= self.limits.kv_bytes
        )


class Observe(Wire, frozen=True, kw_only=True):
    """Answer of GET /observe. `clockMs` is the engine's own monotone clock.

    `draining` repeats what the last POST /drain asked for; None from an engine that does not say.
    """

    start_id: Name
    epoch: Count
    clock_ms: Milliseconds
    counters: Counters
    gauges: Gauges
    split: SplitState
    latency: LatencyHistogram
    draining: bool | None = None


class SplitStatus(enum.StrEnum):
    """What became of a change: in force, accepted and waiting for memory in use, or refused (older, foreign, impossible)."""

    APPLIED = "applied"
    DEFERRED = "deferred"
    STALE = "stale"
    CONFLICT = "conflict"
    UNSUPPORTED = "unsupported"


class SplitRequest(Wire, frozen=True, kw_only=True):
    """Body of PUT /split. `revision` is the one in force plus one; the same revision and value gives the same answer."""

    start_id: Name
    revision: Count
    emb_bytes: Bytes
    kv_bytes: Bytes
    refill_bytes_per_second: Bytes


class SplitAnswer(Wire, frozen=True, kw_only=True):
    """Answer of PUT /split: the status, and always the split in force; `reason` is empty only when it was applied."""

    status: SplitStatus
    split: SplitState
    start_id: Name
    reason: Annotated[str, Meta(max_length=1024)] = ""


class LimitsRequest(Wire, frozen=True, kw_only=True):
    """Body of PUT /limits: capacity for pre-inference and for the tiers below HBM."""

    revision: Count
    pre_infer_slots: Count
    pre_infer_bytes: Bytes
    host_bytes: Bytes = 0
    ssd_bytes: Bytes = 0


class LimitsAnswer(Wire, frozen=True, kw_only=True):
    """Answer of PUT /limits: the status, and always the limits in force."""

    status: SplitStatus
    limits: LimitsRequest
    reason: Annotated[str, Meta(max_length=1024)] = ""


class ItemPopularity(Wire, frozen=True, kw_only=True):
    """For emulations only: how the rows of a request are drawn (Zipf exponent over a catalogue of rows)."""

    exponent: Annotated[float, Meta(gt=0, lt=4)]
    catalog_rows: Annotated[int, Meta(ge=1, le=1 << 40)]
    offset: Count = 0


class RankRequest(Wire, frozen=True, kw_only=True):
    """Body of POST /rank.

    `arrivalMs` is the arrival stamp of a replayed trace on the engine's clock (emulations queue by it; others ignore it).
    `rowsPerToken` and `itemPopularity` stand for item ids where an emulation draws the rows itself, seeded by `requestId`.
    """

    request_id: Name
    user_key: UserKey
    model_version: Name
    history_tokens: Annotated[int, Meta(ge=0, le=1 << 24)]
    candidates: Annotated[int, Meta(ge=1, le=1 << 20)]
    arrival_ms: Milliseconds | None = None
    rows_per_token: Annotated[int, Meta(ge=0, le=1024)] = 1
    item_popularity: ItemPopularity | None = None


class RankAnswer(Wire, frozen=True, kw_only=True):
    """Where the time of one request went, in milliseconds, and what the caches held for it."""

    request_id: Name
    latency_ms: Milliseconds
    queue_ms: Milliseconds
    service_ms: Milliseconds
    kv_tokens_hit: Count
    emb_rows_asked: Count
    emb_rows_missed: Count


class PreInferRequest(Wire, frozen=True, kw_only=True):
    """Body of POST /pre-infer: compute the prefix of a user who will be ranked soon; `arrivalMs` as in RankRequest."""

    request_id: Name
    user_key: UserKey
    model_version: Name
    history_tokens: Annotated[int, Meta(ge=0, le=1 << 24)]
    arrival_ms: Milliseconds | None = None


class PreInferAnswer(Wire, frozen=True, kw_only=True):
    """202 when accepted (or already resident); 429 with a reason above the slots or bytes."""

    accepted: bool
    resident: bool = False
    reason: Annotated[str, Meta(max_length=1024)] = ""


class UsersRequest(Wire, frozen=True, kw_only=True):
    """Body of POST /prefetch and POST /evict."""

    user_keys: Annotated[list[UserKey], Meta(max_length=4096)]


class UsersAnswer(Wire, frozen=True, kw_only=True):
    """How many of the users were there, and the bytes of their state."""

    affected: Count
    bytes: Bytes


class InvalidateRequest(Wire, frozen=True, kw_only=True):
    """Body of POST /invalidate: drop what was computed by another model or embedding version, or `everything`.

    One of the three must be given: unknown fields are ignored, so a misspelt one would else empty every cache.
    """

    model_version: Name | None = None
    emb_version: Name | None = None
    everything: bool = False


class DrainRequest(Wire, frozen=True, kw_only=True):
    """Body of POST /drain: `draining` false takes a drain back; no body at all asks for a drain.

    Only send false to an engine that was told to drain: one that reads no body takes any call for a drain.
    """

    draining: bool = True


class DrainAnswer(Wire, frozen=True, kw_only=True):
    """Answer of POST /drain: whether it drains now, and how many requests are still to be answered."""

    draining: bool
    in_flight: Count


class ReadyAnswer(Wire, frozen=True, kw_only=True):
    """Answer of GET /ready: not ready has at least one reason."""

    ready: bool
    reasons: Annotated[list[str], Meta(max_length=16)] = []
