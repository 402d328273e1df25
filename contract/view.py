"""One accepted table, laid out for picks: an owner for each of 4096 slots, and who may take over from whom.

A view never changes; a router replaces it as a whole. The order in which instances are tried for a user is part of the table:
its slot's owner, then the owners of the following slots, each once. Client and endpoint picker have the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from contract.keys import SLOTS
from contract.table import NOBODY, InstanceState, RoutingTable, check_rows, key_header_of, limits_of, unpack_slots

SERVING = (InstanceState.READY, InstanceState.WARMING)


@dataclass(frozen=True, slots=True)
class Pick:
    """The instance chosen for a user, with the generation of the table that said so."""

    name: str
    uid: str
    address: str
    generation: int


class View:
    """A table in force.

    Attributes
    ----------
    owners : list of Pick or None
        Owner of each slot.
    serving : dict of str to Pick
        Those that own slots or may be sent to otherwise (Ready, Warming), by uid.
    idle : tuple of Pick
        Those that serve and own no slot yet, in the order of the table: better than nobody.
    by_name : dict of str to Pick
        All instances, also those that drain and are reached by who names them.
    """

    __slots__ = (
        "by_name",
        "generation",
        "idle",
        "incarnation",
        "key_header",
        "key_id",
        "owners",
        "owning",
        "serving",
        "table",
        "taken_ms",
        "withdrawn",
    )

    def __init__(self, table: RoutingTable | None, *, incarnation: str = "", taken_ms: float = 0.0) -> None:
        self.table = table
        self.incarnation, self.taken_ms = incarnation, taken_ms
        self.generation = -1 if table is None else table.generation
        self.key_id = "" if table is None else table.key_id
        self.key_header = key_header_of(limits_of(table))
        self.withdrawn = table is not None and not table.instances
        self.owners: list[Pick | None] = [None] * SLOTS
        self.owning = 0
        self.serving: dict[str, Pick] = {}
        self.idle: tuple[Pick, ...] = ()
        self.by_name: dict[str, Pick] = {}
        if table is not None:
            self._fill(table)

    def _fill(self, table: RoutingTable) -> None:
        indices = unpack_slots(table.slots, instances=len(table.instances))
        rows = table.instances
        check_rows(rows)
        picks: list[Pick] = [Pick(row.name, row.uid, row.address, table.generation) for row in rows]
        self.owners = [None if index == NOBODY else picks[index] for index in indices]
        own = set(indices) - {NOBODY}
        self.owning = len(own)
        self.by_name = {p.name: p for p, row in zip(picks, rows, strict=True) if row.state is not InstanceState.UNREACHABLE}
        self.serving = {p.uid: p for i, p in enumerate(picks) if i in own or rows[i].state in SERVING}
        self.idle = tuple(p for i, p in enumerate(picks) if i not in own and p.uid in self.serving)

    def in_order(self, slot: int) -> Iterator[Pick]:
        """Instances to try for a slot, each once, the owner first; those without slots are not among them."""
        owners, seen = self.owners, set[str]()
        for step in range(SLOTS):
            owner = owners[(slot + step) % SLOTS]
            if owner is not None and owner.uid not in seen:
                seen.add(owner.uid)
                yield owner
                if len(seen) == self.owning:
                    return
