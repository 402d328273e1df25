"""Whom the chooser names, without a gateway: order, bound, shedding, subsets, and what a new table does to what is in flight."""

import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.keys import SLOTS, slot_of, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, TableLimits, pack_slots
from contract.view import View
from dataplane.picker.chooser import Chooser, PickLimits, Refused
from dataplane.picker.endpoints_file import assignment_of
from dataplane.picker.exchange import Edge
from dataplane.picker.fleet import Fleet, address_of
from dataplane.picker.picker import Picker
from grfleet.client import Router
from policies.routing.types import LoadBound

KEYS = [user_key(b"0123456789abcdef", f"user-{number}") for number in range(200)]
READY, DRAINING = InstanceState.READY, InstanceState.DRAINING


def row(name: str, *, state: InstanceState = READY, uid: str = "", weight: int = 100, address: str = "") -> TableInstance:
    address = address or f"10.0.0.{sum(name.encode()) % 250}:8000"
    return TableInstance(name=name, uid=uid or f"uid-{name}", address=address, weight_percent=weight, state=state)


def table_of(rows: Iterable[TableInstance], *, generation: int = 1) -> RoutingTable:
    rows = list(rows)
    serving = [at for at, each in enumerate(rows) if each.state is not DRAINING]
    owners = [serving[slot % len(serving)] if serving else 0xFFFF for slot in range(SLOTS)]
    return RoutingTable(generation=generation, instances=rows, slots=pack_slots(owners))


def chooser_of(*rows: TableInstance, limits: PickLimits | None = None) -> Chooser:
    limits = limits or PickLimits()
    chooser = Chooser(limits, rng=random.Random(1))
    chooser.fleet = Fleet(table_of(rows), kept=limits.endpoints)
    return chooser


def names(chosen: Iterable[object]) -> list[str]:
    return [each.name for each in chosen]  # type: ignore[attr-defined]  # endpoints


def picker(*, limits: PickLimits | None = None) -> Picker:
    edge = Edge(pool_key=b"0123456789abcdef")
    return Picker(edge, limits=limits or PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1))


def test_picker_and_client_name_the_same_instances_in_the_same_order() -> None:
    rows = [row(name) for name in "abcdefg"]
    chooser, router = chooser_of(*rows), Router()
    router.accept(table_of(rows))
    for key in KEYS:
        assert names(chooser.choose(key)) == names(router.owners(key, most=3))


def test_a_hot_user_goes_where_its_state_is_unless_that_instance_drains_or_left() -> None:
    chooser = chooser_of(row("a"), row("b"), row("c"), row("d", state=DRAINING))
    key = next(key for key in KEYS if names(chooser.choose(key))[0] == "a")
    chooser.users = {key: "uid-c"}
    assert names(chooser.choose(key))[0] == "c"
    assert len(set(names(chooser.choose(key)))) == 3
    for gone in ("uid-d", "uid-nobody"):
        chooser.users = {key: gone}
        assert names(chooser.choose(key))[0] == "a"


def test_what_chose_is_said_of_whom_was_chosen_and_not_of_what_was_asked_for() -> None:
    chooser = chooser_of(row("a"), row("b"))
    a, b = (chooser.fleet.by_name[name] for name in "ab")
    key = next(key for key in KEYS if names(chooser.choose(key))[0] == "a")
    said = chooser.reason
    assert [said(a, key, ""), said(b, key, "")] == ["slot", "spread"]
    assert [said(b, key, "b"), said(b, "", "b"), said(a, "", "b")] == ["choice", "choice", "anywhere"]
    assert [said(a, key, "gone"), said(b, key, "a")] == ["slot", "spread"]
    chooser.users = {key: "uid-b"}
    assert [said(b, key, ""), said(a, key, ""), said(b, key, "b")] == ["hot", "slot", "choice"]
    chooser.fleet = Fleet(None)
    assert said(a, key, "") == "spread"


@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize(("load", "stays"), [(0, True), (1, True), (2, False), (3, False)])
def test_the_request_that_would_come_on_top_counts_against_floor_and_bound_inside_a_subset_too(
    load: int, *, stays: bool, subset: bool
) -> None:
    chooser = chooser_of(row("a"), row("b"), row("c"), limits=PickLimits(bound=LoadBound(percent=125, floor=2)))
    key = next(key for key in KEYS if names(chooser.choose(key))[0] == "a")
    chooser.fleet.by_name["a"].in_flight = load
    addresses = frozenset(each.address for each in chooser.fleet.members) if subset else None
    assert (names(chooser.choose(key, subset=addresses))[0] == "a") is stays


def test_below_the_floor_nobody_leaves_its_owner_and_above_the_bound_new_requests_do() -> None:
    chooser = chooser_of(row("a"), row("b"), row("c"), limits=PickLimits(bound=LoadBound(percent=150, floor=2)))
    key = KEYS[0]
    owner, second, _ = chooser.choose(key)
    owner.in_flight = 1
    assert chooser.choose(key)[0] is owner
    owner.in_flight = 6
    assert chooser.choose(key)[0] is second
    second.in_flight, owner.in_flight = 6, 6
    assert owner not in chooser.choose(key)[:1]
    for each in chooser.fleet.members:
        each.in_flight = 6  # evenly loaded: nobody is above its share
    assert chooser.choose(key)[0] is owner


