"""Instances that just failed are passed over for a while, longer each time, and get their users back little by little.

Model: passive outlier ejection. The n-th failure in a row (failures far apart are not in a row) excludes for
`base * 2^(n-1)` milliseconds, at most `longest`. After that the slots return one after the other over `ramp`, so that an instance
that is back does not get everybody at once. At most half of the instances are excluded: when more seem to fail, it is rather the
caller's own network, and passing everybody over helps nobody.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass

from contract.clock import Clock
from contract.keys import SLOTS


@dataclass(frozen=True, kw_only=True)
class ExclusionLimits:
    """How long and how many."""

    base_ms: float = 500.0
    longest_ms: float = 30_000.0
    ramp_ms: float = 2_000.0
    forget_ms: float = 60_000.0
    """Without a failure for so long, the next one counts as the first."""
    most_percent: int = 50
    """Of the instances in the table."""


@dataclass(frozen=True)
class Illness:
    """Excluded until `until_ms` for slot 0, and up to the ramp longer for the last slot."""

    until_ms: float
    per_slot_ms: float

    def holds(self, slot: int, now_ms: float) -> bool:
        """Whether a user of this slot is still kept away."""
        return now_ms < self.until_ms + slot * self.per_slot_ms

    def over(self, now_ms: float) -> bool:
        """Whether no user is kept away any more."""
        return not self.holds(SLOTS, now_ms)


class Exclusions:
    """Who is excluded now. Writers take a lock; readers look into `active`, which is replaced as a whole, and take none."""

    def __init__(self, limits: ExclusionLimits, *, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._strikes: dict[str, tuple[int, float]] = {}
        self.active: dict[str, Illness] = {}
        """Illness by instance uid."""

    def after_fork(self) -> None:
        """In the child of a fork: whoever held the lock is not there."""
        self._lock = threading.Lock()

    def failed(self, uid: str, *, instances: int) -> bool:
        """Record a failure; say whether the instance is excluded because of it.

        Parameters
        ----------
        instances : int
            How many serve at all, for the bound on how many may be excluded.
        """
        limits, now_ms = self._limits, self._clock()
        with self._lock:
            active = {each: illness for each, illness in self.active.items() if not illness.over(now_ms)}
            illness = active.get(uid)
            if illness is not None and now_ms < illness.until_ms:
                return False  # requests that were under way when it was excluded are no further strikes
            count, last_ms = self._strikes.get(uid, (0, now_ms))
            count = 1 if now_ms - last_ms > limits.forget_ms else count + 1
            self._strikes[uid] = (count, now_ms)
            active.pop(uid, None)
            allowed = (len(active) + 1) * 100 <= limits.most_percent * instances
            if allowed:
                lasts_ms = min(limits.base_ms * 2.0 ** min(count - 1, 30), limits.longest_ms)
                active[uid] = Illness(now_ms + lasts_ms, limits.ramp_ms / SLOTS)
            self.active = active
            return allowed

    def succeeded(self, uid: str) -> None:
        """Record an answer: once the time of an exclusion is over, it ends the ramp and the row of failures."""
        if uid not in self._strikes:
            return
        now_ms = self._clock()
        with self._lock:
            illness = self.active.get(uid)
            if illness is not None and not illness.over(now_ms):
                return  # one answer does not make it well; the ramp goes on
            self._strikes.pop(uid, None)
            self.active = {each: other for each, other in self.active.items() if each != uid}

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget instances that are not in the table; a successor of the same name has another uid and starts well."""
        with self._lock:
            self._strikes = {uid: strike for uid, strike in self._strikes.items() if uid in uids}
            self.active = {uid: illness for uid, illness in self.active.items() if uid in uids}
