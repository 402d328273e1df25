"""Hot users go where they save most, within the bound, and never for what is old, missing or of another start."""

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import NOW_MS, UNBOUND, Case, an_instance, away, cases, state_of

from policies.routing.overrides import choose, plan_overrides
from policies.routing.score import costs_of
from policies.routing.types import InstanceFacts, Limits, LoadBound, Override, Residency

FREE = Limits(bound=UNBOUND)
HOME = {"user": "uid-0"}


def chosen(residency: list[Residency], *, count: int = 3, **changes: Any) -> tuple[Override, ...]:
    given_: dict[str, Any] = {
        "facts": [an_instance(number) for number in range(count)],
        "slot_owner": HOME.get,
        "limits": FREE,
        "now_ms": NOW_MS,
    }
    return choose(residency, **(given_ | changes))


def places(overrides: tuple[Override, ...]) -> dict[str, str]:
    return {each.user_key: each.instance_uid for each in overrides}


def of(case: Case, **changes: Any) -> Any:
    return plan_overrides(**(case.named | changes))


# What a user gains


def test_a_user_goes_where_its_state_is_and_stays_at_home_when_that_is_home() -> None:
    [override] = chosen([state_of("user", 2)])
    assert override.instance_uid == "uid-2"
    assert override.saved_ms == pytest.approx(1000 * 0.05)
    assert override.until_ms == NOW_MS + FREE.ttl_ms
    assert chosen([state_of("user", 0)]) == ()
    assert chosen([]) == ()


def test_a_faster_tier_counts_for_more() -> None:
    rows = [state_of("user", 1, 0, kv_tokens_ssd=1000), state_of("user", 2, 0, kv_tokens_host=1000)]
    [override] = chosen(rows)
    assert override.instance_uid == "uid-2"
    assert override.saved_ms == pytest.approx(1000 * (0.05 - 0.01))
    assert places(chosen([*rows, state_of("user", 1, 900)])) == {"user": "uid-1"}


def test_state_is_weighed_against_waiting_rows_and_refills() -> None:
    rows = [state_of("user", 1, 1000), state_of("user", 2, 0, kv_tokens_host=1000)]

    def with_(**changes: Any) -> dict[str, str]:
        return places(chosen(rows, facts=[an_instance(0), an_instance(1, **changes), an_instance(2)]))

    assert with_() == {"user": "uid-1"}
    assert with_(queue_ms=9.0) == {"user": "uid-1"}
    assert with_(queue_ms=11.0) == {"user": "uid-2"}
    assert with_(queue_ms=60.0, emb_overlap=0.0) == {"user": "uid-2"}
    dear_rows = [an_instance(at, ms_per_row=0.05, emb_overlap=0.5 if at == 1 else 0.8) for at in range(3)]
    assert places(chosen(rows, facts=dear_rows)) == {"user": "uid-2"}
    on_hosts = [state_of("user", at, 0, kv_tokens_host=1000) for at in (1, 2)]
    assert places(chosen(on_hosts)) == {"user": "uid-1"}
    refilling = [an_instance(0), an_instance(1, refilling=True), an_instance(2)]
    assert places(chosen(on_hosts, facts=refilling)) == {"user": "uid-2"}


def test_a_queue_of_overload_drives_nobody_from_a_large_state() -> None:
    """The bound answers to overload: users that leave their caches for it make it worse."""
    facts = [an_instance(0), an_instance(1, queue_ms=5000.0), an_instance(2, queue_ms=10.0)]
    assert places(chosen([state_of("user", 1, 1000)], facts=facts)) == {"user": "uid-1"}
    assert places(chosen([state_of("user", 1, 300)], facts=facts)) == {}
    endless = msgspec.structs.replace(FREE, most_wait_ms=math.inf)
    assert places(chosen([state_of("user", 1, 1000)], facts=facts, limits=endless)) == {}


def test_more_rows_in_the_cache_win_where_nobody_has_state() -> None:
    facts = [an_instance(0, emb_overlap=0.5), an_instance(1, emb_overlap=0.9), an_instance(2, ms_per_row=math.nan)]
    [override] = chosen([state_of("user", 0, 1)], facts=facts, limits=msgspec.structs.replace(FREE, margin_ms=0.1))
    assert override.instance_uid == "uid-1"
    assert override.saved_ms == pytest.approx(0.4 * 1000 * 0.001 - 0.05, abs=1e-3)


