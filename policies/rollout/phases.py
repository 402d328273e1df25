"""The phases of a rollout and what leads from one to the next.

Measuring -> Canary -> (Extended ->) Complete, with RolledBack as soon as harm is proven, and Inconclusive where the canaries
have soaked twice as long as asked and it still cannot be told. The looks at which a change may pass are planned: the end of the
soak, the end of its one extension, and after that only what holds at all looks together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from policies.rollout.verdict import Verdict

ALONE_FACTOR = 2
"""Canaries without controls soak this many times as long, and as many windows before the change are wanted."""


class Phase(StrEnum):
    """Where a rollout is."""

    MEASURING = "Measuring"
    CANARY = "Canary"
    EXTENDED = "Extended"
    INCONCLUSIVE = "Inconclusive"
    COMPLETE = "Complete"
    ROLLED_BACK = "RolledBack"
    WITHDRAWN = "Withdrawn"


TRYING = frozenset({Phase.CANARY, Phase.EXTENDED, Phase.INCONCLUSIVE})
"""Phases in which the canaries have the change and the others do not."""
GOING_ON = TRYING | {Phase.MEASURING}
"""Phases that lead to another one by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """How long the canaries have had the change, and how long they are to have it, in seconds; `alone` as in `Evidence`."""

    seconds: float
    wanted_seconds: float
    alone: bool = False

    @property
    def planned_seconds(self) -> float:
        """Seconds to the first planned look."""
        return self.wanted_seconds * (ALONE_FACTOR if self.alone else 1)


def next_phase(phase: Phase, *, soak: Soak, verdict: Verdict, measured: bool) -> Phase:
    """The phase that follows from what is known now; the same one when nothing follows.

    Parameters
    ----------
    verdict
        What the comparison says at present; only looked at while canaries have the change.
    measured
        Whether enough is known of the time before the change.
    """
    if phase is Phase.MEASURING:
        if soak.wanted_seconds <= 0:
            return Phase.COMPLETE  # the policy asks for no trial
        return Phase.CANARY if measured else Phase.MEASURING
    if phase not in TRYING:
        return phase
    if verdict is Verdict.HARM:
        return Phase.ROLLED_BACK
    if soak.wanted_seconds <= 0:
        return Phase.COMPLETE  # nor does it any more
    if phase is Phase.INCONCLUSIVE:
        return Phase.COMPLETE if verdict is Verdict.SURELY_PASSES else phase
    planned = soak.planned_seconds * (2 if phase is Phase.EXTENDED else 1)
    if soak.seconds < planned:
        return phase
    if verdict in (Verdict.PASSES, Verdict.SURELY_PASSES):
        return Phase.COMPLETE
    return Phase.EXTENDED if phase is Phase.CANARY else Phase.INCONCLUSIVE
