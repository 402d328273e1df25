"""The table of hot users: who is sent elsewhere than its slot says, because that saves milliseconds now.

A pure function of residency, facts and the table in force; gateway, picker and client call the same one and get the same table.
A user moves when it saves more than the margin, or when the place where it is cannot or must not serve it; what is missing or old
moves nobody. Residency that was reported by another start of an instance, or of one that is not there, is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.routing.bound import admit, caps
from policies.routing.score import NOBODY, Known, Wishes, confidence_at, costs_of, known_or_mean, weigh
from policies.routing.types import InstanceFacts, Limits, Override, Residency


class OverridePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The next table of hot users, by user key, and what became of the rest.

    Attributes
    ----------
    overrides
        Sorted by user key.
    moved
        Users that go to another instance than before (to their slot's, too), although the one where they were may serve them.
    shed
        Of these, users that lose an override in force for want of room: by the bound, or by their number.
    refused
        Users that would save something elsewhere and were not let: by the bound, or by their number.
    deferred
        Users that would save something elsewhere and wait for the next allowance.
    fenced
        Rows of residency that were not looked at.
    """

    overrides: tuple[Override, ...]
    moved: int
    shed: int
    refused: int
    deferred: int
    fenced: int


def choose(
    residency: Iterable[Residency],
    facts: Sequence[InstanceFacts],
    *,
    slot_owner: Callable[[str], str | None],
    limits: Limits,
    now_ms: float,
    previous: Sequence[Override] = (),
    silent: Collection[str] = (),
    load_of: Mapping[str, float] | None = None,
    allowance: int | None = None,
) -> tuple[Override, ...]:
    """Return the overrides of `plan_overrides`."""
    plan = plan_overrides(
        residency,
        facts,
        slot_owner=slot_owner,
        limits=limits,
        now_ms=now_ms,
        previous=previous,
        silent=silent,
        load_of=load_of,
        allowance=allowance,
    )
    return plan.overrides


def plan_overrides(
    residency: Iterable[Residency],
    facts: Sequence[InstanceFacts],
    *,
    slot_owner: Callable[[str], str | None],
    limits: Limits,
    now_ms: float,
    previous: Sequence[Override] = (),
    silent: Collection[str] = (),
    load_of: Mapping[str, float] | None = None,
    allowance: int | None = None,
) -> OverridePlan:
    """Plan the next table of hot users.

    Parameters
    ----------
    residency
        What is known, in any order; of two rows for one user and instance the later one counts, and a reported one before a
        speculative one of the same time.
    facts
        All instances known, in any order.
    slot_owner
        Uid of the owner of a user key's slot, None for nobody.
    limits
        How large the table may be and how it behaves.
    now_ms
        Time on the clock of `Residency.seen_ms`.
    previous
        The table in force. An override whose user nothing is known of stays until its time is up.
    silent
        Uids of instances whose reports are missing. Users are not moved away from these for what others report.
    load_of
        Requests in flight that a user brings along, by key, where that is known.
    allowance
        How many users may move for what they save, those that save most first; no limit when absent. Users that an instance can
        or may no longer serve move all the same. When slots have just changed owner, users are kept at their old place by
        overrides, which count as moves here: give no allowance then.

    Raises
    ------
    ValueError
        If two facts share a uid.
    """
    members = sorted(facts, key=lambda fact: (fact.name, fact.uid))
    number = {fact.uid: at for at, fact in enumerate(members)}
    if len(number) != len(members):
        raise ValueError("facts: two of them share a uid")
    rows, fenced = _latest(residency, members, number, limits, now_ms)
    before = {
        override.user_key: override
        for override in sorted(previous, key=lambda each: (each.user_key, each.until_ms, each.instance_uid))
        if override.instance_uid in number
    }
    users = _users(rows, before, members, number, slot_owner, silent, now_ms)
    known = _columns(rows, {key: at for at, key in enumerate(users.keys)}, limits, now_ms)
    costs = costs_of(members, refill_slowdown=limits.refill_slowdown, most_wait_ms=limits.most_wait_ms)
    load, cap, brings = _loads(members, users, limits, load_of)

    def placed(settled: NDArray[np.bool_]) -> tuple[Wishes, NDArray[np.int64], NDArray[np.int64]]:
        eligible = np.array([fact.eligible for fact in members], dtype=np.bool_)
        wishes = weigh(
            known,
            costs,
            home=users.home,
            current=users.current,
            eligible=eligible,
            settled=settled,
            margin_ms=limits.margin_ms,
        )
        granted = admit(wishes, home=users.home, load=load, cap=cap, brings=brings, most=limits.most, margin_ms=limits.margin_ms)
        chosen = wishes.choices[np.arange(len(granted)), np.maximum(granted, 0)]
        return wishes, granted, np.where(granted != NOBODY, chosen, users.home)

    wishes, granted, target = placed(users.settled)
    movers, deferred = np.flatnonzero(users.served & (target != users.here)), 0
    if allowance is not None and len(movers) > allowance:
        saved = np.where(granted[movers] != NOBODY, wishes.saved_ms[movers, np.maximum(granted[movers], 0)], 0.0)
        waits = users.served.copy()
        waits[movers[np.argsort(-saved, kind="stable")[: max(allowance, 0)]]] = False
        deferred = int(waits[movers].sum())
        wishes, granted, target = placed(users.settled | waits)
    wanting = (granted == NOBODY) & (wishes.choices[:, 0] != NOBODY)
    away = np.flatnonzero(granted != NOBODY)
    return OverridePlan(
        overrides=tuple(
            Override(
                user_key=users.keys[user],
                instance_uid=members[target[user]].uid,
                saved_ms=float(wishes.saved_ms[user, granted[user]]),
                until_ms=before[users.keys[user]].until_ms if users.unknown[user] else now_ms + limits.ttl_ms,
            )
            for user in away.tolist()
        ),
        moved=int((users.served & (target != users.here)).sum()),
        shed=int((wishes.kept & wanting).sum()),
        refused=int((~wishes.kept & wanting).sum()),
        deferred=deferred,
        fenced=fenced,
    )