def test_what_is_unknown_of_an_instance_is_neither_good_nor_bad() -> None:
    rows = [state_of("user", 1)]
    facts = [an_instance(0), an_instance(1, queue_ms=math.nan, ms_per_token_recompute=math.nan), an_instance(2, queue_ms=5.0)]
    assert places(chosen(rows, facts=facts)) == {"user": "uid-1"}
    nothing = [InstanceFacts(name=f"rank-{n}", uid=f"uid-{n}", start_id=f"start-{n}") for n in range(3)]
    assert chosen(rows, facts=nothing) == ()


def test_two_instances_with_one_uid_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^facts: "):
        chosen([], facts=[an_instance(0), an_instance(0)])


# Staying


def test_a_user_moves_only_for_more_than_the_margin() -> None:
    rows = [state_of("user", 0, 1000), state_of("user", 1, 1100)]
    for margin_ms, expected in ((4.9, {"user": "uid-1"}), (5.1, {})):
        assert places(chosen(rows, limits=msgspec.structs.replace(FREE, margin_ms=margin_ms))) == expected
    kept = chosen(rows, limits=msgspec.structs.replace(FREE, margin_ms=5.1), previous=[away("user", 1)])
    assert places(kept) == {"user": "uid-1"}, "nor back"


def test_of_equal_savings_in_a_full_table_the_one_in_force_stays() -> None:
    rows = [state_of(user, 1) for user in ("first", "second")]
    limits = msgspec.structs.replace(FREE, most=1, margin_ms=0.0)
    assert places(chosen(rows, limits=limits)) == {"first": "uid-1"}
    assert places(chosen(rows, limits=limits, previous=[away("second", 1)])) == {"second": "uid-1"}


@pytest.mark.parametrize("margin_ms", [0.0, 5.0])
def test_a_user_away_from_home_goes_back_only_for_more_than_the_margin(margin_ms: float) -> None:
    limits = msgspec.structs.replace(FREE, margin_ms=margin_ms)
    rows = [state_of("user", 7, 0)]
    for worse_ms, expected in ((0.0, {"user": "uid-7"}), (margin_ms, {"user": "uid-7"}), (margin_ms + 0.1, {})):
        facts = [an_instance(number, queue_ms=worse_ms * (number == 7)) for number in range(8)]
        assert places(chosen(rows, facts=facts, limits=limits, previous=[away("user", 7)])) == expected


def test_speculation_counts_for_two_seconds() -> None:
    def after(age_ms: float) -> dict[str, str]:
        return places(chosen([state_of("user", 1, seen_ms=NOW_MS - age_ms, speculative=True)]))

    assert after(1_999.0) == {"user": "uid-1"}
    assert after(2_001.0) == {}


def test_old_news_attracts_less_and_moves_nobody_away() -> None:
    aged = NOW_MS - 10_000.0 - 3 * 60_000.0
    [override] = chosen([state_of("user", 1, seen_ms=aged)])
    assert override.saved_ms == pytest.approx(50.0 / 8)
    assert places(chosen([state_of("user", 1, seen_ms=aged), state_of("user", 2, 200)])) == {"user": "uid-2"}
    stays = chosen([state_of("user", 1, seen_ms=aged), state_of("user", 2, 200)], previous=[away("user", 1)])
    assert places(stays) == {"user": "uid-1"}


def test_an_override_without_any_news_stays_until_its_time_is_up() -> None:
    facts = [an_instance(0), an_instance(1, queue_ms=90.0), an_instance(2)]
    [kept] = chosen([], facts=facts, previous=[away("user", 1, until_ms=NOW_MS + 1.0)])
    assert (kept.instance_uid, kept.until_ms) == ("uid-1", NOW_MS + 1.0)
    assert chosen([], facts=facts, previous=[away("user", 1, until_ms=NOW_MS)]) == ()


def test_nobody_is_moved_away_from_an_instance_that_is_silent() -> None:
    rows = [state_of("user", 2)]
    assert places(chosen(rows)) == {"user": "uid-2"}
    assert places(chosen(rows, silent={"uid-0"})) == {}
    assert places(chosen(rows, silent={"uid-1"}, previous=[away("user", 1)])) == {"user": "uid-1"}


