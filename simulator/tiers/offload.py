"""Copying new state to the host in the background, through a bounded queue that says no instead of growing.

A user's position, up to which state is on the host or queued for it, moves when a range is **accepted**, never when it is
merely prepared: a refused range is offered again from where it began, so what the host holds has no holes whatever the pressure.
Published code moved it on preparation and left users with a hole that nothing fills (`Rule.ON_PREPARE`, kept as a baseline).
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum


class Rule(StrEnum):
    """When a user's position moves."""

    ON_ACCEPT = "on accept"
    ON_PREPARE = "on prepare"


@dataclass(frozen=True, slots=True)
class Range:
    """Tokens start..stop-1 of a user's state on their way to the host; `life` tells one copy of a user from a later one."""

    user: int
    start: int
    stop: int
    life: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start


@dataclass(slots=True)
class Counts:
    """Tokens, and users whose host copy has a hole. accepted = copied + cancelled + what is queued or being copied."""

    accepted: int = 0
    dropped: int = 0
    copied: int = 0
    cancelled: int = 0
    drops: int = 0
    holed_users: set[int] = field(default_factory=set)


class OffloadQueue:
    """Ranges of whole chunks, first in first out; a tail shorter than a chunk stays in HBM only.

    Parameters
    ----------
    chunk_tokens : int
    limit_tokens : int
        Most that is queued or being copied.
    write_buffer_tokens : int
        Part of that whose source was moved aside, so that its user may be evicted from HBM at once. The rest keeps its user
        where it is (`frozen`) until it is copied.
    rule : Rule
    """

    def __init__(
        self, *, chunk_tokens: int, limit_tokens: int, write_buffer_tokens: int = 0, rule: Rule = Rule.ON_ACCEPT
    ) -> None:
        if chunk_tokens < 1 or limit_tokens < 0 or write_buffer_tokens < 0:
            raise ValueError(f"chunk_tokens, limit_tokens: {chunk_tokens}, {limit_tokens} must be at least 1 and 0")
        self.counts = Counts()
        self.held_tokens = 0
        self.buffered_tokens = 0
        self._chunk = chunk_tokens
        self._limit = limit_tokens
        self._buffer_limit = write_buffer_tokens
        self._rule = rule
        self._queue: deque[Range] = deque()
        self._copying: OrderedDict[Range, None] = OrderedDict()
        self._buffered: set[Range] = set()
        self._host: dict[int, int] = {}
        self._position: dict[int, int] = {}
        self._lives: dict[int, int] = {}
        self._frozen: dict[int, int] = {}
        self._owed: OrderedDict[int, int] = OrderedDict()

    def on_host(self, user: int) -> int:
        """Leading tokens of the user that the host holds."""
        return self._host.get(user, 0)

    def position(self, user: int) -> int:
        """Leading tokens of the user that are on the host, queued for it or being copied."""
        return self._position.get(user, 0)

    def is_copying(self, item: Range) -> bool:
        """Whether the range was handed to a copier and not given up since."""
        return item in self._copying

    def pending(self, user: int) -> bool:
        """Whether a range of the user is queued or being copied."""
        return self._position.get(user, 0) > self._host.get(user, 0)

    def frozen(self, user: int) -> bool:
        """Whether HBM is still the source of a range of the user, which must not be evicted then."""
        return user in self._frozen

    @property
    def owed_users(self) -> list[int]:
        """Users with a refused range, longest waiting first."""
        return list(self._owed)

    def offer(self, user: int, have_tokens: int) -> tuple[Range, ...]:
        """Offer all whole chunks behind the user's position; return what was accepted, at most one range.

        What finds no room is counted as dropped and owed: `offer_again` comes back to it.
        """
        start = self._position.get(user, 0)
        stop = have_tokens // self._chunk * self._chunk
        self._owed.pop(user, None)
        if stop <= start:
            return ()
        room = (self._limit - self.held_tokens) // self._chunk * self._chunk
        fits = min(stop, start + max(0, room))
        if self._rule is Rule.ON_PREPARE:
            self._position[user] = stop
            fits = stop if fits == stop else start
        if fits < stop:
            self.counts.dropped += stop - fits
            self.counts.drops += 1
            if self._rule is Rule.ON_ACCEPT:
                self._owed[user] = have_tokens
        if fits == start:
            return ()
        accepted = Range(user, start, fits, self._lives.get(user, 0))
        self._position[user] = max(fits, self._position.get(user, 0))
        self._queue.append(accepted)
        self.held_tokens += accepted.tokens
        self.counts.accepted += accepted.tokens
        self._frozen[user] = self._frozen.get(user, 0) + 1
        self._fill_buffer()
        return (accepted,)

    def offer_again(self) -> tuple[Range, ...]:
        """Offer what is owed, longest waiting first, until the queue is full."""
        accepted: list[Range] = []
        for user, have_tokens in list(self._owed.items()):
            if self._limit - self.held_tokens < self._chunk:
                break
            accepted += self.offer(user, have_tokens)
        return tuple(accepted)

    def next_range(self) -> Range | None:
        """Hand a copier the oldest queued range of a user who is not being copied; answer with `copied` or `failed`.

        Copiers share a link, so of two ranges side by side the shorter may end first. One user's must end in their order.
        """
        busy = {copying.user for copying in self._copying}
        place = next((place for place, queued in enumerate(self._queue) if queued.user not in busy), None)
        if place is None:
            return None
        taken = self._queue[place]
        del self._queue[place]
        self._copying[taken] = None
        return taken

    def copied(self, done: Range) -> bool:
        """The range is on the host. False when that is too late: the user's copy was given up meanwhile."""
        if done not in self._copying:
            return False
        del self._copying[done]
        self._release(done)
        if done.start != self._host.get(done.user, 0):
            self.counts.holed_users.add(done.user)
            self.counts.cancelled += done.tokens
            return False
        self._host[done.user] = done.stop
        self.counts.copied += done.tokens
        return True

    def failed(self, lost: Range, *, have_tokens: int = 0) -> None:
        """The host did not take the range: the user's later ranges go too.

        With `have_tokens` of the user in HBM all of it is owed; without, nothing is, and the next visit offers it again. A host
        that has no room would otherwise be asked for ever.
        """
        if lost not in self._copying:
            return
        self._cancel(lost.user)
        self._position[lost.user] = self._host.get(lost.user, 0)
        self._owed.pop(lost.user, None)
        if have_tokens > self._position[lost.user]:
            self._owed[lost.user] = have_tokens

    def owe_nothing(self, user: int) -> None:
        """HBM has no state of the user any more: what was refused cannot be offered again. Accepted ranges go on."""
        self._owed.pop(user, None)

    def shorten(self, user: int, tokens: int) -> None:
        """The user's history is only that long now: whole chunks of it stay on the host, longer ranges are cancelled."""
        if tokens >= self._position.get(user, 0):
            return
        left = min(self._host.get(user, 0), tokens // self._chunk * self._chunk)
        self.host_lost(user)
        if left:
            self._host[user] = self._position[user] = left

    def host_lost(self, user: int, *, have_tokens: int = 0) -> None:
        """The host gave the user's copy up (evicted, expired, invalidated): begin anew with what HBM has."""
        self._cancel(user)
        self._host.pop(user, None)
        self._position.pop(user, None)
        self._owed.pop(user, None)
        if have_tokens:
            self._owed[user] = have_tokens

    def cut(self, user: int, drop_tokens: int, *, have_tokens: int) -> None:
        """The user's first `drop_tokens` are gone everywhere: positions move down, ranges on their way are cancelled and owed.

        Raises
        ------
        ValueError
            When what is dropped is not whole chunks: the host's chunks would no longer begin where the history does.
        """
        if drop_tokens < 0 or drop_tokens % self._chunk:
            raise ValueError(f"drop_tokens: {drop_tokens} is not a multiple of {self._chunk}")
        left = max(0, self._host.get(user, 0) - drop_tokens)
        self.host_lost(user, have_tokens=have_tokens)
        if left:
            self._host[user] = self._position[user] = left

    def _fill_buffer(self) -> None:
        for waiting in (*self._copying, *self._queue):
            if waiting in self._buffered:
                continue
            if self.buffered_tokens + waiting.tokens > self._buffer_limit:
                break
            self._buffered.add(waiting)
            self.buffered_tokens += waiting.tokens
            self._thaw(waiting.user)

    def _release(self, gone: Range) -> None:
        self.held_tokens -= gone.tokens
        if gone in self._buffered:
            self._buffered.discard(gone)
            self.buffered_tokens -= gone.tokens
        else:
            self._thaw(gone.user)
        self._fill_buffer()

    def _thaw(self, user: int) -> None:
        self._frozen[user] -= 1
        if not self._frozen[user]:
            del self._frozen[user]

    def _cancel(self, user: int) -> None:
        """Take all ranges of the user out of the queue and away from the copier."""
        gone = [item for item in (*self._copying, *self._queue) if item.user == user]
        for item in gone:
            self._copying.pop(item, None)
        self._queue = deque(item for item in self._queue if item.user != user)
        for item in gone:
            self._release(item)
            self.counts.cancelled += item.tokens
        self._lives[user] = self._lives.get(user, 0) + 1
