"""ARC in bytes: entries used once and entries used again compete, and ghosts of evicted ones say which side is too small.

Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003). Lists count bytes where the paper counts
pages; with entries of one byte each it is the paper's algorithm.
"""

from collections import OrderedDict
from collections.abc import Iterator


class _Bytes:
    """Users in order of use, with their bytes."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[int, int] = OrderedDict()
        self.total = 0

    def __contains__(self, user: object) -> bool:
        return user in self.sizes

    def add(self, user: int, size_bytes: int) -> None:
        self.sizes[user] = size_bytes
        self.total += size_bytes

    def take(self, user: int) -> int:
        size = self.sizes.pop(user)
        self.total -= size
        return size

    def shed(self, *, above: int) -> None:
        """Forget the oldest until no more bytes than `above` are left."""
        while self.sizes and self.total > above:
            self.take(next(iter(self.sizes)))


def _ratio(other: _Bytes, own: _Bytes) -> float:
    """Return how many bytes the target moves for each byte found among `own` ghosts; entries of no bytes move it nowhere."""
    return max(1.0, other.total / own.total) if own.total else 1.0


class ArcByBytes:
    """Adapts between recency (`once`) and frequency (`again`); `limit_bytes` is the limit of the tier."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._target_once = 0.0
        self._once, self._again = _Bytes(), _Bytes()
        self._ghost_once, self._ghost_again = _Bytes(), _Bytes()
        self._newest: int | None = None
        self._from_ghost_again = False

    def put(self, user: int, size_bytes: int) -> None:
        self._newest, self._from_ghost_again = user, False
        for entries in (self._once, self._again):
            if user in entries:
                entries.take(user)
                self._again.add(user, size_bytes)
                return
        if user in self._ghost_once:
            ratio = _ratio(self._ghost_again, self._ghost_once)
            self._target_once = min(self._limit, self._target_once + ratio * self._ghost_once.take(user))
            self._again.add(user, size_bytes)
        elif user in self._ghost_again:
            ratio = _ratio(self._ghost_once, self._ghost_again)
            self._target_once = max(0.0, self._target_once - ratio * self._ghost_again.take(user))
            self._from_ghost_again = True
            self._again.add(user, size_bytes)
        else:
            self._trim_ghosts(size_bytes)
            self._once.add(user, size_bytes)

    def dropped(self, user: int) -> None:
        if user in self._once:
            size = self._once.take(user)
            # A list of entries used once that fills the tier alone leaves no ghosts of itself.
            if self._once.total + self._ghost_once.total + size <= self._limit:
                self._ghost_once.add(user, size)
        elif user in self._again:
            self._ghost_again.add(user, self._again.take(user))

    def order(self) -> Iterator[int]:
        """The older of the two lists that has more than its share, until both are empty; the newest entry comes last."""
        # Read lazily: most evictions need one victim, and the lists are as long as the tier has entries.
        once = (user for user in self._once.sizes if user != self._newest)
        again = (user for user in self._again.sizes if user != self._newest)
        left = self._once.total - self._once.sizes.get(self._newest, 0) if self._newest is not None else self._once.total
        first, second = next(once, None), next(again, None)
        while first is not None or second is not None:
            above = left > self._target_once or (self._from_ghost_again and left >= self._target_once)
            if first is not None and (above or second is None):
                left -= self._once.sizes[first]
                yield first
                first = next(once, None)
            elif second is not None:
                yield second
                second = next(again, None)
        if self._newest is not None and (self._newest in self._once or self._newest in self._again):
            yield self._newest

    def _trim_ghosts(self, size_bytes: int) -> None:
        """Make the directory hold at most the limit in `once` and its ghosts, and twice the limit in all, with the new entry."""
        self._ghost_once.shed(above=max(0, self._limit - self._once.total - size_bytes))
        all_but_ghosts = self._once.total + self._again.total + self._ghost_once.total + size_bytes
        self._ghost_again.shed(above=max(0, 2 * self._limit - all_but_ghosts))