@pytest.mark.parametrize("changes", [{"ready": False}, {"draining": True}, {"weight_percent": 0}])
def test_one_that_must_not_serve_gets_nobody_and_keeps_nobody(changes: dict[str, Any]) -> None:
    facts = [an_instance(0), an_instance(1, **changes), an_instance(2)]
    rows = [state_of("user", 1), state_of("user", 2, 500)]
    assert places(chosen(rows, facts=facts, previous=[away("user", 1)])) == {"user": "uid-2"}
    assert places(chosen(rows[:1], facts=facts, previous=[away("user", 1)])) == {}


def test_a_user_whose_home_is_gone_goes_to_its_state_or_is_left_to_the_slots() -> None:
    facts = [an_instance(0, draining=True), an_instance(1), an_instance(2)]
    assert places(chosen([state_of("user", 0), state_of("user", 2, 100)], facts=facts)) == {"user": "uid-2"}
    assert places(chosen([state_of("user", 0)], facts=facts)) == {}
    assert places(chosen([], facts=facts, previous=[away("user", 0)])) == {}


# Bound and number


def many(users: int, at: int) -> list[Residency]:
    return [state_of(f"user-{number:03d}", at, 1000 + number) for number in range(users)]


def test_the_bound_refuses_the_users_that_save_least() -> None:
    limits = Limits(bound=LoadBound(percent=150.0, floor=0.0), load_per_user=0.5)
    plan = plan_overrides(
        many(20, 1), [an_instance(0), an_instance(1)], slot_owner=lambda _: "uid-0", limits=limits, now_ms=NOW_MS
    )
    assert [each.user_key for each in plan.overrides] == [f"user-{number:03d}" for number in range(16, 20)]
    assert plan.refused == 16


def test_a_quiet_fleet_refuses_nobody() -> None:
    limits = Limits(bound=LoadBound(percent=101.0, floor=8.0), load_per_user=0.1)
    facts = [an_instance(0, in_flight=0.0), an_instance(1, in_flight=1.0)]
    assert len(choose(many(20, 1), facts, slot_owner=lambda _: "uid-0", limits=limits, now_ms=NOW_MS)) == 20


def test_overrides_are_shed_when_their_instance_is_above_its_bound() -> None:
    limits = Limits(bound=LoadBound(percent=125.0, floor=0.0), load_per_user=1.0)
    rows, before = many(20, 1), [away(f"user-{number:03d}", 1) for number in range(20)]
    facts = [an_instance(0, in_flight=2.0), an_instance(1, in_flight=22.0)]
    plan = plan_overrides(rows, facts, slot_owner=lambda _: "uid-0", limits=limits, now_ms=NOW_MS, previous=before)
    assert (len(plan.overrides), plan.shed, plan.moved) == (13, 7, 7)


def test_one_that_is_refused_takes_its_next_choice() -> None:
    rows = [state_of("user", 1, 2000), state_of("user", 2, 1000)]
    facts = [an_instance(0, in_flight=10.0), an_instance(1, in_flight=30.0), an_instance(2, in_flight=1.0)]
    limits = Limits(bound=LoadBound(floor=0.0), load_per_user=0.1)
    assert places(chosen(rows, facts=facts, limits=limits)) == {"user": "uid-2"}


def test_the_table_is_bounded_and_a_newcomer_must_save_a_margin_more_than_one_in_force() -> None:
    limits = msgspec.structs.replace(FREE, most=1, margin_ms=5.0)
    rows = [state_of("a", 1, 1000), state_of("b", 1, 1050)]
    home = lambda _: "uid-0"  # noqa: E731
    assert places(chosen(rows, slot_owner=home, limits=limits)) == {"b": "uid-1"}
    assert places(chosen(rows, slot_owner=home, limits=limits, previous=[away("a", 1)])) == {"a": "uid-1"}
    rows[1] = state_of("b", 1, 1200)
    assert places(chosen(rows, slot_owner=home, limits=limits, previous=[away("a", 1)])) == {"b": "uid-1"}


# Whatever comes


@given(cases())
def test_every_choice_is_an_instance_that_may_serve_and_not_the_home(case: Case) -> None:
    plan = of(case)
    able = {fact.uid for fact in case.facts if fact.eligible}
    keys = [each.user_key for each in plan.overrides]
    assert keys == sorted(set(keys))
    assert len(keys) <= case.limits.most
    for each in plan.overrides:
        assert each.instance_uid in able
        assert each.instance_uid != case.homes[each.user_key]
        assert math.isfinite(each.saved_ms)


