"""Table look-up: user key -> override or slot -> instance, in memory.

A table is replaced as a whole, and only by a higher generation of the same published object, so a late or repeated answer never
moves users back. It never expires: with whoever published it gone, picks go on. When an owner cannot serve (the caller says so,
or it just failed), the next owner of `View.in_order` takes over, the same for every client; after the last of them who serves and
owns nothing yet.
"""

import random
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

from contract.clock import Clock, in_seconds, monotonic_ms
from contract.keys import SLOTS, slot_of
from contract.table import RoutingTable, limits_of
from contract.view import Pick, View
from grfleet.client.errors import NoInstance
from grfleet.client.exclusion import ExclusionLimits, Exclusions
from grfleet.client.forks import renew_after_fork
from grfleet.client.overrides import DEFAULT_MOST, Overrides

_REMEMBERED_INCARNATIONS = 16


@dataclass(frozen=True, kw_only=True)
class RouterStatus:
    """What a router knows, for a log, a gauge or a health page; it holds no user.

    Attributes
    ----------
    table_age_ms : float or None
        Since the table in use was taken; None without one. Old is normal: a fleet at rest publishes nothing.
    contact_age_ms : float or None
        Since the source of tables last answered at all; None if it never did. This is what grows while the operator's API is
        away.
    withdrawn : bool
        The table in use is a tombstone: its pool was deleted.
    """

    generation: int
    key_id: str
    instances: int
    withdrawn: bool
    table_age_ms: float | None
    contact_age_ms: float | None
    overrides: int
    excluded: tuple[str, ...]


