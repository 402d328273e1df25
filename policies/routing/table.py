"""The next routing table from the last one: few users move, by budget, and never without need.

A slot moves for one of two reasons. Its owner can no longer serve it (gone, draining, not ready, or a successor of the same
name with another uid): then it moves at once. Or a member is still filling up (new, or its weight has risen) and wins the
slot in weighted rendezvous: then it moves as the churn budget of the window allows, over several generations. Members
that simply stay never exchange slots; a lowered weight therefore shows only as others come and go. No member is given
more than a tenth above its fair share.

A draining member loses its slots at once, whatever the budget, because its end does not wait; they use the budget up, so that
nothing else moves meanwhile. Its row stays while it does, without slots and with the weight it had: when the drain is taken back,
its caches are still there, and it wins its old slots again, as the budget allows, without a new warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.routing.rendezvous import SLOTS, scores
from policies.routing.warmup import FULL_WEIGHT_PERCENT

NOBODY = -1
_ROOM = 1.1  # greatest share of a member, relative to its fair share
_STARVED = 4.0  # a member this many standard deviations below its fair share is filling, whatever the last table says


class MemberState(StrEnum):
    """What a member may be given: READY and WARMING serve; the others own nothing."""

    READY = "Ready"
    WARMING = "Warming"
    DRAINING = "Draining"
    NOT_READY = "NotReady"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as the routing loop sees it; leaving the list means gone."""

    name: str
    uid: str
    state: MemberState = MemberState.READY
    weight_percent: int = FULL_WEIGHT_PERCENT

    @property
    def eligible(self) -> bool:
        """Whether it may own slots."""
        return self.state in (MemberState.READY, MemberState.WARMING) and self.weight_percent > 0


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table: an instance fenced by uid, the weight it was given, and whether it still takes slots over or leaves."""

    name: str
    uid: str
    weight_percent: int = FULL_WEIGHT_PERCENT
    filling: bool = False
    draining: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A published table: `slots[s]` is an index into `owners`, or NOBODY. Draining owners come last and have no slots."""

    generation: int
    owners: tuple[Owner, ...]
    slots: tuple[int, ...]


class ChurnBudget(msgspec.Struct, frozen=True, kw_only=True):
    """At most so many percent of the slots move voluntarily per window; forced moves use the budget up but never wait."""

    max_moved_percent: float = 10.0
    window_ms: float = 60_000.0


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """So many slots moved at that time (monotone ms)."""

    at_ms: float
    slots: int


class TableReason(StrEnum):
    """What the plan is about."""

    UNCHANGED = "Unchanged"
    CHANGED = "Changed"
    DEFERRED = "MovesDeferred"
    NOBODY_READY = "NobodyReady"


class TablePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one planning step.

    Attributes
    ----------
    table
        The table to publish; the previous one (same generation) when nothing changes or nobody is ready.
    reason
        `NobodyReady` says that the last table was kept for want of anything better.
    moved_slots, forced_slots
        Slots whose owner changed, and how many of them had to.
    deferred_slots
        Moves that wait for budget.
    history
        Moves inside the window, for the next call.
    """

    table: Table
    reason: TableReason
    moved_slots: int
    forced_slots: int
    deferred_slots: int
    history: tuple[Move, ...]

    @property
    def moved_percent(self) -> float:
        """Slots whose owner changed, in percent of all."""
        return 100.0 * self.moved_slots / SLOTS


def plan_table(
    previous: Table | None,
    members: Sequence[Member],
    *,
    budget: ChurnBudget,
    history: Sequence[Move] = (),
    now_ms: float,
) -> TablePlan:
    """Plan the next table.

    Parameters
    ----------
    previous
        The table in force, None for the first one.
    members
        All instances known now, in any order; names distinct among those that may own slots.
    budget
        Churn budget.
    history
        `TablePlan.history` of the previous call.
    now_ms
        Time on the clock of the history.

    Returns
    -------
    TablePlan
        Same arguments, same plan. Every slot has an eligible owner as soon as one member is eligible.

    Raises
    ------
    ValueError
        If two members that may own slots share a name.
    """
    # One that lies further ahead was written by a clock that was wrong, and would hold users back until then.
    recent = tuple(move for move in history if abs(now_ms - move.at_ms) < budget.window_ms)
    eligible = sorted((m for m in members if m.eligible), key=lambda m: m.name)
    if not eligible:
        kept = previous or Table(generation=0, owners=(), slots=(NOBODY,) * SLOTS)
        return TablePlan(
            table=kept, reason=TableReason.NOBODY_READY, moved_slots=0, forced_slots=0, deferred_slots=0, history=recent
        )
    before = _carry_over(previous, eligible)
    change = _change(previous, before, eligible, budget=budget, spent=sum(move.slots for move in recent))
    owners = (
        *(
            Owner(name=m.name, uid=m.uid, weight_percent=m.weight_percent, filling=i in change.waiting)
            for i, m in enumerate(eligible)
        ),
        *_leaving(previous, members),
    )
    packed = tuple(change.slots.tolist())
    if previous is not None and previous.owners == owners and previous.slots == packed:
        table, reason = previous, TableReason.UNCHANGED
    else:
        table = Table(generation=previous.generation + 1 if previous else 1, owners=owners, slots=packed)
        reason = TableReason.CHANGED
    moved = change.forced + change.voluntary
    return TablePlan(
        table=table,
        reason=TableReason.DEFERRED if change.deferred else reason,
        moved_slots=moved,
        forced_slots=change.forced,
        deferred_slots=change.deferred,
        history=(*recent, Move(at_ms=now_ms, slots=moved)) if moved else recent,
    )


def _leaving(previous: Table | None, members: Sequence[Member]) -> list[Owner]:
    """Rows of those that were in the table and drain now, with the weight they had."""
    draining = {(m.name, m.uid) for m in members if m.state is MemberState.DRAINING}
    rows = previous.owners if previous is not None else ()
    kept = [msgspec.structs.replace(o, filling=False, draining=True) for o in rows if (o.name, o.uid) in draining]
    return sorted(kept, key=lambda owner: owner.name)


class _Change(NamedTuple):
    """New owners, how many slots changed hands and why, and the members that still wait for theirs."""

    slots: NDArray[np.int64]
    forced: int
    voluntary: int
    deferred: int
    waiting: frozenset[int]


def _change(
    previous: Table | None, before: NDArray[np.int64], eligible: Sequence[Member], *, budget: ChurnBudget, spent: int
) -> _Change:
    orphans = bool((before == NOBODY).any())
    if not orphans and not _filling(previous, eligible, before).any():
        return _Change(before, 0, 0, 0, frozenset())
    score = scores([m.name for m in eligible], [float(m.weight_percent) for m in eligible])
    room = _room(eligible)
    slots = _give_away(before, score, room)
    forced = 0
    if previous is not None:  # a slot that never had an owner has nobody to move
        forced = int(np.count_nonzero((slots != before) & (np.asarray(previous.slots) != NOBODY)))
    allowance = max(math.floor(budget.max_moved_percent * SLOTS / 100.0 + 1e-9) - spent - forced, 0)
    best = score.argmax(axis=0)
    wanted = _wanted(slots, score, best, room, _filling(previous, eligible, slots))
    slots[wanted[:allowance]] = best[wanted[:allowance]]
    deferred = max(len(wanted) - allowance, 0)
    waiting = frozenset(best[wanted[allowance:]].tolist())
    return _Change(slots, forced, len(wanted) - deferred, deferred, waiting)


def _carry_over(previous: Table | None, eligible: Sequence[Member]) -> NDArray[np.int64]:
    """Owner of each slot as an index into `eligible`, NOBODY where the owner (name and uid) is not among them."""
    if previous is None:
        return np.full(SLOTS, NOBODY, dtype=np.int64)
    index = {(m.name, m.uid): i for i, m in enumerate(eligible)}
    translate = [index.get((o.name, o.uid), NOBODY) for o in previous.owners]
    owner_of = np.array([*translate, NOBODY], dtype=np.int64)
    return np.asarray(owner_of[np.asarray(previous.slots, dtype=np.int64)], dtype=np.int64)


def _room(eligible: Sequence[Member]) -> NDArray[np.int64]:
    """Most slots each member may be given: a tenth above its fair share by weight."""
    weights = np.array([m.weight_percent for m in eligible], dtype=np.float64)
    return np.asarray(np.ceil(_ROOM * SLOTS * weights / weights.sum()), dtype=np.int64)


def _give_away(before: NDArray[np.int64], score: NDArray[np.float64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give each slot without owner to the best member that has room; of too many comers the best scores stay."""
    slots = before.copy()
    open_slots = np.flatnonzero(slots == NOBODY)
    if not len(open_slots):
        return slots
    counts = np.bincount(slots[slots != NOBODY], minlength=len(room))
    left = np.maximum(room - counts, 0)
    score = score.take(open_slots, axis=1)  # one copy: with a thousand members it has 32 MB
    owner = np.full(len(open_slots), NOBODY, dtype=np.int64)
    while True:
        score[left <= 0, :] = -1.0
        todo = np.flatnonzero(owner == NOBODY)
        if not len(todo) or not (left > 0).any():
            break
        best = score[:, todo].argmax(axis=0)
        for member in np.unique(best):
            comers = todo[best == member]
            order = np.argsort(-score[member, comers], kind="stable")
            taken = comers[order[: left[member]]]
            owner[taken] = member
            left[member] -= len(taken)
    slots[open_slots] = owner
    return slots


def _filling(previous: Table | None, eligible: Sequence[Member], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Members that still take slots over: new, back from a drain, risen in weight, not finished last time, or starved."""
    known = {} if previous is None else {(o.name, o.uid): o for o in previous.owners}
    weights = np.array([m.weight_percent for m in eligible], dtype=np.float64)
    fair = SLOTS * weights / weights.sum()
    least = np.maximum(fair - _STARVED * np.sqrt(fair), 0.0)
    out = np.bincount(slots[slots != NOBODY], minlength=len(eligible)) <= least
    for i, member in enumerate(eligible):
        owner = known.get((member.name, member.uid))
        if owner is None or owner.filling or owner.draining or member.weight_percent > owner.weight_percent:
            out[i] = True
    return np.asarray(out, dtype=np.bool_)


def _wanted(
    slots: NDArray[np.int64],
    score: NDArray[np.float64],
    best: NDArray[np.intp],
    room: NDArray[np.int64],
    filling: NDArray[np.bool_],
) -> NDArray[np.intp]:
    """Slots that a filling member wins and has room for, the clearest wins first."""
    candidates = np.flatnonzero((best != slots) & filling[best])
    left = room - np.bincount(slots, minlength=len(room))
    chosen: list[NDArray[np.intp]] = []
    for member in np.unique(best[candidates]):
        mine = candidates[best[candidates] == member]
        order = np.argsort(-score[member, mine], kind="stable")
        chosen.append(mine[order[: max(int(left[member]), 0)]])
    if not chosen:
        return np.empty(0, dtype=np.intp)
    wanted = np.concatenate(chosen)
    gain = score[best[wanted], wanted] / score[slots[wanted], wanted]
    return np.asarray(wanted[np.argsort(-gain, kind="stable")], dtype=np.intp)
