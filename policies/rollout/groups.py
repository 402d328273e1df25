"""Who takes a change first, and with whom they are compared.

The order is that of a hash over instance and change: the same question always has the same answer, and it is not always the
same users that try what is new. Both groups are bounded, because they stand in the status of the pool; beyond these sizes the
comparison hardly gains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

MOST_CANARIES = 100
MOST_CONTROLS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An instance that may be chosen. One that is not ready is chosen only when nobody else is there."""

    name: str
    uid: str
    ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The canaries, and those that are compared with them: none where all are canaries."""

    canaries: tuple[Member, ...]
    controls: tuple[Member, ...]


def canary_count(total: int, percent: int) -> int:
    """Canaries among so many instances: the percent of them, rounded up, at least one and at most `MOST_CANARIES`."""
    return min(total, MOST_CANARIES, max(1, -(-total * percent // 100)))


def choose(members: Iterable[Member], *, percent: int, revision: str) -> Groups:
    """Choose canaries and controls.

    Parameters
    ----------
    members
        Instances that stay; draining ones are left out by the caller.
    revision
        Names the change; another change has other canaries.
    """

    def place(member: Member) -> tuple[bool, str]:
        return not member.ready, hashlib.sha256(f"{revision}/{member.uid}".encode()).hexdigest()

    ordered = sorted(members, key=place)
    count = canary_count(len(ordered), percent) if ordered else 0
    return Groups(canaries=tuple(ordered[:count]), controls=tuple(ordered[count : count + MOST_CONTROLS]))
