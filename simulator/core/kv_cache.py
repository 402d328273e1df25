"""The KV cache: attention state of whole user histories, least recently used users evicted first, counted in bytes.

An entry belongs to (user key, model version) and covers a prefix of the user's history. Histories grow at their end, so a later
and longer request hits the cached prefix; a shorter one hits all of its tokens and cuts the entry to them. An entry in service
is pinned and cannot be evicted: that is what makes a shrink of the limit wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

CacheKey = tuple[str, str]


@dataclass(slots=True)
class Entry:
    """State of one user: `tokens` cached, pinned while in service, `prefix` when pre-inferred and not yet used."""

    tokens: int
    bytes: int
    pins: int = 0
    prefix: bool = False
    doomed: bool = False


class KvCache:
    """Whole-user LRU under a byte limit that may change at any time.

    Parameters
    ----------
    bytes_per_token, limit_bytes : int
    page_tokens : int
        Entries take whole pages of this many tokens.
    on_eviction : callable, optional
        Called with (key, tokens, bytes) of what is evicted for want of room; not of what is dropped because it is asked to be, or
        has become worthless.
    """

    def __init__(
        self,
        *,
        bytes_per_token: int,
        limit_bytes: int,
        page_tokens: int = 32,
        on_eviction: Callable[[CacheKey, int, int], None] = lambda key, tokens, size: None,
    ) -> None:
        self._on_eviction = on_eviction
        self._page_tokens = page_tokens
        self._page_bytes = page_tokens * bytes_per_token
        self._entries: OrderedDict[CacheKey, Entry] = OrderedDict()
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.prefix_bytes = 0
        self.prefixes_wasted = 0
        self.evicted_capacity_bytes = 0
        self.held = False

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._entries

    @property
    def overage_bytes(self) -> int:
        return max(0, self.used_bytes - self.limit_bytes)

    def bytes_of(self, tokens: int) -> int:
        """Return the bytes that a history of this many tokens takes."""
        return -(-tokens // self._page_tokens) * self._page_bytes

    def cached_tokens(self, key: CacheKey) -> int:
        entry = self._entries.get(key)
        return entry.tokens if entry is not None else 0

    def access(self, key: CacheKey, tokens: int) -> int:
        """Ask for a history, leave it cached where it fits, and return how many of its tokens were cached before."""
        entry = self._entries.get(key)
        hit = min(entry.tokens, tokens) if entry is not None else 0
        need = self.bytes_of(tokens)
        if entry is not None:
            self._entries.move_to_end(key)
            if self._make_room(need - entry.bytes, keep=entry):
                self._resize(entry, tokens, need)
                entry.doomed = False
        elif tokens and self._make_room(need, keep=None):
            self._entries[key] = Entry(tokens=tokens, bytes=need)
            self.used_bytes += need
        return hit

    def touch(self, key: CacheKey) -> int:
        """Make an entry the most recently used; return its bytes, 0 when absent."""
        entry = self._entries.get(key)
        if entry is None:
            return 0
        self._entries.move_to_end(key)
        return entry.bytes

    def mark_prefix(self, key: CacheKey) -> None:
        """Note that an entry was computed ahead of its ranking request."""
        entry = self._entries.get(key)
        if entry is not None and not entry.prefix:
            entry.prefix = True
            self.prefix_bytes += entry.bytes

    def is_prefix(self, key: CacheKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.prefix

    def take_prefix(self, key: CacheKey) -> bool:
        """Clear the mark; say whether it was there."""
        entry = self._entries.get(key)
        if entry is None or not entry.prefix:
            return False
        entry.prefix = False
        self.prefix_bytes -= entry.bytes
        return True

    def pin(self, key: CacheKey) -> Entry | None:
        """Protect an entry from eviction; hand the result back to `unpin`."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.pins += 1
        return entry

    def unpin(self, key: CacheKey, entry: Entry) -> int:
        """Release a pin; an entry invalidated meanwhile goes now. Return the bytes it freed."""
        entry.pins -= 1
        if entry.doomed and not entry.pins:
            return self._remove(key)
        return 0

    def set_limit(self, limit_bytes: int) -> None:
        """Change the limit; nothing is evicted before `trim`, and nothing is admitted above the limit."""
        self.limit_bytes = limit_bytes

    def trim(self) -> int:
        """Evict the least recently used users that are not in service until the limit holds; return the bytes evicted."""
        before = self.used_bytes
        if before > self.limit_bytes:
            self._evict(before - self.limit_bytes, keep=None)
        return before - self.used_bytes

    def evict_user(self, user_key: str) -> int:
        """Drop all entries of a user that are not in service; return the bytes freed."""
        before = self.used_bytes
        for key in [key for key, entry in self._entries.items() if key[0] == user_key and not entry.pins]:
            self._remove(key)
        return before - self.used_bytes

    def invalidate(self, *, keep_version: str | None = None) -> tuple[int, int]:
        """Drop entries of all model versions but one; those in service hit no more and go when released.

        Returns
        -------
        tuple[int, int]
            Entries that became unusable, bytes freed at once.
        """
        before, affected = self.used_bytes, 0
        for key in [key for key in self._entries if key[1] != keep_version]:
            entry = self._entries[key]
            affected += 1
            if entry.pins:
                self.prefixes_wasted += self.take_prefix(key)
                entry.doomed = True
                entry.tokens = 0
            else:
                self._remove(key)
        return affected, before - self.used_bytes

    def keys_oldest_first(self) -> list[CacheKey]:
        return list(self._entries)

    def _make_room(self, need: int, *, keep: Entry | None) -> bool:
        if need <= 0:
            return True
        excess = self.used_bytes + need - self.limit_bytes
        if excess <= 0:
            return True
        kept = keep.bytes if keep is not None else 0
        if self.held or need + kept > self.limit_bytes:
            return False
        self.evicted_capacity_bytes += self._evict(excess, keep=keep)
        return self.used_bytes + need <= self.limit_bytes

    def _evict(self, excess: int, *, keep: Entry | None) -> int:
        """Evict the oldest evictable entries until `excess` bytes are free or none is left; return the bytes freed."""
        victims: list[CacheKey] = []
        freed = 0
        for key, entry in self._entries.items():
            if freed >= excess:
                break
            if not entry.pins and entry is not keep:
                victims.append(key)
                freed += entry.bytes
        for key in victims:
            entry = self._entries[key]
            self._remove(key)
            self._on_eviction(key, entry.tokens, entry.bytes)
        return freed

    def _resize(self, entry: Entry, tokens: int, size: int) -> None:
        self.used_bytes += size - entry.bytes
        if entry.prefix:
            self.prefix_bytes += size - entry.bytes
        entry.tokens, entry.bytes = tokens, size

    def _remove(self, key: CacheKey) -> int:
        entry = self._entries.pop(key)
        self.used_bytes -= entry.bytes
        if entry.prefix:
            self.prefix_bytes -= entry.bytes
            self.prefixes_wasted += 1
        return entry.bytes
