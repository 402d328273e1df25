"""Which published table is to be obeyed: generations rise; a tombstone empties, and an object made anew begins anew."""

from __future__ import annotations

import xxhash

from contract.table import RoutingTable


class Fence:
    """Lets tables through whose generation rises; after a tombstone, or in an object made anew, any generation is new."""

    def __init__(self) -> None:
        self.generation = -1
        self._lineage = 0

    def admits(self, table: RoutingTable, *, lineage: int = 0) -> bool:
        """Whether `table` is to be obeyed; if so, it is the one in force from now on."""
        if is_tombstone(table):
            self.generation = -1
            return True
        if lineage == self._lineage and table.generation <= self.generation:
            return False
        self.generation, self._lineage = table.generation, lineage
        return True


def is_tombstone(table: RoutingTable) -> bool:
    """Whether it empties a gateway: a table without instances is what a deleted pool leaves."""
    return not table.instances


def lineage_of(uid: str) -> int:
    """Number of the published object that a table is from, 0 for one that has no uid (a file, an address)."""
    return xxhash.xxh32_intdigest(uid.encode()) if uid else 0
