"""Where users' histories lie in one instance: in HBM, and, when they do not fit there, in the tiers below.

What HBM evicts is off-loaded over the host link; what is below is loaded where that is not slower than computing it anew. Every
move is noted for whoever asks whose state is where.
"""

import math
from collections.abc import Iterable

from contract import engine
from simulator.core.config import InstanceConfig
from simulator.core.counting import Tally
from simulator.core.kv_cache import CacheKey, KvCache
from simulator.core.lower_tiers import Held, LowerTier, LowerTiers
from simulator.core.residency import ResidencyLog
from simulator.core.shared_link import SharedLink
from simulator.physics.reload import stall_ms


class Histories:
    """All tiers of one instance, with the log of who is in which.

    Parameters
    ----------
    config : InstanceConfig
    kv_bytes : int
        What HBM may hold of them at first.
    link : SharedLink
        What moves between HBM and the tiers crosses it.
    tally : Tally
        Counts loads and requested evictions.
    """

    def __init__(self, config: InstanceConfig, *, kv_bytes: int, link: SharedLink, tally: Tally) -> None:
        self._config, self._link, self._tally = config, link, tally
        self.resident = ResidencyLog(self.tokens_of)
        self.lower = LowerTiers(host_bytes=config.host_bytes, ssd_bytes=config.ssd_bytes, on_sinking=self.resident.moved)
        self.kv = KvCache(
            bytes_per_token=config.service.kv_bytes_per_token,
            limit_bytes=kv_bytes,
            page_tokens=config.page_tokens,
            on_eviction=self._sink,
        )

    def tokens_of(self, key: CacheKey) -> tuple[int, int, int]:
        """Return the tokens of a user in HBM, host memory and SSD."""
        held = self.lower.held(key)
        if held is None:
            return self.kv.cached_tokens(key), 0, 0
        below = (held.tokens, 0) if held.tier is LowerTier.HOST else (0, held.tokens)
        return self.kv.cached_tokens(key), *below

    def load(
        self, key: CacheKey, held: Held, *, tokens: int, candidates: int, taken: float, again_ms: float
    ) -> tuple[int, float]:
        """Load what was taken from below, unless that is slower; return tokens loaded and milliseconds that loading adds.

        It is in HBM afterwards either way, or where it was when HBM has no room.

        Parameters
        ----------
        tokens : int
            What is wanted of it.
        taken : float
            Share of the link that is set aside for others, 0..1.
        again_ms : float
            What looking their rows up again would take.
        """
        model, available = self._config.service, min(held.tokens, tokens)
        anew = again_ms + model.compute_ms(history=tokens, candidates=candidates, cached=0)
        shorter = model.compute_ms(history=tokens, candidates=candidates, cached=available)
        size = self.kv.bytes_of(available)
        source = self._config.ssd_bytes_per_second if held.tier is LowerTier.SSD else None
        load = self._link.load_ms(size, taken=taken, source_bytes_per_second=source)
        stall = self._config.reload_fixed_ms + stall_ms(load_ms=load, compute_ms=shorter, layers=model.layers)
        if key not in self.kv:
            self.lower.put_back(key, held.tokens, held.bytes)
        if not available or stall + shorter > anew:
            return 0, 0.0
        self._tally.reload_bytes += size
        self._link.took(load)
        if held.tier is LowerTier.HOST:
            self._tally.host_hit += available
        else:
            self._tally.ssd_hit += available
        return available, stall

    def prefetch(self, user_keys: Iterable[str], *, now_ms: float) -> engine.UsersAnswer:
        """Make users in HBM the most recently used; load those that lie below it, where there is room."""
        here, below = self._of(user_keys)
        sizes = [self.kv.touch(key) for key in here] + [self._promote(key) for key in below]
        for key in (*here, *below):
            self.resident.used(key, now_ms)
        return engine.UsersAnswer(affected=sum(1 for size in sizes if size), bytes=sum(sizes))

    def evict(self, user_keys: Iterable[str]) -> engine.UsersAnswer:
        """Drop the state of users from all tiers, except of those in service."""
        wanted = set(user_keys)
        here, below = self._of(wanted)
        sizes = [self.kv.evict_user(user_key) for user_key in wanted] + [self.lower.drop([key]) for key in below]
        for key in (*here, *below):
            self.resident.moved(key)
        self._tally.evicted_requested += sum(sizes)
        return engine.UsersAnswer(affected=sum(1 for size in sizes if size), bytes=sum(sizes))

    def _of(self, user_keys: Iterable[str]) -> tuple[list[CacheKey], list[CacheKey]]:
        wanted = set(user_keys)
        here = [key for key in self.kv.keys_oldest_first() if key[0] in wanted]
        return here, [key for key in self.lower.users() if key[0] in wanted]

    def _sink(self, key: CacheKey, tokens: int, size: int) -> None:
        """Take in what HBM evicts for want of room, or drop it where no more may wait for the link."""
        most, waits = self._config.offload_queue_bytes, self._link.waiting_bytes(offloaded_bytes=self.lower.offloaded_bytes)
        self.lower.off_load(key, tokens, size, room_bytes=math.inf if most is None else most - waits)
        self.resident.moved(key)

    def _promote(self, key: CacheKey) -> int:
        """Load a user from below into HBM; return its bytes, 0 when there was no room."""
        held = self.lower.take(key)
        if held is None:
            return 0
        self.kv.access(key, held.tokens)
        if key not in self.kv:
            self.lower.put_back(key, held.tokens, held.bytes)
            return 0
        self._tally.prefetch_bytes += held.bytes
        self._link.prefetched(held.bytes)
        return held.bytes
