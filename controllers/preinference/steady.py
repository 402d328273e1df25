"""Keeps published words and numbers still: a new one must have been true for a while before it replaces what stands.

Decisions act on each measurement at once; only what people read waits. So one missed scrape, or a load at the border of two
counts, holds capacity where it is without a line in the status.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A value that would like to be published, and since which monotonic second it has been true."""

    value: Hashable
    since_s: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Candidates by the name of what they would replace."""

    waiting: Mapping[str, Candidate] = field(default_factory=dict)

    def without(self, *names: str) -> Steady:
        """The memory without these candidates: something else was published meanwhile."""
        return Steady({key: value for key, value in self.waiting.items() if key not in names})

    def settle(self, name: str, wanted: V, published: V, *, now_s: float, hold_s: float) -> tuple[V, Steady]:
        """What to publish, and the memory for the next time.

        Parameters
        ----------
        hold_s
            Seconds for which `wanted` must have been seen without a break.
        """
        rest = self.without(name)
        if wanted == published:
            return published, rest
        known = self.waiting.get(name)
        if known is None or known.value != wanted:
            known = Candidate(value=wanted, since_s=now_s)
        if now_s - known.since_s >= hold_s:
            return wanted, rest
        return published, Steady({**rest.waiting, name: known})
