"""Who goes first when a tier is full: policies behind one protocol, which rank users and never hold bytes themselves.

A tier tells its policy what came in, grew or went, and reads the ranking when it needs room. The newest entry may be first in the
ranking of a policy that looks ahead: then it is not kept at all. Sources: ARC is Megiddo and Modha's (FAST 2003), with bytes for
pages; look-ahead is CachedAttention's; `SizeAware` is ours (docs/decisions/0012).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.tiers.waiting import NO_TICKET, WaitingQueue


class EvictionPolicy(Protocol):
    """Ranks the users of one tier."""

    def put(self, user: int, size_bytes: int) -> None:
        """An entry came in, was used, or changed its size."""

    def dropped(self, user: int) -> None:
        """An entry is gone."""

    def order(self) -> Iterator[int]:
        """Users of the tier, first to go first. Nothing may change while it is read."""


PolicyMaker = Callable[[WaitingQueue, int], EvictionPolicy]
"""Makes a policy for one tier from the waiting queue and the tier's limit in bytes."""


class Fifo:
    """Whoever came in first goes first; use changes nothing."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, None] = OrderedDict()
        self._newest: int | None = None

    def put(self, user: int, size_bytes: int) -> None:
        self._entries[user] = None
        self._newest = user

    def dropped(self, user: int) -> None:
        self._entries.pop(user, None)

    def order(self) -> Iterator[int]:
        """An entry that grows does not push itself out while others are there."""
        newest = self._newest
        yield from (user for user in self._entries if user != newest)
        if newest is not None and newest in self._entries:
            yield newest


class Lru:
    """Whoever was used least recently goes first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, None] = OrderedDict()

    def put(self, user: int, size_bytes: int) -> None:
        self._entries[user] = None
        self._entries.move_to_end(user)

    def dropped(self, user: int) -> None:
        self._entries.pop(user, None)

    def order(self) -> Iterator[int]:
        yield from self._entries


class _Scanned:
    """Ranks all entries anew at each eviction, because distances and ages change with every request.

    Users without announcement go first, by `_idle`; then announced ones, by `_waiting`; higher goes earlier.
    """

    def __init__(self, queue: WaitingQueue) -> None:
        users = len(queue.next_ticket)
        self._queue = queue
        self._clock = 0
        self._used_at = np.zeros(users, dtype=np.int64)
        self._bytes = np.zeros(users, dtype=np.float64)
        self._place: dict[int, int] = {}
        self._members = np.zeros(16, dtype=np.int64)

    def put(self, user: int, size_bytes: int) -> None:
        self._clock += 1
        self._used_at[user] = self._clock
        self._bytes[user] = size_bytes
        if user not in self._place:
            if len(self._place) == len(self._members):
                self._members = np.resize(self._members, 2 * len(self._members))
            self._members[len(self._place)] = user
            self._place[user] = len(self._place)

    def dropped(self, user: int) -> None:
        place = self._place.pop(user, None)
        if place is None:
            return
        last = int(self._members[len(self._place)])
        if last != user:
            self._members[place] = last
            self._place[last] = place

    def order(self) -> Iterator[int]:
        members = self._members[: len(self._place)]
        announced = self._queue.next_ticket[members] != NO_TICKET
        idle = members[~announced]
        yield from _highest_first(idle, self._idle(idle))
        waiting = members[announced]
        yield from _highest_first(waiting, self._waiting(waiting))

    def _idle(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        raise NotImplementedError

    def _waiting(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        raise NotImplementedError


class LookAhead(_Scanned):
    """Spares users that are known to come: idle ones go first, least recently used first; then the tail of the queue.

    With the whole future announced this is farthest use (Belady's rule, which is the optimum for equal sizes only).
    """

    def _idle(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        return (self._clock - self._used_at[users]).astype(np.float64)

    def _waiting(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._queue.distance(users).astype(np.float64)


class SizeAware(_Scanned):
    """Gives up what occupies most byte-requests per worth of a hit: size times distance for announced users.

    An entry that stays until its next visit costs its bytes times that distance and earns one hit, so the dearest goes first. For
    idle users age stands for the distance that nobody knows, and size counts a little less. What a hit is worth is a choice: the
    same for all (0) keeps many small histories and lets the long ones miss; its bytes (1) is `LookAhead`; 0.5 lies between.

    Parameters
    ----------
    queue : WaitingQueue
    worth_exponent : float
        A hit is worth the entry's bytes to this power, 0 to 1.
    idle_exponent : float
        Power of the size of idle users where all hits are worth the same; chosen on the first 60 % of one trace
        (docs/decisions/0012).

    Raises
    ------
    ValueError
        When an exponent lies outside 0..1.
    """

    def __init__(self, queue: WaitingQueue, *, worth_exponent: float = 0.0, idle_exponent: float = 0.75) -> None:
        if not (0.0 <= worth_exponent <= 1.0 and 0.0 <= idle_exponent <= 1.0):
            raise ValueError(f"worth_exponent, idle_exponent: {worth_exponent}, {idle_exponent} must lie within 0..1")
        super().__init__(queue)
        self._waiting_power = 1.0 - worth_exponent
        self._idle_power = idle_exponent * self._waiting_power

    def _idle(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        ages = self._clock - self._used_at[users] + 1.0
        return np.asarray(self._bytes[users] ** self._idle_power * ages, dtype=np.float64)

    def _waiting(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(self._bytes[users] ** self._waiting_power * self._queue.distance(users), dtype=np.float64)


def _highest_first(users: NDArray[np.int64], scores: NDArray[np.float64]) -> Iterator[int]:
    """Yield users by falling score; few are read, so the rest is not sorted. A tie goes to the lower user number."""
    left = scores
    for _ in range(len(users)):
        top = left.max()
        tied = np.flatnonzero(left == top)
        best = int(tied[np.argmin(users[tied])])
        yield int(users[best])
        left[best] = -np.inf
