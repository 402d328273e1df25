"""Slots follow weights, and a table changes by budget and never without need."""

import subprocess
import sys
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.measurement import Fresh, Missing, Stale
from policies.routing.rendezvous import SLOTS, place
from policies.routing.table import (
    NOBODY,
    ChurnBudget,
    Member,
    MemberState,
    Move,
    Table,
    TablePlan,
    TableReason,
    plan_table,
)
from policies.routing.warmup import ramp_weight_percent

FREE = ChurnBudget(max_moved_percent=100.0)


def fleet(n: int, *, first: int = 0) -> list[Member]:
    return [Member(name=f"rank-{i}", uid=f"uid-{i}") for i in range(first, first + n)]


def plan(previous: Table | None, members: list[Member], *, budget: ChurnBudget = FREE, now_ms: float = 0.0) -> TablePlan:
    return plan_table(previous, members, budget=budget, now_ms=now_ms)


def owner_ids(table: Table) -> list[tuple[str, str] | None]:
    return [None if s == NOBODY else (table.owners[s].name, table.owners[s].uid) for s in table.slots]


def moved(before: Table, after: Table) -> list[tuple[tuple[str, str] | None, tuple[str, str] | None]]:
    return [(a, b) for a, b in zip(owner_ids(before), owner_ids(after), strict=True) if a != b]


def counts(table: Table) -> list[int]:
    return [int(n) for n in np.bincount([s for s in table.slots if s != NOBODY], minlength=len(table.owners))]


# Rendezvous


def test_shares_follow_weights() -> None:
    owners = place([f"m{i}" for i in range(8)], [1.0] * 7 + [0.25])
    share = np.bincount(owners, minlength=8) / SLOTS
    assert share[:7] == pytest.approx(1 / 7.25, rel=0.15)
    assert share[7] == pytest.approx(0.25 / 7.25, rel=0.25)


def test_placement_is_the_same_in_another_process_and_stays_what_it_was() -> None:
    code = "from policies.routing.rendezvous import place; print(place(['a', 'b', 'c', 'd'], [1, 2, 1, 0.5])[:16].tolist())"
    here = place(["a", "b", "c", "d"], [1, 2, 1, 0.5])[:16].tolist()
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert there.strip() == str(here)
    assert here == GOLDEN


GOLDEN = [1, 1, 0, 2, 2, 1, 0, 1, 1, 0, 1, 1, 1, 1, 2, 1]


def test_a_member_that_leaves_or_joins_moves_only_its_own_slots() -> None:
    names = [f"m{i}" for i in range(10)]
    all_ten, nine = place(names, [1.0] * 10), place(names[:9], [1.0] * 9)
    assert np.all((all_ten == nine) | (all_ten == 9))


@pytest.mark.parametrize(("names", "weights"), [(["a", "a"], [1, 1]), (["a"], [0]), (["a"], [1, 2]), ([], [])])
def test_impossible_members_are_refused(names: list[str], weights: list[float]) -> None:
    with pytest.raises(ValueError):
        place(names, weights)


# Tables


def test_the_first_table_gives_every_slot_an_owner_and_nobody_much_more_than_the_mean() -> None:
    for n in (1, 2, 5, 32, 256):
        first = plan(None, fleet(n))
        assert first.table.generation == 1
        assert NOBODY not in first.table.slots
        assert max(counts(first.table)) <= np.ceil(1.1 * SLOTS / n)
        assert first.moved_slots == 0


def test_nothing_changes_at_rest_whatever_the_order_of_the_members() -> None:
    first = plan(None, fleet(8))
    again = plan(first.table, fleet(8)[::-1])
    assert again.reason is TableReason.UNCHANGED
    assert again.table is first.table


@pytest.mark.parametrize("n", [2, 4, 8, 31, 100])
def test_one_more_instance_moves_at_most_a_tenth_more_than_its_share_and_only_to_itself(n: int) -> None:
    before = plan(None, fleet(n)).table
    added = plan(before, fleet(n + 1))
    assert added.moved_percent <= 100.0 / (n + 1) * 1.1 + 100.0 / SLOTS
    assert all(to == (f"rank-{n}", f"uid-{n}") for _, to in moved(before, added.table))
    assert added.moved_slots == len(moved(before, added.table)) > 0


