"""What a comparison says about a change: it harms, it passes, or nobody knows yet.

Two figures are judged, the P99 and the share of bad requests, and one that harms is enough. Harm has to be both as large as the
policy says and more than chance explains; a change passes only when a harm of that size can be ruled out. What is between stays
open: no evidence of harm is no evidence of no harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from policies.rollout.comparison import Change

FEWEST_BEFORE = 12
"""Windows of the time before the change, below which nothing is changed."""
FEWEST_AFTER = 6
"""Windows since the change, below which nothing is concluded."""
COMPARABLE_LOAD = math.log(1.25)
"""Without controls nothing passes while the load differs by more than a quarter from what it was before."""


class Verdict(StrEnum):
    """What a comparison says: harm is proven, or ruled out at a planned look, or at every look; open is none of these."""

    HARM = "Harm"
    PASSES = "Passes"
    SURELY_PASSES = "SurelyPasses"
    OPEN = "Open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was compared.

    Attributes
    ----------
    p99
        Change of the log P99; None while too little was measured.
    bad
        Change of the share of bad requests, in points; None where no objective is measured.
    load
        Log ratio of the canaries' request rates since and before the change; None where unknown.
    alone
        Whether there are no controls, so that the canaries are compared with their own past.
    """

    p99: Change | None = None
    bad: Change | None = None
    load: float | None = None
    alone: bool = False

    @property
    def windows(self) -> int:
        """Windows since the change that count."""
        return self.p99.windows if self.p99 is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How much harm is too much: a P99 higher by this percent, or a share of bad requests higher by this percent of the share
    that the objective allows (in points)."""

    p99_percent: int
    allowed_bad_percent: float

    @property
    def p99_log(self) -> float:
        """The same as a log ratio."""
        return math.log1p(self.p99_percent / 100.0)

    @property
    def bad_points(self) -> float:
        """Points of requests."""
        return self.p99_percent / 100.0 * self.allowed_bad_percent


def judge(evidence: Evidence, tolerance: Tolerance) -> Verdict:
    """Say what the evidence means; see the module."""
    p99, bad = evidence.p99, evidence.bad
    if p99 is None or p99.windows < FEWEST_AFTER:
        return Verdict.OPEN
    if _harms(p99, tolerance.p99_log) or (bad is not None and _harms(bad, tolerance.bad_points)):
        return Verdict.HARM
    if bad is not None and bad.likely > 0.0 and bad.mean >= tolerance.bad_points:
        return Verdict.OPEN  # more bad requests than chance explains at one look: not enough for harm, too much to pass
    if evidence.alone and (evidence.load is None or abs(evidence.load) > COMPARABLE_LOAD):
        return Verdict.OPEN
    if p99.surely_at_most < tolerance.p99_log:
        return Verdict.SURELY_PASSES
    return Verdict.PASSES if p99.at_most < tolerance.p99_log else Verdict.OPEN


def _harms(change: Change, tolerated: float) -> bool:
    return change.surely > 0.0 and change.mean >= tolerated
