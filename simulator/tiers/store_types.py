"""Sizes, outcomes and counts of the tiered store."""

from dataclasses import dataclass, field

from simulator.physics.transfer import TransferCost
from simulator.tiers.ssd import SsdCost


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Sizes of one instance's tiers.

    Parameters
    ----------
    users : int
        Users are numbered below this.
    bytes_per_token : int
    hbm_bytes, dram_bytes, ssd_bytes : int
        Limits; 0 for a tier that is not there.
    link : TransferCost
        Between HBM and host memory.
    page_tokens, chunk_tokens : int
        Granules of HBM, and of host memory and SSD.
    hbm_policy, host_policy : str
        Names in `simulator.tiers.replaying.POLICIES`.
    promoted_percent : int
        Most of host memory that promoted state may take before it is used, in percent.
    offload_limit_tokens, write_buffer_tokens : int
        Of the off-load queue (`OffloadQueue`).
    copiers : int
        Off-load ranges that are on the link at a time.
    ssd : SsdCost
    exclusive : bool
        Whether a user that HBM holds is nowhere else, and is copied when it leaves HBM. Otherwise it is copied as it grows, and
        leaving HBM costs only the tail below a chunk.
    announced_ms : float, optional
        Announcements that were neither served nor withdrawn for so long are dropped; None keeps them, and what they protect.

    Raises
    ------
    ValueError
        For sizes that cannot be.
    """

    users: int
    bytes_per_token: int
    hbm_bytes: int
    dram_bytes: int
    link: TransferCost
    ssd_bytes: int = 0
    page_tokens: int = 32
    chunk_tokens: int = 1024
    hbm_policy: str = "lru"
    host_policy: str = "look-ahead"
    promoted_percent: int = 33
    offload_limit_tokens: int = 1 << 20
    write_buffer_tokens: int = 0
    copiers: int = 8
    ssd: SsdCost = field(default_factory=SsdCost)
    exclusive: bool = True
    announced_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("users", "bytes_per_token", "page_tokens", "chunk_tokens", "copiers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        for name in ("hbm_bytes", "dram_bytes", "ssd_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} must not be negative")
        if self.announced_ms is not None and not self.announced_ms > 0:
            raise ValueError(f"announced_ms: {self.announced_ms} must be above 0")
        if not 0 <= self.promoted_percent <= 100:
            raise ValueError(f"promoted_percent: {self.promoted_percent} lies outside 0..100")

    @property
    def promoted_limit_bytes(self) -> int:
        return self.dram_bytes * self.promoted_percent // 100


@dataclass(frozen=True, kw_only=True)
class Served:
    """Where the history of one request came from, in tokens; the four add up to the history.

    `wait_ms` is what passes until state on SSD is in host memory; loading it from there to HBM comes on top and is the caller's
    (`simulator.tiers.preload`), `reload_tokens` says how much.
    """

    hbm_tokens: int
    dram_tokens: int
    ssd_tokens: int
    computed_tokens: int
    wait_ms: float = 0.0

    @property
    def reload_tokens(self) -> int:
        return self.dram_tokens + self.ssd_tokens


@dataclass(slots=True)
class StoreCounts:
    """What only grows. Bytes by way; promotions by fate; `demotions_lost` users found no room on the SSD or its write lane."""

    promoted: int = 0
    promoted_used: int = 0
    promoted_late: int = 0
    promoted_wasted: int = 0
    ssd_read_bytes: int = 0
    ssd_written_bytes: int = 0
    offloaded_bytes: int = 0
    demotions_lost: int = 0
    tail_tokens_lost: int = 0
    expired: int = 0
    announcements_expired: int = 0
    invalidated: int = 0
    peak_dram_bytes: int = 0
    peak_promoted_bytes: int = 0