@pytest.mark.parametrize("n", [2, 4, 8, 32, 100])
def test_one_instance_less_moves_only_its_own_slots_and_at_once(n: int) -> None:
    before = plan(None, fleet(n)).table
    left = plan_table(before, fleet(n)[1:], budget=ChurnBudget(max_moved_percent=0.0), now_ms=0.0)
    assert left.forced_slots == left.moved_slots == counts(before)[0]
    assert left.moved_percent <= 100.0 / n * 1.1 + 100.0 / SLOTS
    assert all(was == ("rank-0", "uid-0") for was, _ in moved(before, left.table))
    assert left.deferred_slots == 0


@pytest.mark.parametrize("state", [MemberState.DRAINING, MemberState.NOT_READY])
def test_draining_and_unready_instances_get_nothing(state: MemberState) -> None:
    before = plan(None, fleet(4)).table
    members = [*fleet(3), Member(name="rank-3", uid="uid-3", state=state)]
    after = plan(before, members).table
    assert ("rank-3", "uid-3") not in owner_ids(after)
    assert NOBODY not in after.slots


def test_a_successor_of_the_same_name_is_a_new_instance_on_the_same_slots() -> None:
    before = plan(None, fleet(8)).table
    members = [*fleet(7), Member(name="rank-7", uid="reborn")]
    after = plan_table(before, members, budget=ChurnBudget(max_moved_percent=0.0), now_ms=0.0)
    assert after.table.generation == 2
    assert {was for was, _ in moved(before, after.table)} == {("rank-7", "uid-7")}
    to_successor = sum(to == ("rank-7", "reborn") for _, to in moved(before, after.table))
    assert to_successor > 0.9 * counts(before)[7]


def test_a_move_beyond_the_budget_is_spread_over_windows_until_it_is_done() -> None:
    before = plan(None, fleet(4)).table
    history: tuple[Move, ...] = ()
    sizes: list[int] = []
    free = plan(before, fleet(5)).moved_slots
    table: Table = before
    for window in range(8):
        step = plan_table(
            table, fleet(5), budget=ChurnBudget(max_moved_percent=5.0, window_ms=1000.0), history=history, now_ms=1000.0 * window
        )
        table, history = step.table, step.history
        sizes.append(step.moved_slots)
        assert step.moved_percent <= 5.0
        again = plan_table(
            table,
            fleet(5),
            budget=ChurnBudget(max_moved_percent=5.0, window_ms=1000.0),
            history=history,
            now_ms=1000.0 * window + 500.0,
        )
        assert again.moved_slots == 0 or step.moved_percent < 5.0
        assert (again.reason is TableReason.DEFERRED) == (again.deferred_slots > 0)
    assert sum(sizes) == free
    assert plan(table, fleet(5)).reason is TableReason.UNCHANGED


def test_forced_moves_use_up_the_budget_of_voluntary_ones() -> None:
    before = plan(None, fleet(10)).table
    # One gone (about 10 %) and one new at the same time, with a budget of 5 %.
    step = plan_table(before, fleet(10, first=1), budget=ChurnBudget(max_moved_percent=5.0), now_ms=0.0)
    assert step.moved_slots == step.forced_slots == counts(before)[0]
    assert step.deferred_slots > 0
    assert step.history == (Move(at_ms=0.0, slots=step.moved_slots),)


@pytest.mark.parametrize("ahead_ms", [0.0, 500.0, 1000.0, 3.2e10])
def test_a_move_that_a_wrong_clock_has_put_ahead_holds_users_back_for_two_windows_at_most(ahead_ms: float) -> None:
    budget = ChurnBudget(max_moved_percent=5.0, window_ms=1000.0)
    start = plan(None, fleet(4)).table
    history: tuple[Move, ...] = (Move(at_ms=ahead_ms, slots=SLOTS),)
    step = plan_table(start, fleet(5), budget=budget, history=history, now_ms=0.0)
    assert (step.moved_slots > 0) == (ahead_ms >= 1000.0)
    if step.moved_slots == 0:
        assert plan_table(start, fleet(5), budget=budget, history=step.history, now_ms=2000.0).moved_slots > 0


def test_with_nobody_ready_the_last_table_is_kept_and_the_plan_says_so() -> None:
    before = plan(None, fleet(3)).table
    nobody = plan(before, [])
    assert nobody.table is before
    assert nobody.reason is TableReason.NOBODY_READY
    empty = plan(None, [])
    assert empty.table.generation == 0
    assert set(empty.table.slots) == {NOBODY}
    recovered = plan(empty.table, fleet(2))
    assert recovered.moved_slots == 0
    assert recovered.table.generation == 1
    assert NOBODY not in recovered.table.slots


