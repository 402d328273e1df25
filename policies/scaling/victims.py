"""Which instances leave when a pool gets smaller: those that serve nobody first, then those whose caches are worth least.

An instance that is not ready holds no user, and the ReplicaSet that deletes the pods takes such ones first whatever anybody says,
so the choice starts there too. Among ready ones the resident value decides: bytes of state that would have to be computed anew
elsewhere. Unknown is not zero: an instance whose value nobody could measure is taken after those that were measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One instance that may leave.

    Attributes
    ----------
    ready
        Whether it serves.
    wanted_version
        Whether it runs the wanted model version; others are about to be replaced anyway.
    resident_bytes
        Bytes of cached state that it holds; None when nobody could measure them.
    age_seconds
        Time since it came into being, in seconds.
    """

    name: str
    ready: bool
    wanted_version: bool = True
    resident_bytes: int | None = None
    age_seconds: float = 0.0


def order_of_leaving(candidates: Iterable[Candidate]) -> list[Candidate]:
    """All candidates, who leaves first comes first.

    Not ready before ready; an old model version before the wanted one; less resident state before more, unknown last; younger
    before older, because an older instance knows its users better; and by name, so that the order does not depend on the input's.
    """
    return sorted(candidates, key=_rank)


def choose_victims(candidates: Iterable[Candidate], count: int) -> list[Candidate]:
    """The `count` candidates that leave first (all of them, if there are fewer)."""
    return order_of_leaving(candidates)[: max(0, count)]


def _rank(candidate: Candidate) -> tuple[bool, bool, bool, int, float, str]:
    resident = candidate.resident_bytes
    return (
        candidate.ready,
        candidate.wanted_version,
        resident is None,
        resident or 0,
        candidate.age_seconds,
        candidate.name,
    )
