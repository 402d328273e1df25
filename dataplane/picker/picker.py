"""The picker as a whole, without a transport: takes tables and hot users, opens an exchange for each request, tells how it is.

Nothing here asks anybody: with the operator, the API server or the file of the table gone, picks go on by the last table.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from itertools import islice

import msgspec

from contract.errors import ProtocolViolation
from contract.table import USER_KEY_HEADER, RoutingTable, TableLimits, key_header_of, limits_of
from contract.view import View
from dataplane.picker.chooser import Chooser, PickLimits
from dataplane.picker.exchange import Counts, Edge, Exchange
from dataplane.picker.fleet import Fleet
from dataplane.picker.messages import UserHeaders
from dataplane.tables_seen import TablesSeen

log = logging.getLogger("grfleet.picker")


class Picker:
    """Answers where requests go.

    Parameters
    ----------
    edge, limits
        How identities are treated, and how far an instance may be loaded.
    monotonic_s
        Clock for ages.
    rng
        Spreads requests without a user.
    max_users
        Bound of the hot-user table.
    """

    def __init__(
        self,
        edge: Edge,
        *,
        limits: PickLimits,
        monotonic_s: Callable[[], float],
        rng: random.Random,
        max_users: int = 100_000,
    ) -> None:
        self.counts, self.tables = Counts(), TablesSeen(monotonic_s)
        self.chooser = Chooser(limits.with_table(TableLimits()), rng=rng)
        self.max_users = max_users
        self._edge, self._limits = edge, limits
        self._key_header = edge.key_header
        self._headers = _headers_of(edge)
        self._table: RoutingTable | None = None
        self.on_change: Callable[[], None] = lambda: None

    @property
    def generation(self) -> int:
        """Generation of the table in force, -1 before the first and after a tombstone."""
        return self.tables.generation

    def offer(self, table: RoutingTable, *, uid: str = "") -> bool:
        """Take a table if its generation is new; say whether it was taken.

        Parameters
        ----------
        uid
            Of the published object, if it has one: generations of another object are not compared.

        Raises
        ------
        contract.errors.ProtocolViolation
            When it is no sound table; the one in force stays.
        """
        try:
            View(table)
        except ProtocolViolation:
            self.tables.broken += 1
            raise
        if not self.tables.take(table, uid=uid):
            return False
        # Not before it is taken: endpoints that go on are told what it says of them.
        fleet = Fleet(table, before=self.chooser.fleet, kept=self._limits.endpoints)
        for name, why in fleet.refused.items():
            log.warning("an instance is left out", extra={"instance": name, "why": why})
        self._table = table
        self.chooser.fleet = fleet
        if table.instances:  # a tombstone says nothing of them
            self._obey(limits_of(table))
        self.on_change()
        return True

    def _obey(self, said: TableLimits) -> None:
        self.chooser.set_limits(self._limits.with_table(said))
        header = self._key_header or key_header_of(said)
        if header != self._edge.key_header:
            self._edge = msgspec.structs.replace(self._edge, key_header=header)
            self._headers = _headers_of(self._edge)

    @property
    def table(self) -> RoutingTable | None:
        """The table in force, None before the first."""
        return self._table

    @property
    def users(self) -> Mapping[str, str]:
        """Hot users in force (user key -> instance uid)."""
        return self.chooser.users

    def down(self) -> frozenset[str]:
        """Return the uids of instances that are known to be down: none, the health of endpoints is the gateway's to check."""
        return frozenset()

    @property
    def pool_key(self) -> bytes:
        """Secret that ids are hashed by."""
        return self._edge.pool_key

    def set_key(self, pool_key: bytes) -> None:
        """Hash by another key from now on; users whose table is made for the one before are all misses."""
        self._edge = msgspec.structs.replace(self._edge, pool_key=pool_key)

    def set_users(self, users: Mapping[str, str]) -> None:
        """Replace the hot users (user key -> instance uid), at most `max_users` of them; the rest is left out."""
        self.chooser.users = dict(users if len(users) <= self.max_users else islice(users.items(), self.max_users))

    def exchange(self) -> Exchange:
        """Open the exchange of one request."""
        return Exchange(self._edge, self._headers, self.chooser, self.counts)

    def unhealthy(self) -> list[str]:
        """Return why this process should be started again: nothing that it could see itself."""
        return []

    def unready(self) -> list[str]:
        """Return why it cannot pick, nothing when it can. A withdrawn table is obeyed, so the picker is ready: to say 503."""
        return [] if self.tables.taken else ["no routing table yet"]


def _headers_of(edge: Edge) -> UserHeaders:
    return UserHeaders(id_header=edge.id_header, key_id=edge.key_id, key_header=edge.key_header or USER_KEY_HEADER)
