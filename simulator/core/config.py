"""What one emulated instance is made of: pool, first split, accelerator, popularity, sampling, limits."""

from dataclasses import dataclass, field

from contract.engine import ItemPopularity, ModelIdentity, Sampling
from simulator.core.physics import DEMO_ACCELERATOR, ServiceModel

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class InstanceConfig:
    """One GR instance.

    Parameters
    ----------
    pool_bytes : int
        HBM that the two caches share.
    emb_percent : int
        Share of the pool that EMB starts with; the rest is KV.
    p99_ms : float
        SLO; an edge of the latency histogram.
    model : ModelIdentity
    service : ServiceModel
        Accelerator and model constants.
    popularity : ItemPopularity
        Used for requests that bring none, and for the warm start.
    sampling : Sampling
        One row in `rows_one_in` is simulated and reported; one user in `users_one_in` is reported (all are simulated).
    granule_bytes, page_tokens : int
    max_split_change_bytes : int, optional
        Largest change of embBytes that one revision may ask for.
    defer_shrinks_ms : float
        Holds every shrink of the KV cache back this long, for tests of callers.
    pre_infer_slots : int
    pre_infer_bytes : int, optional
        Bound of live prefixes; a quarter of the pool when absent.
    load_behind_percent : int, optional
        A request of whose rows at least this percent hit does not wait for the rest: it goes on with default vectors, and the
        rows are loaded behind it (HugeCTR's `hit_rate_threshold`). Every request waits when absent.
    host_bytes, ssd_bytes : int
        Tiers below HBM: what this process has, and their limits at the start; 0 is no tier.
    ssd_bytes_per_second : int
        Rate at which the SSD is read.
    reload_fixed_ms : float
        Fixed cost of loading one user's state from a lower tier.
    refill_yields : bool
        Whether a refill gets only what demand and reload leave of the link. Otherwise its rate is set aside for it, and slows
        them while it lasts.
    refill_blocks_serving : bool
        Whether no request begins before an ordered refill is over; the refill has the link to itself then.
    offload_queue_bytes : int, optional
        Most that may wait for the link to the host. A user that HBM evicts while there is no room for it is dropped, counted, and
        computed anew when it comes back; without a bound when absent.
    max_rows_per_request : int
        A request asking for more is refused, so that a hostile one cannot exhaust memory.
    """

    pool_bytes: int = 4 * GIB
    emb_percent: int = 50
    p99_ms: float = 100.0
    model: ModelIdentity = field(default_factory=lambda: ModelIdentity(name="hstu", version="1", emb_version="1"))
    service: ServiceModel = DEMO_ACCELERATOR
    popularity: ItemPopularity = field(default_factory=lambda: ItemPopularity(exponent=0.95, catalog_rows=10_000_000))
    sampling: Sampling = field(default_factory=lambda: Sampling(users_one_in=1, rows_one_in=64))
    granule_bytes: int = 16 * MIB
    page_tokens: int = 32
    max_split_change_bytes: int | None = None
    defer_shrinks_ms: float = 0.0
    pre_infer_slots: int = 4
    pre_infer_bytes: int | None = None
    load_behind_percent: int | None = None
    host_bytes: int = 0
    ssd_bytes: int = 0
    ssd_bytes_per_second: int = 6_000_000_000
    reload_fixed_ms: float = 0.0
    refill_yields: bool = False
    refill_blocks_serving: bool = False
    offload_queue_bytes: int | None = None
    max_rows_per_request: int = 4_000_000

    def __post_init__(self) -> None:
        if not 0 <= self.emb_percent <= 100:
            raise ValueError(f"emb_percent: {self.emb_percent} is not within 0..100")
        if self.pool_bytes < self.granule_bytes:
            raise ValueError(f"pool_bytes: {self.pool_bytes} is below one granule of {self.granule_bytes}")
        if self.load_behind_percent is not None and not 0 <= self.load_behind_percent <= 100:
            raise ValueError(f"load_behind_percent: {self.load_behind_percent} is not within 0..100")
        if self.refill_yields and self.refill_blocks_serving:
            raise ValueError("refill_blocks_serving: a refill that yields blocks nobody")
        if self.offload_queue_bytes is not None and self.offload_queue_bytes < 0:
            raise ValueError(f"offload_queue_bytes: {self.offload_queue_bytes} is below 0")
        if self.ssd_bytes and not self.host_bytes:
            raise ValueError("ssd_bytes: the SSD is filled from the host tier, so host_bytes must be above 0")

    @property
    def first_emb_bytes(self) -> int:
        """EMB limit at the start, rounded down to whole granules."""
        return self.pool_bytes * self.emb_percent // 100 // self.granule_bytes * self.granule_bytes
