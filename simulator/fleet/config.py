"""What a fleet is made of, and how closely it is looked at."""

import math
from dataclasses import dataclass
from enum import StrEnum

from simulator.core.physics import ServiceModel
from simulator.physics.batching import BatchRules

MIB = 1 << 20
MAX_INSTANCES = 4096


class Level(StrEnum):
    """How embedding rows are modelled; users, queue and link are exact at every level.

    EXACT looks at each row of each request. SAMPLED simulates one row in 256, with the most popular rows by formula; SAMPLED_64
    one in 64 of all rows. REDUCED has no rows: hit ratios come from Che's approximation, and follow a resize by its fill time.
    """

    EXACT = "exact"
    SAMPLED = "sampled"
    SAMPLED_64 = "sampled-64"
    REDUCED = "reduced"


class RefillMode(StrEnum):
    """What happens to room that a growing EMB cache has won.

    LAZY: misses fill it. THROTTLED: rows evicted last come back under a cap, which slows gathers meanwhile. BLOCKING: they come
    back at once at the link's full rate, and nothing is served meanwhile.
    """

    LAZY = "lazy"
    THROTTLED = "throttled"
    BLOCKING = "blocking"


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Equal instances behind one routing table.

    Parameters
    ----------
    instances : int
    pool_bytes : int
        Usable HBM of one instance, shared by its two caches.
    emb_percent : int
        First split: the EMB share of the pool in percent; the rest is KV.
    service : ServiceModel
        Accelerator and model constants (`simulator.core.physics`, or a profile of `simulator.physics`).
    slo_ms : float
        A request is good when its latency is at most this.
    page_tokens : int
        A user's state takes whole pages of this many tokens.
    granule_bytes : int
        Splits are whole granules.
    host_bytes, ssd_bytes : int
        Tiers below HBM of one instance; 0 is none. What HBM evicts goes to the host, what the host evicts to the SSD.
    ssd_bytes_per_second : int
        Rate at which the SSD is read.
    reload_fixed_ms : float
        Fixed cost of loading one user's state from a lower tier.
    load_behind_percent : int, optional
        A request of whose rows at least this percent hit goes on with default vectors while the rest is loaded behind it, which
        takes no time here; every request waits when absent. As in `simulator.core.config`.
    refill : RefillMode
    refill_link_percent : int
        Share of the link that a throttled refill may take.
    refill_yields : bool
        Whether a refill gets only what demand and reload leave of the link. Otherwise its rate is set aside for it, and slows
        them while it lasts.
    offload_queue_bytes : int, optional
        Most that may wait for the link to the host, in one instance. A user that HBM evicts while there is no room for it is
        dropped and counted; without a bound when absent. As in `simulator.core.config`.
    ttl_ms : float, optional
        State that its user did not ask for so long is not used any more; it takes room until then, or until it is evicted.
    emb_version_ms : float, optional
        A new version of the embeddings comes every so many milliseconds. State keeps the version that its first token was
        computed with, and is stale from the next one on; rows of the cache are taken as replaced in place.
    max_emb_lag : int, optional
        Versions that state may be behind; stale state is used without a bound, and counted, when absent.
    batching : BatchRules, optional
        Requests of one length bucket that arrive within a window run together, padded to the bucket's edge. Each is served alone,
        in order of arrival, when absent.

    Raises
    ------
    ValueError
        The message begins with the name of the field.
    """

    instances: int
    pool_bytes: int
    emb_percent: int
    service: ServiceModel
    slo_ms: float
    page_tokens: int = 32
    granule_bytes: int = 16 * MIB
    host_bytes: int = 0
    ssd_bytes: int = 0
    ssd_bytes_per_second: int = 6_000_000_000
    reload_fixed_ms: float = 0.0
    load_behind_percent: int | None = None
    refill: RefillMode = RefillMode.THROTTLED
    refill_link_percent: int = 5
    refill_yields: bool = False
    offload_queue_bytes: int | None = None
    ttl_ms: float | None = None
    emb_version_ms: float | None = None
    max_emb_lag: int | None = None
    batching: BatchRules | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("instances", 1, MAX_INSTANCES),
            ("emb_percent", 0, 100),
            ("page_tokens", 1, 1 << 20),
            ("granule_bytes", 1, 1 << 40),
            ("host_bytes", 0, 1 << 50),
            ("ssd_bytes", 0, 1 << 50),
            ("ssd_bytes_per_second", 1, 1 << 50),
            ("refill_link_percent", 0, 90),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name}: {value!r} is not a whole number within {least}..{most}")
        if not isinstance(self.pool_bytes, int) or not self.granule_bytes <= self.pool_bytes <= 1 << 44:
            raise ValueError(f"pool_bytes: {self.pool_bytes!r} is not within one granule ({self.granule_bytes}) and 2**44")
        if not (math.isfinite(self.slo_ms) and self.slo_ms > 0.0):
            raise ValueError(f"slo_ms: {self.slo_ms} must be positive and finite")
        if not (math.isfinite(self.reload_fixed_ms) and self.reload_fixed_ms >= 0.0):
            raise ValueError(f"reload_fixed_ms: {self.reload_fixed_ms} must be finite and not negative")
        if not isinstance(self.refill, RefillMode):
            raise ValueError(f"refill: {self.refill!r} is none of {', '.join(RefillMode)}")
        behind = self.load_behind_percent
        if behind is not None and (not isinstance(behind, int) or not 0 <= behind <= 100):
            raise ValueError(f"load_behind_percent: {behind!r} is not a whole number within 0..100")
        queue = self.offload_queue_bytes
        if queue is not None and (isinstance(queue, bool) or not isinstance(queue, int) or not 0 <= queue <= 1 << 50):
            raise ValueError(f"offload_queue_bytes: {queue!r} is not a whole number within 0..{1 << 50}")
        if queue is not None and not self.host_bytes:
            raise ValueError("offload_queue_bytes: nothing is copied where host_bytes is 0")
        self._check_age()
        if self.ssd_bytes and not self.host_bytes:
            raise ValueError("ssd_bytes: the SSD is filled from the host tier, so host_bytes must be above 0")
        if self.batching is not None and not isinstance(self.batching, BatchRules):
            raise ValueError(f"batching: {type(self.batching).__name__} is no BatchRules")
        if not isinstance(self.service, ServiceModel):
            raise ValueError(f"service: {type(self.service).__name__} is no ServiceModel")

    def _check_age(self) -> None:
        for name in ("ttl_ms", "emb_version_ms"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 1.0):
                raise ValueError(f"{name}: {value} must be finite and at least 1")
        lag = self.max_emb_lag
        if lag is not None and (isinstance(lag, bool) or not isinstance(lag, int) or not 0 <= lag <= 1 << 20):
            raise ValueError(f"max_emb_lag: {lag!r} is not a whole number within 0..{1 << 20}")
        if lag is not None and self.emb_version_ms is None:
            raise ValueError("max_emb_lag: nothing gets stale without emb_version_ms")

    @property
    def first_emb_bytes(self) -> int:
        """EMB limit at the start, rounded down to whole granules."""
        return self.pool_bytes * self.emb_percent // 100 // self.granule_bytes * self.granule_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of attention state."""
        return self.page_tokens * self.service.kv_bytes_per_token

    @property
    def refill_bytes_per_second(self) -> int:
        """Cap of a throttled refill."""
        return self.service.link_bytes_per_second * self.refill_link_percent // 100 if self.refill is RefillMode.THROTTLED else 0
