"""Which changes of a policy go to canaries first, and which are taken by all instances at once.

Only what acts can harm: a strategy in Shadow moves nothing, and Static and MissRatioCurve are what everything else falls back to.
So a change needs canaries when it puts a strategy or a model in charge that was not, or gives the one in charge more room. Every
change in the other direction is a brake, and a brake is never delayed.
"""

from __future__ import annotations

from dataclasses import dataclass

GUARDED = frozenset({"HillClimb", "Learned"})
"""Strategies that are put in charge by canaries only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Who is in charge of the split, and how far it may go; percents are points of usable HBM.

    Attributes
    ----------
    model_sha256
        Digest of the model; empty for strategies that run none.
    residual_percent
        Largest online correction of the model; 0 where it is off.
    """

    strategy: str
    model_sha256: str = ""
    clamp_percent: int = 0
    residual_percent: int = 0


def charge_of(
    *, strategy: str, shadow: bool, model_sha256: str | None = None, clamp_percent: int = 0, residual_percent: int = 0
) -> Charge | None:
    """Who is in charge under a policy; None for what needs no canaries: Shadow, the safe strategies, a Learned without a model.

    Without a model it is the anchor that decides, which is MissRatioCurve.
    """
    if shadow or strategy not in GUARDED:
        return None
    if strategy != "Learned":
        return Charge(strategy=strategy)
    if model_sha256 is None:
        return None
    return Charge(strategy=strategy, model_sha256=model_sha256, clamp_percent=clamp_percent, residual_percent=residual_percent)


def needs_canaries(new: Charge | None, old: Charge | None) -> bool:
    """Whether `new` may replace `old` on all instances only after canaries have tried it."""
    if new is None:
        return False
    if old is None or (new.strategy, new.model_sha256) != (old.strategy, old.model_sha256):
        return True
    return new.clamp_percent > old.clamp_percent or new.residual_percent > old.residual_percent