class _Users(NamedTuple):
    """Users that are weighed, by key: the instance of the slot, of the override, and the one where they are now.

    `served`: that one may serve them. `unknown`: nothing is known of their state. `settled`: they stay while they are served.
    """

    keys: list[str]
    home: NDArray[np.int64]
    current: NDArray[np.int64]
    here: NDArray[np.int64]
    served: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    settled: NDArray[np.bool_]


def _users(
    rows: Mapping[tuple[str, int], Residency],
    before: Mapping[str, Override],
    members: Sequence[InstanceFacts],
    number: Mapping[str, int],
    slot_owner: Callable[[str], str | None],
    silent: Collection[str],
    now_ms: float,
) -> _Users:
    with_state = {key for key, _ in rows}
    live = {key for key, override in before.items() if override.until_ms > now_ms}
    keys = sorted(with_state | live)
    home = np.array([number.get(slot_owner(key) or "", NOBODY) for key in keys], dtype=np.int64)
    current = np.array([number[before[key].instance_uid] if key in before else NOBODY for key in keys], dtype=np.int64)
    eligible = np.array([*(fact.eligible for fact in members), False], dtype=np.bool_)
    quiet = np.array([*(fact.uid in silent for fact in members), False], dtype=np.bool_)
    unknown = np.array([key not in with_state for key in keys], dtype=np.bool_)
    here = np.where(eligible[current], current, home)
    return _Users(keys, home, current, here, eligible[here], unknown, unknown | quiet[here])


def _latest(
    residency: Iterable[Residency],
    members: Sequence[InstanceFacts],
    number: Mapping[str, int],
    limits: Limits,
    now_ms: float,
) -> tuple[dict[tuple[str, int], Residency], int]:
    """Return the row of each user and instance that counts, and how many were fenced."""
    rows: dict[tuple[str, int], Residency] = {}
    fenced = 0
    for row in residency:
        at = number.get(row.instance_uid, NOBODY)
        if at == NOBODY or members[at].start_id != row.start_id:
            fenced += 1
            continue
        if row.speculative and now_ms - row.seen_ms > limits.speculative_ms:
            continue
        other = rows.get((row.user_key, at))
        if other is None or _rank(row) > _rank(other):
            rows[row.user_key, at] = row
    return rows, fenced


def _rank(row: Residency) -> tuple[float, bool, int, int, int]:
    return (row.seen_ms, not row.speculative, row.kv_tokens_hbm, row.kv_tokens_host, row.kv_tokens_ssd)


def _columns(rows: Mapping[tuple[str, int], Residency], place: Mapping[str, int], limits: Limits, now_ms: float) -> Known:
    """Return the rows as columns."""
    count = len(rows)
    tokens = np.array([(row.kv_tokens_hbm, row.kv_tokens_host, row.kv_tokens_ssd) for row in rows.values()], dtype=np.float32)
    tokens = np.maximum(tokens.reshape(count, 3), 0.0)
    trusted = (
        confidence_at(now_ms - row.seen_ms, fresh_ms=limits.fresh_ms, half_life_ms=limits.half_life_ms) for row in rows.values()
    )
    return Known(
        user=np.fromiter((place[key] for key, _ in rows), dtype=np.int64, count=count),
        instance=np.fromiter((at for _, at in rows), dtype=np.int64, count=count),
        hbm=tokens[:, 0],
        host=tokens[:, 1],
        ssd=tokens[:, 2],
        confidence=np.fromiter(trusted, dtype=np.float32, count=count),
    )


def _loads(
    members: Sequence[InstanceFacts],
    users: _Users,
    limits: Limits,
    load_of: Mapping[str, float] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the load of each instance if nobody was away from home, its cap, and what each user brings along."""
    load = known_or_mean(fact.in_flight for fact in members)
    weight = np.array([fact.weight_percent if fact.eligible else 0 for fact in members], dtype=np.float64)
    cap = caps(np.where(weight > 0.0, load, 0.0), weight, limits.bound)
    keys, home = users.keys, users.home
    usual = limits.load_per_user
    if usual is None:
        usual = min(float(load.sum()) / max(len(keys), 1), 1.0)
    brings = np.full(len(keys), usual)
    if load_of:
        brings = np.array([load_of.get(key, usual) for key in keys])
    brings = np.where(np.isfinite(brings), np.maximum(brings, 0.0), usual)
    away = users.current != NOBODY
    load -= np.bincount(users.current[away], weights=brings[away], minlength=len(members))
    returned = away & (home != NOBODY)
    load += np.bincount(home[returned], weights=brings[returned], minlength=len(members))
    return np.maximum(load, 0.0), cap, brings
