"""Tables, keys and a clock for the tests of the router client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from contract.keys import SLOTS, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from grfleet.client import PoolKey, Router, Sighting

SECRET = b"0123456789abcdef"
KEY = PoolKey("pool-key", SECRET)


class HandClock:
    """Milliseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0

    def __call__(self) -> float:
        return self.now_ms


def even(names: str) -> list[int]:
    """Slots dealt out in turn."""
    return [slot % len(names) for slot in range(SLOTS)]


def table(
    generation: int,
    names: str = "abc",
    *,
    owners: Sequence[int] | None = None,
    uid: str = "uid-{name}",
    key_id: str = "",
    address: str = "http://{name}:9000",
    states: dict[str, InstanceState] | None = None,
) -> RoutingTable:
    """A table whose instances are called by one letter each."""
    instances = [
        TableInstance(
            name=name,
            uid=uid.format(name=name),
            address=address.format(name=name),
            weight_percent=100,
            state=(states or {}).get(name, InstanceState.READY),
        )
        for name in names
    ]
    return RoutingTable(generation=generation, instances=instances, slots=pack_slots(owners or even(names)), key_id=key_id)


def tombstone(generation: int) -> RoutingTable:
    """A table that says: nobody any more."""
    return RoutingTable(generation=generation, instances=[], slots=pack_slots([0xFFFF] * SLOTS))


def key_in_slot_of(name: str, router: Router) -> str:
    """The key of a user that belongs to an instance by the table alone."""
    for number in range(100_000):
        key = user_key(SECRET, f"user {number}")
        if router.owners(key, most=1)[0].name == name:
            return key
    raise AssertionError(f"no user of {name}")


class Fed:
    """A source that says what it is given, then nothing more."""

    def __init__(self, *seen: Sighting | RoutingTable) -> None:
        self.seen = [Sighting(table=each) if isinstance(each, RoutingTable) else each for each in seen]
        self.closed = False

    @property
    def label(self) -> str:
        return "a table by hand"

    async def sightings(self) -> AsyncGenerator[Sighting, None]:
        while self.seen:
            yield self.seen.pop(0)
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


def encoded(routing_table: RoutingTable) -> bytes:
    return msgspec.json.encode(routing_table)
