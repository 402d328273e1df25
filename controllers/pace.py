"""How often a loop may look and write: changed numbers wait, a condition that changes may hurry, a dear look is taken rarely.

A number alone is written when ten seconds have passed since the last write. A transition is written after one second, but no more
than six writes fall into any minute, so the long-run rate is the same one write per ten seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

NUMBERS_SECONDS = 10.0
TRANSITION_SECONDS = 1.0
WINDOW_SECONDS = 60.0
WINDOW_WRITES = 6


def wait_before_write(ages: Sequence[float], *, transition: bool = False) -> float:
    """Seconds until the next status write may leave; 0 means now.

    Parameters
    ----------
    ages
        Seconds since each earlier write, newest (smallest) first; older ones than the window do not matter.
    transition
        Whether a condition changes its status, reason or generation, or appears for the first time.
    """
    recent = [age for age in ages if age < WINDOW_SECONDS]
    if not recent:
        return 0.0
    wait = (TRANSITION_SECONDS if transition else NUMBERS_SECONDS) - recent[0]
    if len(recent) >= WINDOW_WRITES:
        wait = max(wait, WINDOW_SECONDS - recent[WINDOW_WRITES - 1])
    return max(0.0, wait)


class WriteTimes:
    """Remembers when the status of each object was written last; a new process starts with no memory and may write at once."""

    def __init__(self) -> None:
        self._times: dict[Hashable, tuple[float, ...]] = {}

    def note(self, key: Hashable, *, now_s: float) -> None:
        """A write of `key` has just succeeded, at monotonic second `now_s`."""
        self._times[key] = (now_s, *self._times.get(key, ()))[:WINDOW_WRITES]

    def ages(self, key: Hashable, *, now_s: float) -> tuple[float, ...]:
        """Seconds since the remembered writes of `key`, newest first."""
        return tuple(now_s - moment for moment in self._times.get(key, ()))

    def forget(self, key: Hashable) -> None:
        """The object is gone."""
        self._times.pop(key, None)


class Restraint:
    """Keeps a look that is dear from being taken too often: after one that took ten milliseconds of computing, a second passes.

    So a loop spends at most a hundredth of a core on one pool, however large it is and however often its instances change; a
    small pool never notices. While many pools change at once, as at a cold start, each waits longer: the loop spends at most a
    twentieth of a core on all of them. What a look costs is read from a clock that goes on while the machine does something else
    or sleeps, so the pause has an end: a look during which the process stood still for a minute must not leave the pool alone
    for twenty.
    """

    SHARE = 100.0
    SHARE_OF_ALL = 20.0
    LONGEST_SECONDS = 10.0

    def __init__(self) -> None:
        self._looks: dict[Hashable, tuple[float, float]] = {}  # when the last one ended, and what it cost
        self._recent: OrderedDict[Hashable, float] = OrderedDict()  # when it ended, for those of the last seconds, oldest first

    def seconds_left(self, key: Hashable, *, now_s: float) -> float:
        """Seconds until `key` may be looked at again; 0 means now."""
        ended_s, cost_s = self._looks.get(key, (now_s, 0.0))
        while self._recent and next(iter(self._recent.values())) < now_s - self.LONGEST_SECONDS:
            self._recent.popitem(last=False)
        share = max(self.SHARE, self.SHARE_OF_ALL * len(self._recent))
        return max(0.0, ended_s + min(self.LONGEST_SECONDS, share * cost_s) - now_s)

    def note(self, key: Hashable, *, began_s: float, ended_s: float) -> None:
        """A look at `key` was taken; nothing else may have run in between."""
        self._looks[key] = (ended_s, ended_s - began_s)
        self._recent[key] = ended_s
        self._recent.move_to_end(key)

    def forget(self, key: Hashable) -> None:
        """The object is gone."""
        self._looks.pop(key, None)
        self._recent.pop(key, None)