def test_a_rising_weight_draws_slots_and_moves_them_only_to_the_riser() -> None:
    def members(weight: int) -> list[Member]:
        return [*fleet(4), Member(name="new", uid="n", state=MemberState.WARMING, weight_percent=weight)]

    table = plan(plan(None, fleet(4)).table, members(25)).table
    sizes = [counts(table)[0]]
    for weight in (50, 75, 100):
        after = plan(table, members(weight)).table
        assert all(to == ("new", "n") for _, to in moved(table, after))
        table = after
        sizes.append(counts(table)[0])
    assert all(later > earlier for earlier, later in pairwise(sizes))
    assert sizes[-1] == pytest.approx(SLOTS / 5, rel=0.15)


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError):
        plan(None, [Member(name="a", uid="1"), Member(name="a", uid="2")])


events = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "drain", "restart", "flap", "rest"]), st.integers(0, 11)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(events=events, start=st.integers(1, 8), budget=st.sampled_from([0.0, 3.0, 10.0, 100.0]))
def test_through_any_history_slots_are_owned_moves_keep_to_budget_and_settled_stayers_exchange_none(
    events: list[tuple[str, int]], start: int, budget: float
) -> None:
    churn = ChurnBudget(max_moved_percent=budget, window_ms=1000.0)
    members = {m.name: m for m in fleet(start)}
    step = plan_table(None, list(members.values()), budget=churn, now_ms=0.0)
    for n, (event, which) in enumerate(events, start=1):
        name = f"rank-{which}"
        if event == "add":
            members.setdefault(name, Member(name=name, uid=f"uid-{n}"))
        elif event == "remove":
            members.pop(name, None)
        elif name in members and event != "rest":
            state = {"drain": MemberState.DRAINING, "flap": MemberState.NOT_READY}.get(event, MemberState.READY)
            members[name] = Member(name=name, uid=f"uid-{n}" if event == "restart" else members[name].uid, state=state)
        before, previous = step.table, step
        now_ms = 400.0 * n
        step = plan_table(before, list(members.values()), budget=churn, history=previous.history, now_ms=now_ms)
        assert step == plan_table(before, list(members.values())[::-1], budget=churn, history=previous.history, now_ms=now_ms)
        eligible = {(m.name, m.uid) for m in members.values() if m.eligible}
        if not eligible:
            assert step.table is before
            continue
        assert set(owner_ids(step.table)) <= eligible
        changes = moved(before, step.table)
        voluntary = [(was, to) for was, to in changes if was in eligible]
        in_window = sum(m.slots for m in previous.history if now_ms - m.at_ms < churn.window_ms)
        assert len(voluntary) == step.moved_slots - step.forced_slots
        assert in_window + step.moved_slots <= budget / 100 * SLOTS or not voluntary
        # Who gives slots away voluntarily gives them to somebody new or not yet filled up, never to a settled stayer.
        settled = {(o.name, o.uid) for o in before.owners if not o.filling and not o.draining}
        fair = SLOTS / len(eligible)
        least = max(fair - 4 * fair**0.5, 0)
        starved = {(o.name, o.uid) for o, c in zip(before.owners, counts(before), strict=True) if c <= least}
        assert not [1 for _, to in voluntary if to in settled - starved]
        assert step.table.generation == before.generation + (step.table != before)
        draining = {(m.name, m.uid) for m in members.values() if m.state is MemberState.DRAINING}
        assert {(o.name, o.uid) for o in step.table.owners if o.draining} <= draining
        assert {(o.name, o.uid) for o in step.table.owners} <= eligible | draining


# Drain


def draining(members: list[Member], *names: str) -> list[Member]:
    return [msgspec.structs.replace(m, state=MemberState.DRAINING) if m.name in names else m for m in members]


def test_a_draining_member_keeps_its_row_and_weight_without_slots_until_it_is_gone() -> None:
    members = [*fleet(3), Member(name="rank-3", uid="uid-3", state=MemberState.WARMING, weight_percent=75)]
    before = plan(None, members).table
    during = plan(before, draining(members, "rank-3")).table
    row = next(owner for owner in during.owners if owner.name == "rank-3")
    assert (row.draining, row.weight_percent) == (True, 75)
    assert counts(during)[during.owners.index(row)] == 0
    assert plan(during, draining(members, "rank-3")).reason is TableReason.UNCHANGED
    after = plan(during, fleet(3))
    assert (after.moved_slots, [owner.name for owner in after.table.owners]) == (0, ["rank-0", "rank-1", "rank-2"])


