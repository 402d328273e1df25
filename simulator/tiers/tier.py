"""One tier: whole entries of users under a byte limit, in granules, with a policy that says who goes when room is needed.

Room is made before bytes are written, so the limit holds at every instant. Pinned entries (in service, being copied) stay. What
goes is handed to the caller, who knows whether a tier below wants it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from simulator.tiers.eviction import EvictionPolicy


@dataclass(frozen=True, kw_only=True)
class Put:
    """Outcome of a `put`: whether the entry is in, and who had to go, with their bytes.

    The user itself is among those who went when an old, smaller entry of it was there and the new one found no room.
    """

    kept: bool
    gone: tuple[tuple[int, int], ...] = ()


class Tier:
    """Entries of users.

    Parameters
    ----------
    limit_bytes : int
    granule_bytes : int
        Entries take whole granules: a page in HBM, a chunk in host memory, a file block on SSD.
    policy : EvictionPolicy
    held : callable, optional
        Says of a user that it must stay for now, besides those that are pinned.

    Raises
    ------
    ValueError
        For a negative limit or a granule below one byte.
    """

    def __init__(
        self,
        *,
        limit_bytes: int,
        policy: EvictionPolicy,
        granule_bytes: int = 1,
        held: Callable[[int], bool] | None = None,
    ) -> None:
        if limit_bytes < 0 or granule_bytes < 1:
            raise ValueError(f"limit_bytes, granule_bytes: {limit_bytes}, {granule_bytes} must be at least 0 and 1")
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.evicted_bytes = 0
        self._granule = granule_bytes
        self._policy = policy
        self.held = held
        self._sizes: dict[int, int] = {}
        self._pins: dict[int, int] = {}

    def __contains__(self, user: object) -> bool:
        return user in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def overage_bytes(self) -> int:
        """Bytes above a limit that was lowered while entries could not go."""
        return max(0, self.used_bytes - self.limit_bytes)

    def bytes_of(self, user: int) -> int:
        """Bytes that the user's entry takes; 0 when there is none."""
        return self._sizes.get(user, 0)

    def granules(self, byte_count: int) -> int:
        """`byte_count` rounded up to whole granules."""
        return -(-byte_count // self._granule) * self._granule

    def users(self) -> list[int]:
        return list(self._sizes)

    def put(self, user: int, byte_count: int) -> Put:
        """Keep `byte_count` bytes of the user, evicting others where needed; an entry that cannot fit is not kept.

        A pinned entry that cannot grow keeps its old size and counts as not kept.
        """
        size, old = self.granules(byte_count), self._sizes.get(user, 0)
        if size > self.limit_bytes:
            return self._refuse(user)
        self._policy.put(user, size)
        gone = self._who_goes(user, self.used_bytes - old + size - self.limit_bytes)
        if gone is None or user in gone:
            # All that still had to go may be pinned, or the policy would rather not keep the newest entry.
            return self._refuse(user)
        went = tuple((other, self._remove(other)) for other in gone)
        self.evicted_bytes += sum(went_bytes for _, went_bytes in went)
        self._sizes[user] = size
        self.used_bytes += size - old
        return Put(kept=True, gone=went)

    def use(self, user: int) -> None:
        """Note that the user's entry was used as it is."""
        if user in self._sizes:
            self._policy.put(user, self._sizes[user])

    def take(self, user: int) -> int:
        """Remove the user's entry, pinned or not, and return the bytes it had; 0 when there was none."""
        return self._remove(user) if user in self._sizes else 0

    def pin(self, user: int) -> None:
        """Protect the user's entry until as many calls of `unpin`."""
        self._pins[user] = self._pins.get(user, 0) + 1

    def unpin(self, user: int) -> None:
        """Undo one `pin`."""
        if self._pins.get(user, 0) <= 1:
            self._pins.pop(user, None)
        else:
            self._pins[user] -= 1

    def pinned(self, user: int) -> bool:
        return user in self._pins or (self.held is not None and self.held(user))

    def trim(self, limit_bytes: int) -> tuple[tuple[int, int], ...]:
        """Change the limit and return who went for it; pinned ones may keep the tier above it until the next `trim` or `put`."""
        self.limit_bytes = limit_bytes
        excess = self.used_bytes - limit_bytes
        victims, freed = [], 0
        if excess > 0:
            for user in self._policy.order():
                if freed >= excess:
                    break
                if not self.pinned(user):
                    victims.append(user)
                    freed += self._sizes[user]
        went = tuple((user, self._remove(user)) for user in victims)
        self.evicted_bytes += sum(went_bytes for _, went_bytes in went)
        return went

    def _who_goes(self, newest: int, excess: int) -> list[int] | None:
        """Users to evict so that `excess` bytes get free, `newest` among them if it ranks so; None when too few can go."""
        gone: list[int] = []
        if excess <= 0:
            return gone
        for user in self._policy.order():
            if user == newest and not (user in self._sizes and self.pinned(user)):
                return [newest]
            if user != newest and not self.pinned(user):
                gone.append(user)
                excess -= self._sizes[user]
                if excess <= 0:
                    return gone
        return None

    def _refuse(self, user: int) -> Put:
        if user in self._sizes and self.pinned(user):
            self._policy.put(user, self._sizes[user])
            return Put(kept=False)
        old = self._remove(user) if user in self._sizes else 0
        self._policy.dropped(user)
        self.evicted_bytes += old
        return Put(kept=False, gone=((user, old),) if old else ())

    def _remove(self, user: int) -> int:
        size = self._sizes.pop(user)
        self.used_bytes -= size
        self._policy.dropped(user)
        return size
