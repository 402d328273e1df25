"""What the routing loop decides: who is in the table, when it changes, and what is said about it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_objects import NOW, at
from routing_decide_world import READY, SILENT, churn, instance, names, observed, published, said, table_object

from contract.keys import SLOTS
from contract.table import RoutingTable, TableLimits, limits_of, unpack_slots
from controllers.holder import Holder
from controllers.lookup import Found, NotFound
from controllers.routing.decide import Plan, decide, hold
from controllers.runtime.conditions import find_condition
from crds import GRRoutingTable, RoutingPolicySpec
from crds.instance import PolicySource
from crds.pool_instances import MAX_REPLICAS
from crds.reasons import check_condition
from crds.routing_policy import BoundedLoad, Churn, HotUsers, SecretKey, Warmup
from crds.routing_table import MAX_TABLE_INSTANCES, GRRoutingTableStatus
from dataplane.edge import check_names


def test_the_first_table_has_every_ready_instance_and_an_owner_for_every_slot() -> None:
    plan = decide(observed(instance("a"), instance("b")), NOW)
    assert plan.apply_table
    assert plan.table_status is not None
    assert plan.table_status["generation"] == 1
    assert names(plan) == ["pool-a", "pool-b"]
    assert set(unpack_slots(plan.table_status["slots"], instances=2)) == {0, 1}
    assert said(plan) == ("True", "Published")
    assert plan.pool_status is not None
    assert plan.pool_status["tableGeneration"] == 1


def test_the_same_world_twice_publishes_once() -> None:
    first = decide(observed(instance("a"), instance("b")), NOW)
    assert first.pool_status is not None
    table = table_object(dict(first.table_status or {}))
    again = decide(observed(instance("a"), instance("b"), table=table, pool_status=dict(first.pool_status)), at(3600))
    assert again == Plan()


def test_an_instance_that_was_not_asked_yet_keeps_its_users_but_gets_none() -> None:
    table = published(instance("a"), instance("b"))
    assert decide(observed(instance("a"), instance("b", None), table=table), at(5)).table_status is None
    assert names(decide(observed(instance("a"), instance("b", ("Unknown", "Pending"))), NOW)) == ["pool-a"]


def test_the_first_table_of_a_young_pool_waits_until_every_instance_was_heard_of_but_not_for_ever() -> None:
    seen = (instance("a"), instance("b", ("Unknown", "Pending")))
    waiting = decide(observed(*seen, started=-5), NOW)
    assert said(waiting) == ("Unknown", "Pending")
    assert waiting.table_status is None
    assert waiting.requeue_after is not None
    assert names(decide(observed(*seen, started=-5), at(40))) == ["pool-a"]
    assert names(decide(observed(instance("a"), instance("b", SILENT), started=-5), NOW)) == ["pool-a"]


def test_the_first_table_of_a_managed_pool_waits_for_pods_that_have_no_instance_yet_but_not_for_ever() -> None:
    managed = {"instances": {"managed": {"template": {}}}, "replicas": 3}
    seen = (instance("a"), instance("b"))
    assert said(decide(observed(*seen, started=-5, **managed), NOW)) == ("Unknown", "Pending")
    assert names(decide(observed(*seen, started=-5, **managed), at(40))) == ["pool-a", "pool-b"]
    assert names(decide(observed(*seen, started=-5, **{**managed, "replicas": 2}), NOW)) == ["pool-a", "pool-b"]


def test_a_silent_instance_loses_its_users_after_the_grace_and_not_before() -> None:
    table = published(instance("a"), instance("b"), instance("c"))
    seen = (instance("a"), instance("b"), instance("c", SILENT, since=100))
    early = decide(observed(*seen, table=table), at(120))
    assert early.table_status is None
    assert early.requeue_after == pytest.approx(11)
    late = decide(observed(*seen, table=table), at(131))
    assert names(late) == ["pool-a", "pool-b"]
    assert late.table_status is not None
    assert late.table_status["generation"] == 2
    assert float(late.table_status["movedPercent"]) == pytest.approx(33.3, abs=4)


def test_a_new_leader_gives_a_silent_instance_the_grace_again() -> None:
    table = published(instance("a"), instance("b"), instance("c"))
    seen = (instance("a"), instance("b"), instance("c", SILENT, since=-9000))
    assert decide(observed(*seen, table=table, started=100), at(110)).table_status is None


def test_when_most_of_the_table_falls_silent_at_once_the_view_is_doubted_and_the_table_stays() -> None:
    table = published(instance("a"), instance("b"), instance("c"))
    seen = (instance("a"), instance("b", SILENT), instance("c", SILENT))
    plan = decide(observed(*seen, table=table), at(600))
    assert said(plan) == ("False", "ViewInDoubt")
    assert names(plan) == ["pool-a", "pool-b", "pool-c"]
    assert plan.table_status is not None
    assert plan.table_status["generation"] == 1


def test_another_uid_is_another_instance_and_takes_its_users_at_once() -> None:
    table = published(instance("a"), instance("b"))
    plan = decide(observed(instance("a"), instance("b", uid="uid-new"), table=table), at(5))
    assert plan.table_status is not None
    assert plan.table_status["generation"] == 2
    assert [row["uid"] for row in plan.table_status["instances"]] == ["uid-pool-a", "uid-new"]


def test_a_new_instance_is_filled_within_the_churn_budget_over_several_windows() -> None:
    policy = Found(
        spec=RoutingPolicySpec(churn=Churn(max_moved_percent=5, window_seconds=60), warmup=Warmup(max_seconds=0)),
        name="default",
        source=PolicySource.DEFAULTS,
    )
    table, moment, moved = published(instance("a"), instance("b"), policy=policy), 0.0, []
    for _ in range(20):
        plan = decide(observed(instance("a"), instance("b"), instance("c"), table=table, policy=policy), at(moment))
        if plan.table_status is not None:
            if plan.table_status["generation"] > table["status"]["generation"]:
                moved.append(float(plan.table_status["movedPercent"]))
            table = table_object(dict(plan.table_status))
        if plan.requeue_after is None:
            break
        moment += max(plan.requeue_after, 1.0)
    assert len(moved) >= 5
    assert max(moved) <= 5.0
    owners = unpack_slots(table["status"]["slots"], instances=3)
    assert owners.count(2) == pytest.approx(SLOTS / 3, rel=0.15)


def test_who_waits_for_the_budget_looks_again_when_the_oldest_move_leaves_the_window() -> None:
    policy = Found(
        spec=RoutingPolicySpec(churn=Churn(max_moved_percent=5, window_seconds=60), warmup=Warmup(max_seconds=0)),
        name="default",
        source=PolicySource.DEFAULTS,
    )
    table = published(instance("a"), instance("b"), policy=policy)
    moves = [(0, "3"), (30, "2")]
    table["status"]["recentMoves"] = [
        {"time": at(moment).strftime("%Y-%m-%dT%H:%M:%SZ"), "generation": 1, "movedPercent": share} for moment, share in moves
    ]
    plan = decide(observed(instance("a"), instance("b"), instance("c"), table=table, policy=policy), at(40))
    assert plan.requeue_after == pytest.approx(20.0, abs=1.0)


def test_what_the_policy_asks_of_gateways_is_published_with_a_generation_of_its_own_and_moves_nobody() -> None:
    before = published(instance("a"), instance("b"))
    assert msgspec.convert(before["status"], RoutingTable).limits == TableLimits(
        bounded_load_percent=125, bounded_load_floor=8, hot_users_max=100_000, hot_user_seconds=300, key_header="x-gr-user-key"
    )
    asked = RoutingPolicySpec(
        warmup=Warmup(max_seconds=0),
        key_header="x-member",
        bounded_load=BoundedLoad(percent=300, floor=2),
        hot_users=HotUsers(max=7, ttl_seconds=60),
    )
    changed = Found(spec=asked, name="default", source=PolicySource.DEFAULTS)
    after = decide(observed(instance("a"), instance("b"), table=before, policy=changed), at(60)).table_status
    assert after is not None
    assert (after["generation"], after["movedPercent"], after["slots"]) == (2, "0", before["status"]["slots"])
    assert msgspec.convert(after, RoutingTable).limits == TableLimits(
        bounded_load_percent=300, bounded_load_floor=2, hot_users_max=7, hot_user_seconds=60, key_header="x-member"
    )


def test_a_table_of_an_operator_that_said_no_limits_is_read_and_gets_them() -> None:
    before = published(instance("a"))
    del before["status"]["limits"]
    assert limits_of(msgspec.convert(before["status"], RoutingTable)) == TableLimits()
    after = decide(observed(instance("a"), table=before), at(60)).table_status
    assert after is not None
    assert (after["generation"], after["limits"]["hotUsersMax"]) == (2, 100_000)


@pytest.mark.parametrize(("age", "evenly"), [(60, True), (400, False)])
def test_a_young_pool_that_fills_slowly_spreads_its_users_at_once_and_an_old_one_by_its_budget(age: float, evenly: bool) -> None:
    late = [instance(name) for name in "bcdefgh"]
    table = published(instance("a"))
    plan = decide(observed(instance("a"), *late, table=table, born=-age), at(1))
    assert plan.table_status is not None
    kept = unpack_slots(plan.table_status["slots"], instances=8).count(0)
    if evenly:
        assert kept == pytest.approx(SLOTS / 8, rel=0.2)
    else:
        assert kept >= 0.9 * SLOTS - 1
        assert said(plan)[1] == "BudgetExhausted"


def test_a_new_instance_ramps_with_its_hit_rate_against_that_of_the_warm_ones() -> None:
    policy = Found(spec=RoutingPolicySpec(warmup=Warmup(max_seconds=300)), name="default", source=PolicySource.DEFAULTS)
    warm = [instance(name, hit=80) for name in "abc"]
    table = published(*warm, policy=policy)
    weights = []
    for seconds, hit in ((10, 0), (20, 36), (30, 64)):
        plan = decide(observed(*warm, instance("d", since=9, hit=hit), table=table, policy=policy), at(seconds))
        assert plan.table_status is not None
        table = table_object(dict(plan.table_status))
        weights.append(plan.table_status["instances"][3]["weightPercent"])
        if hit == 0:
            assert said(plan)[1] in {"Warming", "BudgetExhausted"}
            assert plan.requeue_after is not None
    assert weights == [25, 50, 100]


def test_a_paused_pool_keeps_its_table_to_the_letter() -> None:
    table = published(instance("a"), instance("b"))
    plan = decide(observed(instance("a"), table=table, paused=True), at(60))
    assert said(plan) == ("False", "PausedByUser")
    assert plan.table_status is not None
    assert {key: plan.table_status[key] for key in ("slots", "generation", "instances")} == {
        key: table["status"][key] for key in ("slots", "generation", "instances")
    }


def test_a_missing_policy_leaves_the_table_and_says_so() -> None:
    plan = decide(observed(instance("a"), policy=NotFound(name="mine", namespace="team")), NOW)
    assert said(plan) == ("False", "PolicyNotFound")
    assert (plan.table_status, plan.apply_table) == (None, False)


def test_a_deleted_table_comes_back_with_a_generation_that_followers_take() -> None:
    plan = decide(observed(instance("a"), pool_status={"tableGeneration": 41}), NOW)
    assert plan.apply_table
    assert plan.table_status is not None
    assert plan.table_status["generation"] == 42


def test_a_changed_address_is_published_though_no_user_moves() -> None:
    table = published(instance("a"))
    moved_house = instance("a")
    moved_house["spec"]["source"]["serviceURL"] = "http://elsewhere:80"
    plan = decide(observed(moved_house, table=table), at(5))
    assert plan.table_status is not None
    assert plan.table_status["generation"] == 2
    assert plan.table_status["movedPercent"] == "0"


@pytest.mark.parametrize("name", ["pool-key", "a." * 126 + "b"])
def test_the_table_names_the_key_that_users_are_hashed_with_by_the_whole_name_of_its_secret(name: str) -> None:
    policy = Found(spec=RoutingPolicySpec(user_key_secret=SecretKey(name=name)), name="x", source=PolicySource.POOL)
    plan = decide(observed(instance("a"), policy=policy), NOW)
    assert plan.table_status is not None
    assert plan.table_status["keyId"] == name
    assert GRRoutingTableStatus.model_validate({"keyId": name}).key_id == name
    check_names(id_header="x-user-id", key_header=None, key_id=name)  # gateways and pickers are given the same


@pytest.mark.parametrize(
    ("owner", "pool_ref", "holder"),
    [
        ("uid-pool", "pool", Holder.POOL),
        (None, "pool", Holder.ORPHAN),
        ("uid-before", "pool", Holder.PREDECESSOR),
        (None, "other", Holder.STRANGER),
    ],
)
def test_a_table_in_other_hands_is_recognised(owner: str | None, pool_ref: str, holder: Holder) -> None:
    table = table_object({}, owner=owner)
    table["spec"]["poolRef"] = pool_ref
    assert observed(table=table).holder is holder
    plan = decide(observed(instance("a"), table=table), NOW)
    assert (plan.table_status is None) == (holder in {Holder.STRANGER, Holder.PREDECESSOR})
    assert plan.apply_table == (holder is Holder.ORPHAN)


@pytest.mark.parametrize(("beside", "held"), [(0, False), (100, False), (MAX_REPLICAS, False), (MAX_REPLICAS + 1, True)])
def test_the_largest_pool_has_room_in_its_table_for_a_rolling_update(beside: int, held: bool) -> None:
    one = observed(instance("a"))
    many = replace(one, instances=one.instances * (MAX_REPLICAS + beside))
    held_by = hold(many, None)
    assert (held_by is not None and held_by.reason == "TableTooLarge") == held
    assert MAX_TABLE_INSTANCES <= 4096, "followers take no more rows"


def test_the_generation_of_a_strangers_table_is_none_of_the_pools() -> None:
    table = table_object({**published(instance("a"))["status"], "generation": 500}, owner=None)
    table["spec"]["poolRef"] = "other"
    plan = decide(observed(instance("a"), table=table), NOW)
    assert said(plan) == ("False", "NameTaken")
    assert "tableGeneration" not in (plan.pool_status or {}), "the pool would count as ready"


words = st.sampled_from([None, READY, SILENT, ("Unknown", "Pending"), ("False", "EngineUnreachable"), ("False", "InvalidAnswer")])


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.dictionaries(st.sampled_from("abcd"), words), st.integers(0, 200), st.booleans()), min_size=1, max_size=5
    )
)
def test_through_any_history_generations_only_grow_and_slots_only_point_at_known_instances(steps: list[Any]) -> None:
    table, moment, highest = None, 0.0, 0
    for have, seconds, paused in steps:
        moment += seconds
        seen = observed(
            *(instance(name, word) for name, word in sorted(have.items())),
            table=table,
            paused=paused,
            pool_status={"tableGeneration": highest} if highest else None,
        )
        plan = decide(seen, at(moment))
        if plan.pool_status is not None:
            for item in plan.pool_status["conditions"]:
                check_condition(item["type"], item["status"], item["reason"])
        if plan.table_status is not None:
            status = dict(plan.table_status)
            changed = table is None or status["slots"] != table["status"]["slots"]
            assert status["generation"] >= highest + (1 if changed else 0)
            highest = status["generation"]
            owners = unpack_slots(status["slots"], instances=len(status["instances"]))
            assert all(owner < len(status["instances"]) for owner in owners)
            table = table_object(status)
            GRRoutingTable.parse(table)  # the API would take it


def test_times_that_a_leader_with_a_fast_clock_wrote_keep_nobody_waiting_for_them() -> None:
    """Twenty minutes from the future: the grace of a silent instance and the warm-up of a new one count from our own start."""
    table = published(instance("a"), instance("b"), instance("c"))
    seen = (instance("a"), instance("b"), instance("c", SILENT, since=1200))
    assert decide(observed(*seen, table=table, started=0), at(20)).table_status is None
    assert names(decide(observed(*seen, table=table, started=0), at(31))) == ["pool-a", "pool-b"]

    policy = Found(spec=RoutingPolicySpec(warmup=Warmup(max_seconds=60)), name="default", source=PolicySource.DEFAULTS)
    table = published(instance("a"), instance("b"), policy=policy)
    seen = (instance("a"), instance("b"), instance("c", since=1200))
    for moment, weight in ((1, 1), (70, 100)):
        plan = decide(observed(*seen, table=table, policy=policy, started=0, born=-60), at(moment))
        assert plan.table_status is not None
        assert plan.table_status["instances"][2]["weightPercent"] >= weight
        table = table_object(dict(plan.table_status))

    slow = observed(instance("a"), instance("b", None), born=1200, started=-40)
    assert names(decide(slow, NOW)) == ["pool-a"], "a pool that seems not to be born yet does not wait until it is"


def test_who_waits_for_the_churn_budget_is_said_in_a_condition_of_its_own() -> None:
    table = published(instance("a"), instance("b"))
    grown = observed(instance("a"), instance("b"), instance("c", since=-9999), table=table)
    plan = decide(grown, NOW)
    assert churn(plan) == ("True", "MovesDeferred")
    assert plan.table_status is not None
    said_there = find_condition(plan.table_status["conditions"], "ChurnLimited")
    assert said_there is not None
    owners = unpack_slots(plan.table_status["slots"], instances=3)
    waiting = 100.0 * (SLOTS / 3 - owners.count(2)) / SLOTS  # a third of the users belongs to the one that came
    assert float(said_there["message"].split()[0]) == pytest.approx(waiting, abs=3.0)
    assert churn(decide(observed(instance("a"), instance("b")), NOW)) == ("False", "WithinBudget")
    assert churn(decide(observed(instance("a"), table=table, paused=True), NOW)) == ("Unknown", "TableHeld")


@pytest.mark.parametrize("count", [1000, 1024])
def test_the_table_of_a_thousand_instances_with_full_names_is_below_256_kib_as_it_is_sent(count: int) -> None:
    # Names as long as a pool of this size may have them, every instance warming, every slot a move of its own.
    seen = [instance(f"{number:04d}-{'x' * 38}", hit=10) for number in range(count)]
    for each in seen:
        each["metadata"]["uid"] = f"00000000-0000-4000-8000-{each['metadata']['name'][5:9]:0>12}"
        each["spec"]["source"]["serviceURL"] = "http://[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535"
    plan = decide(observed(*seen), NOW)
    assert plan.table_status is not None
    moves = [{"time": "2026-05-01T12:00:00Z", "generation": 10**9, "movedPercent": "99.999"}] * 64
    sent = table_object({**plan.table_status, "recentMoves": moves})
    assert len(json.dumps(sent).encode()) < 256 * 1024
    assert len(GRRoutingTable.parse(sent).status.instances) == count
