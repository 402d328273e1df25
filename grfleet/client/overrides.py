"""Where hot users go instead of their slot's owner: a bounded mapping from user key to instance, each entry with an expiry.

Who belongs where is decided elsewhere (`policies.routing`); this only keeps it. Entries name an instance by uid, so that one
which left the table is passed over at once, whatever its name does next.
"""

import math
import threading
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from contract.clock import Clock

DEFAULT_MOST = 100_000


class OverrideLike(Protocol):
    """What is taken over of an override."""

    @property
    def user_key(self) -> str: ...

    @property
    def instance_uid(self) -> str: ...

    @property
    def until_ms(self) -> float: ...


class Held:
    """What is in force: instance uid by user key, and beside it until when. The earliest end spares most picks a look-up."""

    __slots__ = ("earliest_s", "ends_ms", "uids")

    def __init__(self, uids: dict[str, str], ends_ms: dict[str, float]) -> None:
        self.uids, self.ends_ms = uids, ends_ms
        self.earliest_s = min(ends_ms.values(), default=math.inf) / 1000.0

    def holds(self, user_key: str, now_ms: float) -> bool:
        """Whether the entry of a user is not over."""
        return now_ms < self.ends_ms.get(user_key, -math.inf)


class Overrides:
    """Overrides in force, at most `most`. Writers take a lock; a pick looks into `held` and takes none.

    Times are on the clock that was given, so an entry that was chosen by another clock must be translated before.
    """

    def __init__(self, *, most: int = DEFAULT_MOST, clock: Clock) -> None:
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self.held = Held({}, {})

    def after_fork(self) -> None:
        """In the child of a fork: whoever held the lock is not there."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.held.uids)

    def __contains__(self, user_key: str) -> bool:
        return self.held.holds(user_key, self._clock())

    def bound(self, most: int) -> None:
        """Keep at most so many from now on; of those in force the last go that are too many."""
        with self._lock:
            self._most = most
            held = self.held
            if len(held.uids) > most:
                kept = list(islice(held.uids, most))
                self.held = Held({key: held.uids[key] for key in kept}, {key: held.ends_ms[key] for key in kept})

    def replace(self, chosen: Iterable[OverrideLike]) -> int:
        """Put these in place of all others, in one step; return how many were kept (the first `most` that are not over)."""
        now_ms = self._clock()
        uids: dict[str, str] = {}
        ends_ms: dict[str, float] = {}
        shared: dict[str, str] = {}  # one string for each instance, however many the caller made: it stays in the cache of a core
        for each in chosen:
            if each.until_ms > now_ms and (len(uids) < self._most or each.user_key in uids):
                uids[each.user_key] = shared.setdefault(each.instance_uid, each.instance_uid)
                ends_ms[each.user_key] = each.until_ms
        with self._lock:
            self.held = Held(uids, ends_ms)
        return len(uids)

    def put(self, user_key: str, instance_uid: str, *, until_ms: float) -> None:
        """Add or renew one; a full mapping first loses what has expired and, if that is nothing, its oldest hundredth."""
        with self._lock:
            if user_key not in self.held.uids and len(self.held.uids) >= self._most:
                self.held = self._with_room()
            if self._most > 0:
                self.held.ends_ms[user_key] = until_ms
                self.held.earliest_s = min(self.held.earliest_s, until_ms / 1000.0)
                self.held.uids[user_key] = instance_uid

    def drop(self, user_key: str) -> None:
        """Forget one, for example because the user asked to be forgotten."""
        with self._lock:
            self.held.uids.pop(user_key, None)
            self.held.ends_ms.pop(user_key, None)

    def _with_room(self) -> Held:
        now_ms = self._clock()
        ends_ms = {key: end for key, end in self.held.ends_ms.items() if end > now_ms}
        if len(ends_ms) >= self._most:
            ends_ms = dict(islice(ends_ms.items(), max(1, len(ends_ms) // 100), None))
        return Held({key: self.held.uids[key] for key in ends_ms}, ends_ms)