def test_a_member_that_drains_before_it_ever_served_gets_no_row() -> None:
    before = plan(None, fleet(2)).table
    assert plan(before, draining(fleet(3), "rank-2")).reason is TableReason.UNCHANGED


def test_when_all_drain_the_last_table_is_kept_to_the_letter() -> None:
    before = plan(None, fleet(3)).table
    everybody = plan(before, draining(fleet(3), "rank-0", "rank-1", "rank-2"))
    assert everybody.table is before
    assert everybody.reason is TableReason.NOBODY_READY


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(2, 12),
    leave=st.sets(st.integers(0, 11), min_size=1),
    budget=st.sampled_from([0.0, 3.0, 10.0, 100.0]),
    weights=st.lists(st.sampled_from([25, 50, 75, 100]), min_size=12, max_size=12),
)
def test_a_drain_moves_its_own_users_at_once_and_nobody_between_two_that_stay(
    size: int, leave: set[int], budget: float, weights: list[int]
) -> None:
    members = [msgspec.structs.replace(m, weight_percent=weight) for m, weight in zip(fleet(size), weights[:size], strict=True)]
    churn = ChurnBudget(max_moved_percent=budget, window_ms=1000.0)
    leaving = {f"rank-{i}" for i in leave if i < size}
    settled = [plan(None, members)]
    while len(settled) < 2 or settled[-1].moved_slots:  # nobody is filling any more
        settled.append(plan(settled[-1].table, members))
    before = settled[-1].table
    step = plan_table(before, draining(members, *leaving), budget=churn, now_ms=0.0)
    if len(leaving) == size:
        assert step.table is before
        return
    changes = moved(before, step.table)
    assert {was[0] for was, _ in changes if was} == {o.name for o in before.owners if o.name in leaving and owns(before, o.name)}
    assert step.forced_slots == len(changes)
    assert not any(owns(step.table, name) for name in leaving)
    assert NOBODY not in step.table.slots
    assert sum(move.slots for move in step.history) == step.moved_slots  # the budget is used up, not waited for


def owns(table: Table, name: str) -> bool:
    return any(ids is not None and ids[0] == name for ids in owner_ids(table))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 10), who=st.integers(0, 9), budget=st.sampled_from([3.0, 10.0, 100.0]))
def test_a_drain_taken_back_returns_the_old_users_within_the_budget_and_moves_nobody_else(
    size: int, who: int, budget: float
) -> None:
    name, members = f"rank-{who % size}", fleet(size)
    churn = ChurnBudget(max_moved_percent=budget, window_ms=1000.0)
    before = plan(None, members).table
    step = plan_table(before, draining(members, name), budget=churn, now_ms=0.0)
    gone = {slot for slot, (was, now) in enumerate(zip(owner_ids(before), owner_ids(step.table), strict=True)) if was != now}
    for window in range(1, 60):
        last = step
        step = plan_table(last.table, members, budget=churn, history=last.history, now_ms=1000.0 * window)
        assert all(to is not None and to[0] == name for _, to in moved(last.table, step.table))
        assert step.moved_percent <= budget
        if step.reason is TableReason.UNCHANGED:
            break
    came_back = {slot for slot, owner in enumerate(owner_ids(step.table)) if owner is not None and owner[0] == name}
    assert len(came_back & gone) >= 0.8 * len(gone)
    assert not any(owner.draining or owner.filling for owner in step.table.owners)


# Warm-up


def test_weight_follows_the_hit_rate_in_steps_and_is_full_when_time_is_up() -> None:
    def weight(hit: float, age_ms: float = 1000.0, previous: int = 0) -> int:
        return ramp_weight_percent(
            age_ms=age_ms, hit_percent=Fresh(hit), target_hit_percent=80.0, max_ms=60_000.0, previous_percent=previous
        )

    assert [weight(h) for h in (0.0, 30.0, 40.0, 60.0, 80.0, 95.0)] == [25, 25, 50, 75, 100, 100]
    assert weight(0.0, age_ms=60_000.0) == 100
    assert weight(10.0, previous=75) == 75


@pytest.mark.parametrize("hit", [Missing(), Stale(age_ms=1e5)])
def test_without_a_fresh_hit_rate_age_alone_raises_the_weight(hit: Missing | Stale) -> None:
    ages = [0.0, 29_000.0, 31_000.0, 59_000.0, 61_000.0]
    weights = [ramp_weight_percent(age_ms=a, hit_percent=hit, target_hit_percent=80.0, max_ms=60_000.0) for a in ages]
    assert weights == [25, 25, 50, 75, 100]
