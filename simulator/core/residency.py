"""Which users' states changed last, for reports of residency: bounded in memory, and in work for each report.

Only the order of changes is kept; what a user holds is looked up when a report is made, in the caches themselves, so the two
cannot disagree. A user that changes again moves to the end, so a report walks back from there to the cursor that was asked for.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from contract.residency import MAX_USERS, UserState
from simulator.core.kv_cache import CacheKey

KEPT = 4 * MAX_USERS
"""Users whose last change is remembered; a cursor from before the oldest of them starts over."""


class _Change(NamedTuple):
    sequence: int
    version: str
    used_ms: float


class ResidencyLog:
    """The users whose state changed last, oldest first.

    Parameters
    ----------
    tokens_of : callable
        Returns the tokens of a (user, model version) in HBM, host memory and SSD.
    """

    def __init__(self, tokens_of: Callable[[CacheKey], tuple[int, int, int]], *, kept: int = KEPT) -> None:
        self._tokens_of = tokens_of
        self._kept = kept
        self._changes: OrderedDict[str, _Change] = OrderedDict()
        self._forgotten = 0
        self.cursor = 1

    def used(self, key: CacheKey, now_ms: float) -> None:
        """Note that a request used the state of a user, or left it behind."""
        user, version = key
        self._note(user, _Change(self.cursor + 1, version, now_ms))

    def moved(self, key: CacheKey) -> None:
        """Note that a state left its tier; one of another model version than the last used says nothing of the user."""
        user, version = key
        last = self._changes.get(user)
        if last is None or last.version == version:
            self._note(user, _Change(self.cursor + 1, version, last.used_ms if last is not None else 0.0))

    def clear(self) -> None:
        """Forget all users, when the caches were emptied; a reader starts over."""
        self._changes.clear()
        self.cursor += 1
        self._forgotten = self.cursor

    def _note(self, user: str, change: _Change) -> None:
        self.cursor = change.sequence
        self._changes[user] = change
        self._changes.move_to_end(user)
        if len(self._changes) > self._kept:
            _, oldest = self._changes.popitem(last=False)
            self._forgotten = oldest.sequence

    def since(self, cursor: int, *, now_ms: float, most: int = MAX_USERS) -> tuple[int, list[UserState]]:
        """Return what changed after a cursor, most recent first, and that cursor.

        The cursor is 0 when that one is unknown, or too old to tell all that has changed; then the users are the last ones that
        hold anything.
        """
        if self._forgotten <= cursor <= self.cursor:
            users: list[UserState] = []
            for user, change in reversed(self._changes.items()):
                if change.sequence <= cursor:
                    return cursor, users
                if len(users) == most:
                    break
                users.append(self._state(user, change, now_ms))
            else:
                return cursor, users
        held = (self._state(user, change, now_ms) for user, change in reversed(self._changes.items()))
        return 0, list(islice((state for state in held if not state.gone), most))

    def _state(self, user: str, change: _Change, now_ms: float) -> UserState:
        hbm, host, ssd = self._tokens_of((user, change.version))
        age_ms = round(max(0.0, now_ms - change.used_ms), 1)
        return UserState(key=user, tokens_hbm=hbm, tokens_host=host, tokens_ssd=ssd, age_ms=age_ms)
