"""Tables as a router has seen them: how many were taken, how old the one in force is, and whether their source still answers.

Old tables are normal, as a fleet at rest publishes nothing; what grows while the API is away is the time since its last answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from contract.table import RoutingTable
from dataplane.fence import Fence, lineage_of
from dataplane.instruments import Counter, Gauge, Registry


class TablesSeen:
    """Judges tables by their generation, and remembers when and what.

    Parameters
    ----------
    monotonic_s
        Clock for ages.

    Attributes
    ----------
    taken, stale, broken
        Tables that were offered, by what became of them.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self.taken = self.stale = self.broken = 0
        self._fence = Fence()
        self._monotonic_s = monotonic_s
        self._taken_s: float | None = None
        self._heard_s: float | None = None

    @property
    def generation(self) -> int:
        """Generation of the table in force, -1 before the first and after a tombstone."""
        return self._fence.generation

    @property
    def table_age_s(self) -> float | None:
        """Seconds since the table in force was taken, None before the first."""
        return None if self._taken_s is None else self._monotonic_s() - self._taken_s

    @property
    def source_age_s(self) -> float | None:
        """Seconds since the source of tables answered at all, None before."""
        return None if self._heard_s is None else self._monotonic_s() - self._heard_s

    def heard(self) -> None:
        """Note that the source of tables answered, with a new table or without."""
        self._heard_s = self._monotonic_s()

    def take(self, table: RoutingTable, *, uid: str = "") -> bool:
        """Whether a sound table is to be obeyed; if so, it is the one in force from now on.

        Parameters
        ----------
        uid
            Of the published object, if it has one: generations of another object are not compared.
        """
        if not self._fence.admits(table, lineage=lineage_of(uid)):
            self.stale += 1
            return False
        self.taken += 1
        self._taken_s = self._monotonic_s()
        return True


class TableMetrics:
    """The instruments that show them; `part` is the router's part of each name."""

    def __init__(self, part: str, *, registry: Registry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"grfleet_{part}_{name}", text, registry=registry)

        self._generation = gauge("generation", "Generation of the table in force, -1 without one")
        self._table_age = gauge("table_age_seconds", "Seconds since a table was taken, NaN before the first")
        self._source_age = gauge("source_age_seconds", "Seconds since the source of tables answered, NaN before")
        self._tables = Counter(f"grfleet_{part}_tables_total", "Tables offered by verdict", ("verdict",), registry=registry)

    def show(self, seen: TablesSeen) -> None:
        """Set them to what was seen until now."""
        self._generation.set(seen.generation)
        self._table_age.set(math.nan if seen.table_age_s is None else seen.table_age_s)
        self._source_age.set(math.nan if seen.source_age_s is None else seen.source_age_s)
        for verdict, count in (("taken", seen.taken), ("stale", seen.stale), ("broken", seen.broken)):
            self._tables.labels(verdict=verdict).set(count)