class Router:
    """Answers `pick` from the last accepted table.

    Thread safety: every method may be called from any thread. A pick takes no lock and waits for nobody; it sees one table, the
    one before or the one after a concurrent `accept`, never a mixture.

    Parameters
    ----------
    clock : callable
        Monotone milliseconds; overrides and exclusions expire by it.
    exclusion : ExclusionLimits
        For how long instances that failed are passed over (`failed`).
    most_overrides : int or None
        Bound of `overrides`; None for what the table says, `DEFAULT_MOST` where it says nothing.
    """

    def __init__(
        self,
        *,
        clock: Clock = monotonic_ms,
        exclusion: ExclusionLimits | None = None,
        most_overrides: int | None = None,
    ) -> None:
        self._clock, self._now_s = clock, in_seconds(clock)
        self._lock = threading.Lock()
        self._view = View(None)
        self._retired: deque[str] = deque(maxlen=_REMEMBERED_INCARNATIONS)
        self._contact_ms: float | None = None
        self._exclusions = Exclusions(exclusion or ExclusionLimits(), clock=clock)
        self._most_overrides = most_overrides
        self.overrides = Overrides(most=DEFAULT_MOST if most_overrides is None else most_overrides, clock=clock)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: the table in use stays, whoever held a lock is not there."""
        self._lock = threading.Lock()
        self._exclusions.after_fork()
        self.overrides.after_fork()

    @property
    def generation(self) -> int:
        """Generation of the table in use, -1 before the first."""
        return self._view.generation

    @property
    def key_id(self) -> str:
        """Which pool key the table in use is made for; empty where it names none."""
        return self._view.key_id

    @property
    def table(self) -> RoutingTable | None:
        """The table in use."""
        return self._view.table

    @property
    def key_header(self) -> str:
        """Request header that carries the user key, by the table in use."""
        return self._view.key_header

    def accept(self, table: RoutingTable, *, incarnation: str = "") -> bool:
        """Use `table` if it is newer than the one in use; say whether it was taken.

        Newer is a higher generation of the same published object, or another object than all before: a pool that was deleted and
        made anew counts from one again. A table without any instance is a tombstone, what a deleted pool leaves: it empties the
        router whatever its generation, and any table after it is new.

        Parameters
        ----------
        incarnation : str
            What tells one published object from its successor: its `metadata.uid`. Empty where the source has none; then only the
            generation counts.

        Raises
        ------
        contract.errors.ProtocolViolation
            When the slots are not a table, or two rows are one instance; the one in use stays.
        """
        with self._lock:
            now = self._view
            if incarnation == now.incarnation:
                if not _newer(table, now):
                    return False
            elif incarnation in self._retired or not incarnation:
                return False
            view = View(table, incarnation=incarnation, taken_ms=self._clock())
            if incarnation != now.incarnation and now.table is not None:
                self._retired.append(now.incarnation)
            self._view = view
            self._exclusions.keep_only(view.serving)
            if self._most_overrides is None and not view.withdrawn:
                said = limits_of(table).hot_users_max
                self.overrides.bound(DEFAULT_MOST if said is None else said)
        return True

    def heard(self) -> None:
        """Record that the source of tables answered, whether or not it had anything new."""
        self._contact_ms = self._clock()

    def pick(self, user_key: str, *, exclude: Collection[str] = (), prefer: str = "") -> Pick:
        """Return the instance of a user.

        Parameters
        ----------
        user_key : str
            `contract.keys.user_key` of the user, never the raw id.
        exclude : collection of str
            Names of instances that just failed this request; the next owner is returned instead.
        prefer : str
            Name of the instance that an earlier answer for this user came from (`x-gr-instance`); it is taken while it is in the
            table, also while it drains.

        Raises
        ------
        NoInstance
            When no instance is left.
        """
        # Plain code on purpose: a call more costs a fifth of it. A hot user needs no slot.
        view = self._view
        held = self.overrides.held
        chosen = None
        if held.uids:
            uid = held.uids.get(user_key)
            if uid is not None:
                now_s = self._now_s()
                if now_s < held.earliest_s or held.holds(user_key, now_s * 1000.0):
                    chosen = view.serving.get(uid)
        if chosen is None:
            chosen = view.owners[slot_of(user_key)]
        if chosen is None or exclude or prefer or chosen.uid in self._exclusions.active:
            return self._careful(view, slot_of(user_key), chosen, exclude, prefer)
        return chosen

    def pick_any(self, rng: random.Random, *, exclude: Collection[str] = ()) -> Pick:
        """Return an instance for a request that has no user: by chance, in proportion to the slots that instances own.

        Raises
        ------
        NoInstance
            When no instance is left.
        """
        view = self._view
        slot = rng.randrange(SLOTS)
        return self._careful(view, slot, view.owners[slot], exclude, "")

    def owners(self, user_key: str, *, most: int = SLOTS) -> tuple[Pick, ...]:
        """Return at most so many instances in the order of the table alone, without overrides and exclusions; the owner first."""
        order = self._view.in_order(slot_of(user_key))
        return tuple(pick for _, pick in zip(range(most), order, strict=False))

    def _careful(self, view: View, slot: int, chosen: Pick | None, exclude: Collection[str], prefer: str) -> Pick:
        """Pick where something is out of the ordinary. One that is only excluded for having failed is better than none."""
        active = self._exclusions.active
        now_ms = self._clock()
        preferred = view.by_name.get(prefer)
        ill: Pick | None = None
        for first in (preferred, chosen):
            if first is not None and first.name not in exclude:
                if first.uid not in active or not active[first.uid].holds(slot, now_ms):
                    return first
                ill = ill or first
        for pick in chain(view.in_order(slot), view.idle):
            if pick.name not in exclude:
                if pick.uid not in active or not active[pick.uid].holds(slot, now_ms):
                    return pick
                ill = ill or pick
        if ill is not None:
            return ill
        raise NoInstance(_why_nobody(view, exclude))

    def failed(self, uid: str) -> bool:
        """Pass an instance over for a while, because a request to it failed; say whether this failure excluded it."""
        view = self._view
        known = uid in view.serving or any(pick.uid == uid for pick in view.by_name.values())  # one that drains may be preferred
        return known and self._exclusions.failed(uid, instances=len(view.serving))

    def succeeded(self, uid: str) -> None:
        """Record that an instance answered."""
        self._exclusions.succeeded(uid)

    def status(self) -> RouterStatus:
        """Return what is known now."""
        view, now_ms = self._view, self._clock()
        active = self._exclusions.active.items()
        return RouterStatus(
            generation=view.generation,
            key_id=view.key_id,
            instances=len(view.serving),
            withdrawn=view.withdrawn,
            table_age_ms=None if view.table is None else now_ms - view.taken_ms,
            contact_age_ms=None if self._contact_ms is None else now_ms - self._contact_ms,
            overrides=len(self.overrides),
            excluded=tuple(sorted(view.serving[u].name for u, ill in active if u in view.serving and not ill.over(now_ms))),
        )


def _newer(table: RoutingTable, now: View) -> bool:
    """Whether a table follows the one in use, both of one object."""
    if now.withdrawn:
        return bool(table.instances) or table.generation > now.generation
    return not table.instances or table.generation > now.generation


def _why_nobody(view: View, exclude: Collection[str]) -> str:
    if view.table is None:
        return "no routing table yet; is the pool's GRRoutingTable published?"
    if view.withdrawn:
        return f"table generation {view.generation} was withdrawn; the pool is deleted"
    return f"table generation {view.generation} has no instance outside {sorted(exclude)}"