@given(cases())
def test_the_bound_holds_wherever_an_override_points(case: Case) -> None:
    load_per_user = case.limits.load_per_user or 0.25
    limits = msgspec.structs.replace(case.limits, load_per_user=load_per_user)
    facts = [fact if math.isfinite(fact.in_flight) else msgspec.structs.replace(fact, in_flight=10.0) for fact in case.facts]
    after = of(case, limits=limits, facts=facts).overrides
    load = {fact.uid: fact.in_flight for fact in facts}
    users = {row.user_key for row in case.residency} | {each.user_key for each in case.previous}
    known = {row.user_key for row in case.residency if valid(row, facts, limits)}
    live = {each.user_key for each in case.previous if each.until_ms > NOW_MS}
    for user in users & (known | live):
        before = [each for each in case.previous if each.user_key == user and each.instance_uid in load]
        if before and case.homes[user] in load:
            load[case.homes[user]] += load_per_user
        if before:
            load[before[0].instance_uid] -= load_per_user
    load = {uid: max(each, 0.0) for uid, each in load.items()}
    for each in after:
        load[each.instance_uid] += load_per_user
        if case.homes[each.user_key] in load:
            load[case.homes[each.user_key]] -= load_per_user
    able = [fact for fact in facts if fact.eligible]
    total, weights = sum(fact.in_flight for fact in able), sum(fact.weight_percent for fact in able)
    for fact in able:
        if any(each.instance_uid == fact.uid for each in after):
            share = total * fact.weight_percent / weights
            assert load[fact.uid] <= max(limits.bound.floor, limits.bound.percent / 100.0 * share) + 1e-6


def valid(row: Residency, facts: list[InstanceFacts], limits: Limits) -> bool:
    same = any((fact.uid, fact.start_id) == (row.instance_uid, row.start_id) for fact in facts)
    return same and not (row.speculative and NOW_MS - row.seen_ms > limits.speculative_ms)


@given(cases())
def test_no_user_moves_between_two_that_both_stayed_without_a_gain_above_the_margin(case: Case) -> None:
    """Within the bound and the number: these take users away without any gain."""
    limits = msgspec.structs.replace(case.limits, bound=UNBOUND, most=1000)
    plan = of(case, limits=limits)
    able = {fact.uid for fact in case.facts if fact.eligible}
    expired = {each.user_key for each in case.previous if each.until_ms <= NOW_MS}
    moved = 0
    for user in case.homes:
        before, after = case.place(user, case.previous), case.place(user, plan.overrides)
        if before not in able:
            before = case.homes[user]
        if before in able and after in able and before != after and not (user in expired and not news(case, user)):
            moved += 1
            assert worth(case, user, after, now=before) - worth(case, user, before, now=before) > limits.margin_ms - 1e-2
    assert plan.moved == moved


def news(case: Case, user: str) -> list[Residency]:
    return [row for row in case.residency if row.user_key == user and valid(row, case.facts, case.limits)]


def worth(case: Case, user: str, at: str | None, *, now: str | None) -> float:
    """The score once more, for one user and one place: minus what it costs there."""
    members = sorted(case.facts, key=lambda fact: fact.name)
    place = [fact.uid for fact in members].index(at or "")
    token_ms, host_ms, _, rows_ms, wait_ms = (
        float(cost[place]) for cost in costs_of(members, most_wait_ms=case.limits.most_wait_ms)
    )
    latest: dict[str, Residency] = {}
    for row in sorted(news(case, user), key=lambda row: row.seen_ms):
        latest[row.instance_uid] = row
    history = max((row.kv_tokens_hbm + row.kv_tokens_host for row in latest.values()), default=0)
    saved = 0.0
    if at in latest:
        row = latest[at]
        over = max(NOW_MS - row.seen_ms - case.limits.fresh_ms, 0.0)
        trusted = 1.0 if at == now else 2.0 ** -(over / case.limits.half_life_ms)
        saved = trusted * (row.kv_tokens_hbm * token_ms + row.kv_tokens_host * (token_ms - host_ms))
    return saved - history * token_ms - rows_ms - wait_ms


