"""What each agent measured over the last quarter of an hour, one row for each reporting window of ten seconds.

A rollout compares instances before and after a change, so the figures of the time before have to be there when the change comes.
They cost no call: whatever is entered in the agent book is kept here too, in a ring of fixed size for each instance.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contract.agent import AgentStatus

WINDOW_SECONDS = 10.0
"""Length of an agent's reporting window, and how often it is asked."""
KEPT = 96
FEWEST_REQUESTS = 20.0
"""A window with fewer requests says nothing about a P99."""
_COLUMNS = 6  # second, log P99, bad percent, requests per second, who is in charge, generation of the intent
_SECOND, _P99, _BAD, _RATE, _CHARGE, _GENERATION = range(_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Figures by instance and window, each of shape (instances, windows); NaN where nothing was measured.

    Attributes
    ----------
    log_p99
        Natural logarithm of the P99 in milliseconds.
    bad_percent
        Requests that missed the objective, percent.
    per_second
        Requests per second.
    """

    log_p99: NDArray[np.float64]
    bad_percent: NDArray[np.float64]
    per_second: NDArray[np.float64]


def window_of(at_s: float) -> int:
    """Number of the window that a monotonic second belongs to."""
    return math.floor(at_s / WINDOW_SECONDS)


def charge_in_force(status: AgentStatus) -> str:
    """Who decides at an agent, in one word: its strategy, with the model's digest where one decides."""
    model = status.model_in_force
    return status.strategy_in_force if model is None else f"{status.strategy_in_force}/{model}"


class AgentWindows:
    """The rings, by GRInstance uid."""

    def __init__(self) -> None:
        self._rings: dict[str, NDArray[np.float64]] = {}

    def note(self, uid: str, status: AgentStatus, *, at_s: float) -> None:
        """Keep the figures of a status that came at monotonic second `at_s`; one that overlaps the last window is left out."""
        ring = self._rings.get(uid)
        if ring is None:
            ring = self._rings[uid] = np.full((KEPT, _COLUMNS), np.nan)
        if at_s - ring[-1, _SECOND] < 0.8 * WINDOW_SECONDS:  # NaN is not below anything
            return
        ring[:-1] = ring[1:]
        rate = status.requests_per_second
        enough = rate is not None and rate * WINDOW_SECONDS >= FEWEST_REQUESTS
        p99, good = status.p99_ms, status.slo_percent
        ring[-1] = (
            at_s,
            math.log(p99) if enough and p99 is not None and p99 > 0.0 else math.nan,
            100.0 - good if enough and good is not None else math.nan,
            rate if rate is not None else math.nan,
            _number_of(charge_in_force(status)),
            status.generation if status.uid == uid else 0,
        )

    def grid(
        self,
        uids: Sequence[str],
        *,
        first: int,
        last: int,
        charge: str | None = None,
        generations: Mapping[str, int] | None = None,
    ) -> Grid:
        """The figures of the windows `first` to `last`, both included.

        Parameters
        ----------
        charge
            Only windows in which this one was in charge; None: whoever was.
        generations
            Only windows in which the agent held an intent of this generation or a later one, none of those that are not named
            here; None: whatever it held.
        """
        shape = (len(uids), max(0, last - first + 1))
        figures = [np.full(shape, np.nan) for _ in range(3)]
        number = None if charge is None else _number_of(charge)
        for row, uid in enumerate(uids):
            ring = self._rings.get(uid)
            if ring is None:
                continue
            places = np.floor(ring[:, _SECOND] / WINDOW_SECONDS) - first
            wanted = (places >= 0) & (places < shape[1])
            if number is not None:
                wanted &= ring[:, _CHARGE] == number
            if generations is not None:
                wanted &= ring[:, _GENERATION] >= generations.get(uid, math.inf)
            at = places[wanted].astype(np.intp)
            for figure, column in zip(figures, (_P99, _BAD, _RATE), strict=True):
                figure[row, at] = ring[wanted, column]
        return Grid(log_p99=figures[0], bad_percent=figures[1], per_second=figures[2])

    def forget(self, uid: str) -> None:
        """The instance is gone."""
        self._rings.pop(uid, None)

    def forget_all(self) -> None:
        """Trust nothing that was heard before."""
        self._rings.clear()


def _number_of(charge: str) -> float:
    """A word as a number; what agents say is bounded by nobody, so no list of words is kept."""
    return float(zlib.crc32(charge.encode()))
