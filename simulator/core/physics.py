"""The service law: how long one ranking request keeps an accelerator busy, given what its caches held.

Compute follows the operation count of an HSTU block divided by one effective rate; missed embedding rows cross the host link
as a random gather. docs/physics.md names the source of every constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.physics.service import Work


@dataclass(frozen=True, kw_only=True)
class ServiceModel:
    """Constants of one accelerator and one model.

    Parameters
    ----------
    layers, width : int
        HSTU layers and width d (heads times head size = d).
    flops_per_second : float
        Effective rate R, that is peak times model FLOP utilisation.
    row_bytes : int
        Bytes of one embedding row.
    link_bytes_per_second : int
        Usable host-to-device bandwidth, shared by demand gathers and refill.
    gather_efficiency : float
        Share of the link that a random gather of single rows reaches.
    gather_fixed_ms, base_ms : float
        Fixed cost of a gather with at least one miss; fixed cost of each request.
    to_host_bytes_per_second : int, optional
        Rate of the other direction, which off-load takes; that of `link_bytes_per_second` when absent.
    duplex_to_device_share, duplex_to_host_share : float
        Share of its rate that a direction keeps while the other one is busy; 1 when they do not disturb each other.
    """

    layers: int
    width: int
    flops_per_second: float
    row_bytes: int
    link_bytes_per_second: int
    gather_efficiency: float
    gather_fixed_ms: float
    base_ms: float
    to_host_bytes_per_second: int | None = None
    duplex_to_device_share: float = 1.0
    duplex_to_host_share: float = 1.0

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers at two bytes an element: 2 * L * d * 2."""
        return 4 * self.layers * self.width

    def flops(self, *, history: int, candidates: int, cached: int) -> float:
        """Return the operations to rank `candidates` over `history` tokens of which `cached` lie in the KV cache.

        F(n, c, h) = L * [10 d^2 (n-h+c) + 4 d ((n-h)(h + (n-h)/2) + c n)]: projections per new token (8 d^2 for U, V, Q, K and
        2 d^2 for the output), attention per (query, key) pair.
        """
        new = history - cached
        pairs = new * (cached + new / 2) + candidates * history
        return self.layers * (10.0 * self.width * self.width * (new + candidates) + 4.0 * self.width * pairs)

    def compute_ms(self, *, history: int, candidates: int, cached: int, batch: int = 1) -> float:
        """Return milliseconds of compute for `batch` equal requests, the fixed cost included."""
        work = batch * self.flops(history=history, candidates=candidates, cached=cached)
        return self.base_ms + work / self.flops_per_second * 1e3

    def batch_ms(self, works: Sequence[Work], *, padded_tokens: int | None = None) -> float:
        """Return milliseconds of compute for requests that run together, the fixed cost included once.

        Parameters
        ----------
        works : sequence of Work
        padded_tokens : int, optional
            New tokens of the whole batch after padding, which is projected like tokens and which attention skips; none is added
            when absent, or where nothing has to be computed.

        Raises
        ------
        ValueError
            When padding would remove tokens.
        """
        tokens = sum(work.new_tokens for work in works)
        if padded_tokens is not None and padded_tokens < tokens:
            raise ValueError(f"padded_tokens: {padded_tokens} is below the {tokens} tokens of the batch")
        padded = tokens if padded_tokens is None or not tokens else padded_tokens
        projected = 10.0 * self.width * self.width * padded
        attended = 4.0 * self.width * sum(work.pairs for work in works)
        return self.base_ms + self.layers * (projected + attended) / self.flops_per_second * 1e3

    def gather_ms(self, *, missed_rows: int, link_share_taken: float = 0.0) -> float:
        """Return milliseconds to fetch missed rows while other transfers take a share (0..1) of the link."""
        if missed_rows == 0:
            return 0.0
        bandwidth = self.link_bytes_per_second * self.gather_efficiency * (1.0 - link_share_taken)
        return self.gather_fixed_ms + missed_rows * self.row_bytes / bandwidth * 1e3


#: NVIDIA L20 at batch 8, HSTU with 8 layers of width 1024: R is fitted to published bars (64 % of peak).
L20_HSTU = ServiceModel(
    layers=8,
    width=1024,
    flops_per_second=77e12,
    row_bytes=512,
    link_bytes_per_second=24_000_000_000,
    gather_efficiency=0.55,
    gather_fixed_ms=0.05,
    base_ms=0.0,
    duplex_to_device_share=0.45,
    duplex_to_host_share=0.97,
)

SLOW_DOWN = 20

#: An A100 (170 TFLOP/s effective, 24.8 GB/s of gen4 link, 55 % of it for random rows) serving a 4 x 512 HSTU with 512-byte rows,
#: **slowed down twenty times in compute and in link alike**, so that one Python core keeps up with eight of them. Ratios between
#: compute and gather are those of the accelerator; request rates are a twentieth, latencies twenty times the real ones.
DEMO_ACCELERATOR = ServiceModel(
    layers=4,
    width=512,
    flops_per_second=170e12 / SLOW_DOWN,
    row_bytes=512,
    link_bytes_per_second=24_800_000_000 // SLOW_DOWN,
    gather_efficiency=0.55,
    gather_fixed_ms=0.05 * SLOW_DOWN,
    base_ms=0.1 * SLOW_DOWN,
    duplex_to_device_share=0.45,
    duplex_to_host_share=0.97,
)
