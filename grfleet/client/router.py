"""Table look-up: user key -> slot -> instance, in memory.

A table is replaced as a whole and only by a higher generation, so a late or repeated answer never moves users back. When the
owner of a slot cannot serve (the caller says which instances just failed), the next owner is found by walking the slots, which
every client does in the same order.
"""

from collections.abc import Collection
from dataclasses import dataclass

from contract.keys import SLOTS, slot_of
from contract.table import NOBODY, RoutingTable, unpack_slots


class NoInstance(Exception):
    """No instance of the table may take this request: the table is empty, or all its owners were excluded."""


@dataclass(frozen=True)
class Pick:
    """The instance chosen for a user, with the generation of the table that said so."""

    name: str
    uid: str
    address: str
    generation: int


class Router:
    """Answers `pick` from the last accepted table; not thread-safe by itself, replacing the table is atomic."""

    def __init__(self) -> None:
        self._generation = -1
        self._owners: list[int] = []
        self._picks: list[Pick] = []

    @property
    def generation(self) -> int:
        """Generation of the table in use, -1 before the first."""
        return self._generation

    def accept(self, table: RoutingTable) -> bool:
        """Use `table` if its generation is higher than the one in use; say whether it was taken.

        Raises
        ------
        contract.errors.ProtocolViolation
            When the packed slots are not a table; the one in use stays.
        """
        if table.generation <= self._generation:
            return False
        owners = unpack_slots(table.slots, instances=len(table.instances))
        picks = [Pick(i.name, i.uid, i.address, table.generation) for i in table.instances]
        self._owners, self._picks, self._generation = owners, picks, table.generation
        return True

    def pick(self, user_key: str, *, exclude: Collection[str] = ()) -> Pick:
        """Return the instance of a user.

        Parameters
        ----------
        user_key : str
            `contract.keys.user_key` of the user, never the raw id.
        exclude : collection of str
            Names of instances that just failed this request; the next owner is returned instead.

        Raises
        ------
        NoInstance
            When no instance is left.
        """
        if not self._owners:
            raise NoInstance("no routing table yet; is the pool's GRRoutingTable published?")
        slot = slot_of(user_key)
        owner = self._owners[slot]
        if owner != NOBODY and self._picks[owner].name not in exclude:
            return self._picks[owner]
        for step in range(1, SLOTS):
            owner = self._owners[(slot + step) % SLOTS]
            if owner != NOBODY and self._picks[owner].name not in exclude:
                return self._picks[owner]
        raise NoInstance(f"table generation {self._generation} has no instance outside {sorted(exclude)}")
