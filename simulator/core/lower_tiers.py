"""The tiers below HBM of one instance: whole users in host memory, and below it on an SSD, least recently used first.

What HBM evicts sinks into the host tier, what that evicts sinks onto the SSD, and what the SSD evicts is gone. A user is in one
tier at most: one that is asked for leaves its tier and is in HBM again, or goes back when HBM has no room.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from simulator.core.kv_cache import CacheKey


class LowerTier(StrEnum):
    """By the names of `describe.tiers`."""

    HOST = "dram"
    SSD = "ssd"


@dataclass(frozen=True, slots=True)
class Held:
    """State of one user below HBM: its tier, tokens and bytes."""

    tier: LowerTier
    tokens: int
    bytes: int


class LowerTiers:
    """Host memory and SSD under byte limits that may change at any time; a limit of 0 is no tier.

    `on_sinking` is called with the key of each user that is pushed out of a tier, into the one below or out of the last.
    """

    def __init__(self, *, host_bytes: int, ssd_bytes: int, on_sinking: Callable[[CacheKey], None] = lambda key: None) -> None:
        self._on_sinking = on_sinking
        self._limits = {LowerTier.HOST: host_bytes, LowerTier.SSD: ssd_bytes}
        self._used = dict.fromkeys(LowerTier, 0)
        self._entries: dict[LowerTier, OrderedDict[CacheKey, Held]] = {tier: OrderedDict() for tier in LowerTier}
        self.offloaded_bytes = self.offload_drops = self.dropped_bytes = 0

    def used_bytes(self, tier: LowerTier) -> int:
        return self._used[tier]

    def set_limits(self, *, host_bytes: int, ssd_bytes: int) -> None:
        """Change the limits; what is above one sinks, the oldest first."""
        self._limits = {LowerTier.HOST: host_bytes, LowerTier.SSD: ssd_bytes}
        self._make_room(LowerTier.HOST, 0)
        self._make_room(LowerTier.SSD, 0)

    def off_load(self, key: CacheKey, tokens: int, size: int, *, room_bytes: float = math.inf) -> None:
        """Take in what HBM evicts, where it fits; its bytes cross the link, if no more than `room_bytes` of them wait for it."""
        if size > room_bytes and size <= self._limits[LowerTier.HOST]:
            self.offload_drops += 1
            self.dropped_bytes += size
        elif self.put_back(key, tokens, size):
            self.offloaded_bytes += size

    def put_back(self, key: CacheKey, tokens: int, size: int) -> bool:
        """Make a user the youngest of the host tier; say whether it fits."""
        return self._put(LowerTier.HOST, key, tokens, size)

    def held(self, key: CacheKey) -> Held | None:
        """Say what is held of a user; None when it is in no tier."""
        return next((held for tier in LowerTier if (held := self._entries[tier].get(key)) is not None), None)

    def take(self, key: CacheKey) -> Held | None:
        """Take a user out of its tier; None when it is in none."""
        return next((self._remove(tier, key) for tier in LowerTier if key in self._entries[tier]), None)

    def drop(self, keys: Iterable[CacheKey]) -> int:
        """Forget users; return the bytes freed."""
        return sum(held.bytes for key in keys if (held := self.take(key)) is not None)

    def users(self) -> list[CacheKey]:
        """All users below HBM, those of the host first, oldest first."""
        return [key for tier in LowerTier for key in self._entries[tier]]

    def _put(self, tier: LowerTier, key: CacheKey, tokens: int, size: int) -> bool:
        if size > self._limits[tier]:
            return False
        self._make_room(tier, size)
        self._entries[tier][key] = Held(tier, tokens, size)
        self._used[tier] += size
        return True

    def _make_room(self, tier: LowerTier, size: int) -> None:
        while self._used[tier] + size > self._limits[tier]:
            oldest = next(iter(self._entries[tier]))
            held = self._remove(tier, oldest)
            if tier is LowerTier.HOST:
                self._put(LowerTier.SSD, oldest, held.tokens, held.bytes)
            self._on_sinking(oldest)

    def _remove(self, tier: LowerTier, key: CacheKey) -> Held:
        held = self._entries[tier].pop(key)
        self._used[tier] -= held.bytes
        return held
