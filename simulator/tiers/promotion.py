"""Promotion from SSD to host memory ahead of use, held to a budget: bytes that are on their way or there and not used yet.

Without a budget a long window of announcements fills host memory with state for later and pushes out what is needed now.
"""

from collections import OrderedDict

from simulator.tiers.ssd import Lane
from simulator.tiers.store_types import StoreCounts
from simulator.tiers.tier import Tier


class Promotions:
    """Wanted, flying and landed promotions of one instance.

    Parameters
    ----------
    limit_bytes : int
        Most bytes that are flying, or landed and unused.
    lane : Lane
        Reads of the SSD; requests that could not wait share it.
    counts : StoreCounts
        Fates are counted here.
    """

    def __init__(self, *, limit_bytes: int, lane: Lane, counts: StoreCounts) -> None:
        self.lane = lane
        self.held_bytes = 0
        self.limit_bytes = limit_bytes
        self._counts = counts
        self._wanted: OrderedDict[int, None] = OrderedDict()
        self._flying: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self._landed: dict[int, int] = {}

    def want(self, user: int) -> None:
        """The user's state is on the SSD and will be needed; those who wanted first come first."""
        if user not in self._flying:
            self._wanted[user] = None

    def start(self, ssd: Tier, *, now_ms: float) -> list[int]:
        """Start reading what fits into the budget, in order, and return whose."""
        started = []
        for user in list(self._wanted):
            size = ssd.bytes_of(user)
            if size and self.held_bytes + size > self.limit_bytes >= size:
                break  # later ones wait behind it, or small ones would starve it
            del self._wanted[user]
            if not size or size > self.limit_bytes:
                continue
            self.held_bytes += size
            self._flying[user] = (self.lane.submit(size, now_ms=now_ms), size)
            self._counts.promoted += 1
            started.append(user)
        return started

    def next_ms(self) -> float | None:
        """When the next one lands."""
        return next(iter(self._flying.values()))[0] if self._flying else None

    def flying(self, user: int) -> float | None:
        """When the user's promotion lands; None when it is not on its way."""
        return self._flying[user][0] if user in self._flying else None

    def landed(self, now_ms: float) -> list[int]:
        """Return who lands by now; each is landed and unused after that."""
        users = []
        while self._flying:
            user, (done_ms, size) = next(iter(self._flying.items()))
            if done_ms > now_ms:
                break
            del self._flying[user]
            self._landed[user] = size
            users.append(user)
        return users

    def used(self, user: int) -> bool:
        """A request came for the user; say whether a promotion was there for it or on its way."""
        self._wanted.pop(user, None)
        return self._free(user)

    def evicted(self, user: int) -> None:
        """The user's promoted state was pushed out, or found no room, before it was used."""
        self._counts.promoted_wasted += self._free(user)

    def give_up(self, user: int) -> None:
        """Nobody waits for the user any more."""
        self._wanted.pop(user, None)
        self.evicted(user)

    def _free(self, user: int) -> bool:
        size = self._landed.pop(user, None)
        if size is None:
            _, size = self._flying.pop(user, (0.0, None))
        self.held_bytes -= size or 0
        return size is not None