@given(loads=st.lists(st.integers(0, 60), min_size=5, max_size=5), key=st.sampled_from(KEYS))
def test_the_first_named_is_within_the_bound_whenever_anybody_is(loads: list[int], key: str) -> None:
    bound = LoadBound(percent=125, floor=4)
    chooser = chooser_of(*(row(name) for name in "abcde"), limits=PickLimits(bound=bound))
    for endpoint, load in zip(chooser.fleet.members, loads, strict=True):
        endpoint.in_flight = load
    cap = max(bound.floor, 1.25 * sum(loads) / 5)
    if any(load + 1 <= cap for load in loads):
        assert chooser.choose(key)[0].in_flight + 1 <= cap + 1e-9


@given(
    members=st.lists(
        st.tuples(
            st.sampled_from([READY, READY, InstanceState.WARMING, DRAINING]), st.sampled_from([0, 25, 100]), st.integers(0, 30)
        ),
        min_size=1,
        max_size=6,
    ),
    owners=st.lists(st.integers(0, 6), min_size=16, max_size=16),
    hot=st.integers(0, 7),
    floor=st.sampled_from([0, 2, 8]),
    endpoints=st.integers(1, 4),
    most=st.sampled_from([0, 5, 20]),
)
@example(members=[(READY, 0, 0), (READY, 25, 4), (READY, 25, 4)], owners=[0] * 16, hot=2, floor=0, endpoints=1, most=0)
def test_the_quick_way_chooses_as_the_long_one_does(
    members: list[tuple[InstanceState, int, int]], owners: list[int], hot: int, floor: int, endpoints: int, most: int
) -> None:
    """One looks at all instances, which takes half a millisecond with a thousand; the other at as few as it can."""
    rows = [row(name, state=state, weight=weight) for name, (state, weight, _) in zip("abcdef", members, strict=False)]
    serving = [at for at, each in enumerate(rows) if each.state is not DRAINING]
    pattern = [owner if owner in serving else 0xFFFF for owner in owners]
    limits = PickLimits(bound=LoadBound(percent=125, floor=floor), endpoints=endpoints, most_in_flight=most)
    chooser = Chooser(limits, rng=random.Random(1))
    table = RoutingTable(generation=1, instances=rows, slots=pack_slots(pattern * (SLOTS // 16)))
    chooser.fleet = Fleet(table, kept=endpoints)
    for endpoint, (_, _, load) in zip(chooser.fleet.members, members, strict=True):
        endpoint.in_flight = load
    for key in KEYS[:8]:
        chooser.users = {key: f"uid-{'abcdefgh'[hot]}"}
        at = chooser.fleet.by_uid.get(chooser.users[key])
        try:
            there = list(chooser._carefully(slot_of(key), None, at if at is not None and at.serving else None, None))
        except Refused:
            there = []
        try:
            assert list(chooser.choose(key)) == there
        except Refused:
            assert not there


def test_an_echoed_choice_holds_above_the_bound_but_not_where_requests_are_shed() -> None:
    limits = PickLimits(bound=LoadBound(percent=125, floor=2), most_in_flight=10)
    chooser = chooser_of(row("a"), row("b"), limits=limits)
    b = chooser.fleet.by_name["b"]
    b.in_flight = 9
    assert names(chooser.choose(KEYS[0], echo="b"))[0] == "b"
    b.in_flight = 10
    assert names(chooser.choose(KEYS[0], echo="b")) == ["a"]


def test_an_endpoint_that_is_full_is_no_fallback_either_and_with_all_full_the_request_is_shed() -> None:
    chooser = chooser_of(row("a"), row("b"), limits=PickLimits(most_in_flight=3))
    first, second = chooser.choose(KEYS[0])
    first.in_flight = 3
    assert chooser.choose(KEYS[0]) == [second]
    second.in_flight = 3
    with pytest.raises(Refused, match="3 requests in flight") as shed:
        chooser.choose(KEYS[0])
    assert shed.value.status == 429


@pytest.mark.parametrize("subset", [frozenset(), frozenset({"10.9.9.9:1"})])
def test_a_subset_without_an_instance_of_the_table_is_503(subset: frozenset[str]) -> None:
    with pytest.raises(Refused, match="subset") as refused:
        chooser_of(row("a")).choose(KEYS[0], subset=subset)
    assert refused.value.status == 503


def test_inside_a_subset_the_order_stays_and_an_echo_from_outside_counts_nothing() -> None:
    chooser = chooser_of(*(row(name) for name in "abcd"))
    everyone = names(chooser.fleet.in_order(slot_of(KEYS[0])))
    subset = {chooser.fleet.by_name[name].address for name in "bd"}
    assert names(chooser.choose(KEYS[0], subset=subset)) == [name for name in everyone if name in "bd"]
    assert set(names(chooser.choose(KEYS[0], subset=subset, echo="a"))) == {"b", "d"}


def test_no_table_a_withdrawn_one_and_one_where_everybody_drains_say_why_nobody_is_there() -> None:
    chooser = Chooser(PickLimits(), rng=random.Random(1))
    for table, why in (
        (None, "no routing table yet"),
        (RoutingTable(generation=3, instances=[], slots=pack_slots([0xFFFF] * SLOTS)), "withdrawn"),
        (table_of([row("a", state=DRAINING)]), "no instance that serves"),
    ):
        chooser.fleet = Fleet(table)
        with pytest.raises(Refused, match=why) as refused:
            chooser.choose(KEYS[0])
        assert refused.value.status == 503


def test_what_is_in_flight_survives_a_new_table_but_not_a_successor_of_the_same_name() -> None:
    one = picker()
    one.offer(table_of([row("a"), row("b")]))
    one.chooser.fleet.by_name["a"].in_flight = one.chooser.fleet.by_name["b"].in_flight = 5
    one.offer(table_of([row("a", weight=50), row("b", uid="uid-new")], generation=2))
    assert {name: each.in_flight for name, each in one.chooser.fleet.by_name.items()} == {"a": 5, "b": 0}
    assert one.chooser.fleet.by_name["a"].weight == 0.5


def test_tables_that_are_older_or_broken_change_nothing_and_are_counted() -> None:
    one = picker()
    assert one.unready()
    assert one.offer(table_of([row("a")], generation=5))
    assert not one.unready()
    assert not one.offer(table_of([row("b")], generation=5))
    with pytest.raises(ProtocolViolation):
        one.offer(RoutingTable(generation=6, instances=[row("a"), row("a", uid="u2")], slots=pack_slots([0] * SLOTS)))
    assert one.offer(table_of([row("c")], generation=1), uid="another object")
    assert (one.tables.taken, one.tables.stale, one.tables.broken) == (2, 1, 1)


def test_the_newest_hot_users_are_bounded() -> None:
    one = picker()
    one.max_users = 3
    one.set_users(dict.fromkeys(KEYS, "uid-a"))
    assert len(one.users) == 3


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("https://10.0.0.1/", "10.0.0.1:443"),
        ("http://[fd00::1]:9", "[fd00::1]:9"),
    ],
)
def test_an_endpoint_is_an_ip_address_and_a_port(address: str, endpoint: str) -> None:
    assert address_of(row("a", address=address)) == endpoint


@pytest.mark.parametrize(
    "address", ["host:80", "ftp://10.0.0.1:1", "http://10.0.0.1:8000/path", "10.0.0.1:0", "http://u@10.0.0.1:1", "10.0.0.1:x"]
)
def test_a_row_that_is_no_endpoint_is_left_out_and_its_users_go_to_the_next(address: str) -> None:
    fleet = Fleet(table_of([row("a", address=address), row("b")]))
    assert list(fleet.refused) == ["a"]
    assert {each.name for slot in range(8) for each in fleet.first(slot)} == {"b"}


def test_the_file_for_envoy_has_who_serves_and_who_drains() -> None:
    text = assignment_of(Fleet(table_of([row("a"), row("b", state=DRAINING, address="[fd00::1]:8")])), cluster="pool")
    assert '"address": "fd00::1", "port_value": 8' in text
    assert text.count("HEALTHY") == 1
    assert text.count("DRAINING") == 1
    assert '"endpoints": []' in assignment_of(Fleet(None), cluster="pool")


def test_a_view_and_a_fleet_agree_on_every_slot() -> None:
    table = table_of([row(name) for name in "abc"])
    view, fleet = View(table), Fleet(table)
    assert all(fleet.first(slot)[0].name == view.owners[slot].name for slot in range(SLOTS))  # type: ignore[union-attr]  # all are owned


def test_the_bound_of_a_table_is_in_force_at_once_and_a_flag_wins_over_it() -> None:
    def bound_of(limits: PickLimits) -> LoadBound:
        one = picker(limits=limits)
        one.offer(table_of([row("a"), row("b")]))
        second = table_of([row("a"), row("b")], generation=2)
        one.offer(msgspec.structs.replace(second, limits=TableLimits(bounded_load_percent=300, bounded_load_floor=0)))
        one.offer(RoutingTable(generation=3, instances=[], slots=pack_slots([0xFFFF] * SLOTS)))  # a tombstone says nothing
        return one.chooser.limits.bound

    assert bound_of(PickLimits()) == LoadBound(percent=300, floor=0)
    assert bound_of(PickLimits(percent=0)) == LoadBound(percent=0, floor=0)
    assert bound_of(PickLimits(percent=150, floor=4)) == LoadBound(percent=150, floor=4)


def test_a_floor_that_a_table_lowers_spreads_the_next_request() -> None:
    one = picker()
    one.offer(table_of([row("a"), row("b")]))
    owner, second = one.chooser.choose(KEYS[0])
    owner.in_flight = 3
    assert one.chooser.choose(KEYS[0])[0] is owner
    lower = msgspec.structs.replace(table_of([row("a"), row("b")], generation=2), limits=TableLimits(bounded_load_floor=1))
    one.offer(lower)
    assert one.chooser.choose(KEYS[0])[0] is second
