"""Users, tables and expectations of the routing benchmark: what the kernel says, written down for a load that knows no kernel.

Most requests are of hot users, who stand in the hot-user table at an instance drawn by lot, so that the slot table alone would be
noticed; the others are of users whose slot decides. How often a hot user comes follows a power law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contract.keys import slot_of, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots, unpack_slots
from policies.routing.table import ChurnBudget, Member, MemberState, Table, plan_table

POOL_KEY = b"a key for the benchmark of routing"
ANYBODY, WHOEVER_IS_FIRST = -1, -2
HOT_SHARE = 0.8
EXPONENT = 1.1
_ORDER = 1_000_000
_FREE = ChurnBudget(max_moved_percent=100.0)


@dataclass(frozen=True)
class Crowd:
    """Who asks: ids and keys, the hot users first, and the place of each hot user's instance."""

    folder: Path
    ids: Sequence[str]
    keys: Sequence[str]
    slots: Sequence[int]
    at: NDArray[np.int64]
    order: Path

    @property
    def hot(self) -> int:
        return len(self.at)

    def moved(self, instances: int) -> Crowd:
        """The same users, each hot one at the next instance."""
        return Crowd(self.folder, self.ids, self.keys, self.slots, (self.at + 1) % instances, self.order)

    def among(self, instances: int) -> Crowd:
        """The same users in a smaller fleet."""
        return Crowd(self.folder, self.ids, self.keys, self.slots, self.at % instances, self.order)

    def overrides(self) -> dict[str, str]:
        """User key -> uid of the instance, as a gateway's agent takes it."""
        return {self.keys[n]: uid_of(int(place)) for n, place in enumerate(self.at)}

    def expect(
        self, name: str, before: Sequence[int], after: Sequence[int] | None = None, *, keyed: bool = True, id_is_key: bool = False
    ) -> Path:
        """Write what the load should see of each user, before and after a change; returns the file."""
        path = self.folder / f"{name}.users"
        owners = zip(before, before if after is None else after, strict=True)
        ids = self.keys if id_is_key else self.ids
        rows = zip(ids, self.keys if keyed else ["-"] * len(self.ids), owners, strict=True)
        path.write_text("".join(f"{i} {key} {old} {new}\n" for i, key, (old, new) in rows))
        return path


def crowd_of(folder: Path, *, hot: int, cold: int, instances: int, rng: np.random.Generator) -> Crowd:
    """Draw users, where the hot ones are, and the order in which all of them ask."""
    ids = [f"user-{n}" for n in range(hot + cold)]
    keys = [user_key(POOL_KEY, each) for each in ids]
    law = np.arange(1, hot + 1, dtype=np.float64) ** -EXPONENT
    drawn = rng.permutation(hot)[rng.choice(hot, _ORDER, p=law / law.sum())]
    order = np.where(rng.random(_ORDER) < HOT_SHARE, drawn, rng.integers(hot, hot + cold, _ORDER))
    path = folder / "order"
    order.astype("<u4").tofile(path)
    return Crowd(folder, ids, keys, [slot_of(key) for key in keys], rng.integers(0, instances, hot), path)


def name_of(number: int) -> str:
    """Name of an instance; the load reads its number out of it."""
    return f"i-{number}"


def uid_of(number: int) -> str:
    return f"uid-{number}"


class Tables:
    """Tables of one pool as the kernel plans them, generation after generation."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self.ports = dict(ports)
        self._last: Table | None = None

    def next(self, *, without: int = -1) -> RoutingTable:
        """The next table, of all instances but one."""
        members = [Member(name=name_of(n), uid=uid_of(n), state=MemberState.READY) for n in self.ports if n != without]
        plan = plan_table(self._last, members, budget=_FREE, now_ms=0.0)
        self._last = plan.table
        rows = [
            TableInstance(
                name=owner.name,
                uid=owner.uid,
                address=f"http://127.0.0.1:{self.ports[int(owner.uid.removeprefix('uid-'))]}",
                weight_percent=100,
                state=InstanceState.READY,
            )
            for owner in plan.table.owners
        ]
        return RoutingTable(generation=plan.table.generation, instances=rows, slots=pack_slots(plan.table.slots))


def owners(crowd: Crowd, table: RoutingTable | None, *, overrides: bool = True) -> list[int]:
    """Number of the instance that each user belongs to: by override if its instance is in the table, then by slot.

    Without a table, users without override are whoever's that answers first.
    """
    by_slot: list[int] | None = None
    there: set[int] | None = None
    if table is not None:
        numbers = [int(row.uid.removeprefix("uid-")) for row in table.instances]
        by_slot = [numbers[place] for place in unpack_slots(table.slots, instances=len(numbers))]
        there = set(numbers)
    found = []
    for n, slot in enumerate(crowd.slots):
        if overrides and n < crowd.hot and (there is None or int(crowd.at[n]) in there):
            found.append(int(crowd.at[n]))
        else:
            found.append(WHOEVER_IS_FIRST if by_slot is None else by_slot[slot])
    return found