@given(cases())
def test_a_table_in_force_stays_as_it_is_while_nothing_changes(case: Case) -> None:
    limits = msgspec.structs.replace(case.limits, bound=UNBOUND)
    first = of(case, limits=limits).overrides
    again = of(case, limits=limits, previous=list(first))
    assert places(again.overrides) == places(first)
    assert (again.moved, again.shed) == (0, 0)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_known_changes_nothing(case: Case, shuffle: random.Random) -> None:
    expected = of(case)
    other = Case(
        *(list(part) for part in (case.residency, case.facts)), case.homes, case.limits, list(case.previous), case.silent
    )
    for part in (other.residency, other.facts, other.previous):
        shuffle.shuffle(part)
    assert of(other) == expected
    assert of(other, residency=[*other.residency, *other.residency]).overrides == expected.overrides


@given(cases())
def test_what_another_start_has_reported_changes_nothing(case: Case) -> None:
    starts = {fact.uid: fact.start_id for fact in case.facts}
    mine = [row for row in case.residency if starts.get(row.instance_uid) == row.start_id]
    with_, without = of(case), of(case, residency=mine)
    assert with_.overrides == without.overrides
    assert with_.fenced == len(case.residency) - len(mine)


@given(cases(), st.floats(0.0, 1e7))
def test_missing_reports_move_nobody(case: Case, later_ms: float) -> None:
    """All rows grow older together, whatever else they say: whoever is somewhere stays."""
    rows = [row for row in case.residency if not row.speculative]
    limits = msgspec.structs.replace(case.limits, bound=UNBOUND, most=1000)
    first = of(case, residency=rows, limits=limits)
    first = of(case, residency=rows, limits=limits, previous=list(first.overrides))
    known = {row.user_key for row in rows if valid(row, case.facts, limits)}
    table = [each for each in first.overrides if each.user_key in known]
    later = of(case, residency=rows, limits=limits, previous=table, now_ms=NOW_MS + later_ms)
    able = {fact.uid for fact in case.facts if fact.eligible}
    for user in known:
        if case.place(user, table) in able:
            assert case.place(user, later.overrides) == case.place(user, table)


@given(cases())
def test_silence_of_an_instance_never_moves_a_user_away_from_it(case: Case) -> None:
    everybody = frozenset(fact.uid for fact in case.facts)
    limits = msgspec.structs.replace(case.limits, bound=UNBOUND, most=1000)
    before = [each for each in case.previous if each.until_ms > NOW_MS]
    plan = of(case, limits=limits, silent=everybody, previous=before)
    assert plan.moved == 0
    able = {fact.uid for fact in case.facts if fact.eligible}
    for user in case.homes:
        if case.place(user, before) in able:
            assert case.place(user, plan.overrides) == case.place(user, before)


@given(cases(), st.integers(0, 4))
def test_no_more_users_move_for_what_they_save_than_are_allowed(case: Case, allowance: int) -> None:
    limits = msgspec.structs.replace(case.limits, bound=UNBOUND, most=1000)
    free, held = of(case, limits=limits), of(case, limits=limits, allowance=allowance)
    assert held.moved == min(free.moved, allowance)
    assert held.deferred == free.moved - held.moved
    able = {fact.uid for fact in case.facts if fact.eligible}
    for user in case.homes:
        if case.place(user, held.overrides) != case.place(user, free.overrides):
            assert case.place(user, held.overrides) in able, "nobody waits where it is not served"
    assert of(case, allowance=1000) == of(case)


def test_those_that_save_most_move_first() -> None:
    named: dict[str, Any] = {"facts": [an_instance(0), an_instance(1)], "slot_owner": lambda _: "uid-0", "allowance": 2}
    first = chosen(many(20, 1), **named)
    assert sorted(places(first)) == ["user-018", "user-019"]
    assert sorted(places(chosen(many(20, 1), previous=first, **named))) == [f"user-{number:03d}" for number in range(16, 20)]


def test_large_tables_are_chosen_in_blocks_as_small_ones_are() -> None:
    rng = np.random.default_rng(4)
    users = [f"user-{number:05d}" for number in range(30_000)]
    facts = [an_instance(number) for number in range(24)]
    rows = [
        state_of(user, int(at), int(tokens))
        for user, at, tokens in zip(users, rng.integers(0, 24, 30_000), rng.integers(1, 3000, 30_000), strict=True)
    ]
    home = {user: f"uid-{number % 24}" for number, user in enumerate(users)}
    all_ = choose(rows, facts, slot_owner=home.get, limits=FREE, now_ms=NOW_MS)
    some = choose(rows[-500:], facts, slot_owner=home.get, limits=FREE, now_ms=NOW_MS)
    assert all_[-len(some) :] == some
    assert len(all_) > 25_000
