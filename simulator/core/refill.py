"""The refill of embeddings of one instance: after a growth, rows come over the host link at a rate, and the rest is owed.

By its configuration an instance sets a share of the link aside for it, lets it have only the time that jobs leave, or serves
nobody until it is over.
"""

import math

from simulator.core.config import InstanceConfig
from simulator.core.counting import Tally
from simulator.core.emb_cache import EmbCache
from simulator.core.shared_link import SharedLink
from simulator.core.split import PoolSplit

MAX_REFILL_SHARE = 0.9


class Refill:
    """What a refill takes from jobs, and how far it has come; its rate is the split's, its backlog the cache's."""

    def __init__(self, config: InstanceConfig, *, emb: EmbCache, split: PoolSplit, link: SharedLink, tally: Tally) -> None:
        self._config, self._emb, self._split, self._link, self._tally = config, emb, split, link, tally
        self._to_ms = 0.0
        self._carry = 0.0

    @property
    def under_way(self) -> bool:
        """Whether rows come now."""
        return bool(self._emb.backlog_bytes and self._split.refill_bytes_per_second)

    def share(self) -> float:
        """Share of the link that is set aside now, 0..1."""
        if self._config.refill_yields or self._config.refill_blocks_serving or not self._emb.backlog_bytes:
            return 0.0
        return min(MAX_REFILL_SHARE, self._split.refill_bytes_per_second / self._config.service.link_bytes_per_second)

    def lets_serve_at_ms(self) -> float:
        """When one that blocks serving will be over at its rate; long ago when none does."""
        rate = self._split.refill_bytes_per_second
        if not self._config.refill_blocks_serving or not rate or not self._emb.backlog_bytes:
            return -math.inf
        return self._to_ms + 1e3 * (self._emb.backlog_bytes - self._carry) / rate

    def until(self, now_ms: float) -> None:
        """Spend the budget of the time passed; what is below one sampled row is carried on."""
        elapsed, self._to_ms = now_ms - self._to_ms, max(now_ms, self._to_ms)
        if self._config.refill_yields and elapsed > 0:
            elapsed = self._link.left_for_refill_ms(elapsed)
        if elapsed <= 0 or not self._emb.backlog_bytes:
            self._carry = 0.0 if elapsed > 0 else self._carry
            return
        budget = self._carry + self._split.refill_bytes_per_second * elapsed / 1e3
        loaded = self._emb.refill(int(budget))
        self._tally.refill_bytes += loaded
        self._carry = budget - loaded if self._emb.backlog_bytes else 0.0
