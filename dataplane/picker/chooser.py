"""Which endpoints a request may go to, best first: the choice that its caller echoes, the hot-user table, the slot and followers.

The same order as in the gateway and in the client. A bound keeps the load that this picker sees itself even: who is above it is
passed over for the next of the order, except by a caller that asks for it by name, whose state lies nowhere else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np

from contract.keys import SLOTS, slot_of
from contract.table import TableLimits
from dataplane.picker.fleet import Endpoint, Fleet
from policies.routing.bound import SLACK, caps, first_below
from policies.routing.types import LoadBound


class PickLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How far one instance may be loaded, by what this picker has in flight there.

    Attributes
    ----------
    bound
        Who is above it gets no new user while another one is below; percent 0 turns it off.
    percent, floor
        Parts of the bound that were given and that no table changes; None for what the table says.
    most_in_flight
        With so many on every instance that could take a request, it is shed; 0 sheds nothing.
    endpoints
        How many endpoints are named for one request: the first, and those that a retry may use.
    """

    bound: LoadBound = LoadBound()
    most_in_flight: int = 0
    endpoints: int = 3
    percent: float | None = None
    floor: float | None = None

    def with_table(self, said: TableLimits) -> PickLimits:
        """Return the limits under a table that says this."""
        usual = self.bound
        percent, floor = said.bounded_load_percent, said.bounded_load_floor
        bound = LoadBound(
            percent=self.percent if self.percent is not None else float(percent if percent is not None else usual.percent),
            floor=self.floor if self.floor is not None else float(floor if floor is not None else usual.floor),
        )
        return msgspec.structs.replace(self, bound=bound)


class Refused(Exception):
    """A request that goes nowhere.

    Attributes
    ----------
    status
        503 when nobody is there, 429 when everybody is full.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Chooser:
    """Names endpoints by the table in force.

    Parameters
    ----------
    rng
        Spreads requests that have no user.
    """

    def __init__(self, limits: PickLimits, *, rng: random.Random) -> None:
        self.fleet = Fleet(None)
        self.users: Mapping[str, str] = {}
        self._rng = rng
        self.set_limits(limits)

    def set_limits(self, limits: PickLimits) -> None:
        """Choose by other limits from the next request on."""
        self.limits = limits
        self._room = limits.most_in_flight or math.inf
        self._quiet = min(self._room, limits.bound.floor if limits.bound.percent > 0 else math.inf)

    def choose(self, user_key: str, *, echo: str = "", subset: Collection[str] | None = None) -> Sequence[Endpoint]:
        """Return the endpoints of a request, best first, at most `limits.endpoints`.

        Parameters
        ----------
        user_key
            `contract.keys.user_key` of its user; empty for a request without one, which goes anywhere.
        echo
            Name of the instance that answered before; empty for none.
        subset
            Addresses among which the gateway lets choose; None for all.

        Raises
        ------
        Refused
            When there is none.
        """
        fleet = self.fleet
        slot = slot_of(user_key) if user_key else self._rng.randrange(SLOTS)
        named = fleet.by_name.get(echo) if echo else None
        hot = fleet.by_uid.get(self.users[user_key]) if user_key in self.users else None
        if hot is not None and not hot.serving:
            hot = None
        if subset is None:
            usual: Sequence[Endpoint] = fleet.first(slot)
            head = named or hot
            if head is not None:
                usual = (head, *(each for each in usual if each is not head))[: self.limits.endpoints]
            if usual:
                if usual[0].in_flight >= self._quiet and named is None:
                    usual = self._spread(slot, usual, hot)
                if not self.limits.most_in_flight or all(each.in_flight < self._room for each in usual):
                    return usual
        return self._carefully(slot, named, hot, subset)

    def reason(self, chosen: Endpoint, user_key: str, echo: str) -> str:
        """Say by what an endpoint was chosen: choice, hot, slot, spread (none of these) or anywhere (no user)."""
        if echo and chosen.name == echo:
            return "choice"
        if not user_key:
            return "anywhere"
        if self.users.get(user_key) == chosen.uid:
            return "hot"
        usual = self.fleet.first(slot_of(user_key))
        return "slot" if usual and usual[0] is chosen else "spread"

    def _spread(self, slot: int, usual: Sequence[Endpoint], hot: Endpoint | None) -> Sequence[Endpoint]:
        """Choose as `_carefully` does where all are allowed: mostly the first is within its bound, and no other is looked at."""
        fleet, bound = self.fleet, self.limits.bound
        if bound.percent <= 0 or usual[0].in_flight + 1 <= bound.floor:
            return usual
        load = sum([each.in_flight for each in fleet.placed])
        share = bound.percent / 100.0 * load / fleet.total_weight if fleet.total_weight > 0.0 else 0.0
        for each in chain((hot,) if hot is not None else (), fleet.in_order(slot), fleet.idle):
            if each.weight > 0.0 and each.in_flight + 1 <= max(share * each.weight, bound.floor) + SLACK:
                return usual if each is usual[0] else (each, *(other for other in usual if other is not each))[: len(usual)]
        return usual

    def _carefully(
        self, slot: int, named: Endpoint | None, hot: Endpoint | None, subset: Collection[str] | None
    ) -> Sequence[Endpoint]:
        """Choose among all, where the usual way could break a bound or leave the subset."""
        fleet = self.fleet
        order = list(dict.fromkeys([*([hot] if hot is not None else ()), *fleet.in_order(slot), *fleet.idle]))
        if subset is not None:
            order = [each for each in order if each.address in subset]
        if self.limits.bound.percent > 0:
            order = self._within_bound(order)
        if named is not None and (subset is None or named.address in subset):
            order = [named, *(each for each in order if each is not named)]
        if not order:
            raise Refused(503, self._why_nobody(subset))
        if self.limits.most_in_flight:
            order = [each for each in order if each.in_flight < self.limits.most_in_flight]
            if not order:
                raise Refused(429, f"every instance has {self.limits.most_in_flight} requests in flight or more")
        return order[: self.limits.endpoints]

    def _within_bound(self, order: list[Endpoint]) -> list[Endpoint]:
        """Put the first one that stays within its bound at the head; nobody is refused by it."""
        if len(order) < 2 or order[0].in_flight + 1 <= self.limits.bound.floor:
            return order
        load = np.array([each.in_flight for each in order], dtype=np.float64)
        weight = np.array([each.weight for each in order], dtype=np.float64)
        at = first_below(range(len(order)), load, caps(load, weight, self.limits.bound))
        return [order[at], *order[:at], *order[at + 1 :]] if at > 0 else order

    def _why_nobody(self, subset: Collection[str] | None) -> str:
        fleet = self.fleet
        if fleet.generation < 0:
            return "no routing table yet; is the pool's GRRoutingTable published?"
        if fleet.withdrawn:
            return f"table generation {fleet.generation} was withdrawn; the pool is deleted"
        if subset is not None:
            return f"table generation {fleet.generation} has no instance among the {len(subset)} endpoints of the subset"
        return f"table generation {fleet.generation} has no instance that serves"
