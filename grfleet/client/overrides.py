"""Where hot users go instead of their slot's owner: a bounded mapping from user key to instance, each entry with an expiry.

Who belongs where is decided elsewhere (`policies.routing`); this only keeps it. Entries name an instance by uid, so that one
which left the table is passed over at once, whatever its name does next.
"""

import threading
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from grfleet.client.clock import Clock

DEFAULT_MOST = 100_000


class OverrideLike(Protocol):
    """What is taken over of an override."""

    @property
    def user_key(self) -> str: ...

    @property
    def instance_uid(self) -> str: ...

    @property
    def until_ms(self) -> float: ...


class Overrides:
    """Overrides in force, at most `most`. Writers take a lock; readers look into `entries` and take none."""

    def __init__(self, *, most: int = DEFAULT_MOST, clock: Clock) -> None:
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self.entries: dict[str, tuple[str, float]] = {}
        """(instance uid, until_ms on the client's clock) by user key. A reader checks the time; expired ones may linger."""

    def __len__(self) -> int:
        return len(self.entries)

    def replace(self, chosen: Iterable[OverrideLike]) -> int:
        """Put these in place of all others, in one step; return how many were kept (the first `most` that are not over)."""
        now_ms = self._clock()
        fresh: dict[str, tuple[str, float]] = {}
        for each in chosen:
            if each.until_ms > now_ms:
                if len(fresh) >= self._most and each.user_key not in fresh:
                    break
                fresh[each.user_key] = (each.instance_uid, each.until_ms)
        with self._lock:
            self.entries = fresh
        return len(fresh)

    def put(self, user_key: str, instance_uid: str, *, until_ms: float) -> None:
        """Add or renew one; a full mapping first loses what has expired and, if that is nothing, its oldest hundredth."""
        with self._lock:
            if user_key not in self.entries and len(self.entries) >= self._most:
                self.entries = self._with_room()
            if self._most > 0:
                self.entries[user_key] = (instance_uid, until_ms)

    def drop(self, user_key: str) -> None:
        """Forget one, for example because the user asked to be forgotten."""
        with self._lock:
            self.entries.pop(user_key, None)

    def _with_room(self) -> dict[str, tuple[str, float]]:
        now_ms = self._clock()
        kept = {key: entry for key, entry in self.entries.items() if entry[1] > now_ms}
        if len(kept) < self._most:
            return kept
        return dict(islice(kept.items(), max(1, len(kept) // 100), None))
