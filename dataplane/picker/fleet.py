"""The instances of one table as the picker needs them: where each is reached, who follows whom, and what is in flight there.

An instance is one `Endpoint` from the first table that names it to the last, so what is in flight on it survives every table in
between. What can be known before a request comes, the order of the instances of each slot, is made when the slot is first asked
for and then kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from urllib.parse import urlsplit

from contract.keys import SLOTS
from contract.table import RoutingTable, TableInstance
from contract.view import SERVING, View
from dataplane.addresses import ip_of

_NAME = re.compile(r"[\x21-\x7e]{1,253}")
_PORTS = {"": 80, "http": 80, "https": 443}


class Endpoint:
    """One instance, from table to table.

    Attributes
    ----------
    address
        `ip:port`, as the protocol names an endpoint.
    weight
        Its share of a full weight, 0 to 1; of one that drains 0.
    serving
        Whether it takes users; one that drains is only reached by a caller that names it.
    in_flight
        Requests that this picker sent there and that are not answered yet.
    """

    __slots__ = ("address", "in_flight", "name", "serving", "uid", "weight")

    def __init__(self, row: TableInstance, address: str) -> None:
        self.uid = row.uid
        self.in_flight = 0
        self.update(row, address)

    def update(self, row: TableInstance, address: str) -> None:
        """Take over what a new table says of it."""
        self.name, self.address = row.name, address
        self.serving = row.state in SERVING
        self.weight = row.weight_percent / 100.0 if self.serving else 0.0


class Fleet:
    """The instances of one table.

    Parameters
    ----------
    table
        None before the first.
    before
        The fleet of the table before, whose endpoints go on.
    kept
        How many instances of a slot's order are kept; more are found anew each time.

    Attributes
    ----------
    refused
        Names of rows that cannot be an endpoint, and why.
    idle, placed, total_weight
        Those that serve and own no slot yet; all that a request may go to without naming them, and the sum of their weights.

    Raises
    ------
    contract.errors.ProtocolViolation
        When the slots are not a table, or two rows are one instance.
    """

    def __init__(self, table: RoutingTable | None, *, before: Fleet | None = None, kept: int = 3) -> None:
        self._view = View(table)
        self._kept = kept
        self._orders: list[tuple[Endpoint, ...] | None] = [None] * SLOTS
        known = before.by_uid if before is not None else {}
        self.by_uid: dict[str, Endpoint] = {}
        self.refused: dict[str, str] = {}
        for row in table.instances if table is not None else ():
            try:
                address = address_of(row)
            except ValueError as error:
                self.refused[row.name[:80]] = str(error)
                continue
            endpoint = known.get(row.uid) or Endpoint(row, address)
            endpoint.update(row, address)
            self.by_uid[row.uid] = endpoint
        self.members = tuple(self.by_uid.values())
        self.by_name = {each.name: each for each in self.members}
        self.idle = tuple(self.by_uid[pick.uid] for pick in self._view.idle if pick.uid in self.by_uid)
        self.placed = (*self.in_order(0), *self.idle)
        self.total_weight = sum(each.weight for each in self.placed)
        self.by_address = {each.address: each for each in self.members}

    @property
    def generation(self) -> int:
        """Generation of the table, -1 without one."""
        return self._view.generation

    @property
    def withdrawn(self) -> bool:
        """Whether the table is a tombstone: its pool was deleted."""
        return self._view.withdrawn

    @property
    def key_id(self) -> str:
        """Which pool key the table is made for; empty where it says none."""
        return self._view.key_id

    def first(self, slot: int) -> tuple[Endpoint, ...]:
        """The owner of a slot and those that follow it, then who owns nothing yet, at most as many as are kept."""
        order = self._orders[slot]
        if order is None:
            following = chain(self.in_order(slot), self.idle)
            order = tuple(each for _, each in zip(range(self._kept), following, strict=False))
            self._orders[slot] = order
        return order

    def in_order(self, slot: int) -> Iterator[Endpoint]:
        """All instances that own slots, in the order in which a user of this slot tries them."""
        for pick in self._view.in_order(slot):
            endpoint = self.by_uid.get(pick.uid)
            if endpoint is not None:
                yield endpoint


def address_of(row: TableInstance) -> str:
    """Return `ip:port` of an instance.

    Raises
    ------
    ValueError
        When it has a name that no header carries, or an address that names no IP address and port.
    """
    if _NAME.fullmatch(row.name) is None:
        raise ValueError("its name cannot stand in a header")
    return _endpoint(row.address)


@lru_cache(maxsize=8192)
def _endpoint(address: str) -> str:
    """Kept from table to table: a thousand addresses would keep requests waiting for fifteen milliseconds each time."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    port = parts.port if parts.port is not None else _PORTS.get(parts.scheme, 0)
    if parts.scheme not in _PORTS or port == 0 or parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise ValueError("its address is no host and port of HTTP")
    host = ip_of(parts.hostname or "")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
