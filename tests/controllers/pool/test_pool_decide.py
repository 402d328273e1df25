"""What the pool loop decides: instances to make and to delete, and what the pool's conditions say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import NOW, at, condition_item, instance_object, pool_object

from controllers.parsed import ParsedObjects
from controllers.pool.decide import ApplyInstance, DeleteInstance, Plan, WriteReadiness, decide
from controllers.pool.observe import Observation, read_instance
from controllers.runtime.conditions import find_condition
from crds import GRServingPool
from crds.reasons import check_condition

REACHABLE = {"reachable": True, "startId": "a", "engineStartId": "e"}


def observed(pool: dict[str, Any], *instances: dict[str, Any], **more: Any) -> Observation:
    return Observation(
        pool=GRServingPool.parse(pool),
        stored=pool,
        instances=tuple(read_instance(each, ParsedObjects()) for each in instances),
        strangers=more.pop("strangers", {}),
        **more,
    )


def reason(plan: Plan, type_: str) -> tuple[str, str]:
    assert plan.status is not None
    item = find_condition(plan.status["conditions"], type_)
    assert item is not None
    return item["status"], item["reason"]


def healthy(pool: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    """The pool with the words of the other loops in it."""
    items = [
        condition_item("PolicyHealthy", "True", "DefaultsInUse", generation=generation),
        condition_item("TablePublished", "True", "Published", generation=generation),
    ]
    return {**pool, "status": {"conditions": items, "tableGeneration": 1}}


def ready_instances(pool: dict[str, Any]) -> list[dict[str, Any]]:
    entries = [entry["name"] for entry in pool["spec"]["instances"]["external"]]
    return [
        instance_object(
            f"pool-{entry}",
            pool,
            agent=REACHABLE,
            observedGeneration=1,
            conditions=[
                {**condition_item("Ready", "True", "InstanceReady"), "message": "engine and agent answer"},
                condition_item("SplitSettled", "True", "Settled"),
            ],
        )
        for entry in entries
    ]


def test_each_entry_becomes_one_instance_named_after_pool_and_entry() -> None:
    plan = decide(observed(pool_object()), NOW)
    assert [(a.name, a.source["agentURL"], a.current) for a in plan.actions if isinstance(a, ApplyInstance)] == [
        ("pool-a", "http://a:81", None),
        ("pool-b", "http://b:81", None),
    ]
    assert reason(plan, "Ready") == ("False", "NoInstanceReady")
    assert reason(plan, "InstancesReady") == ("False", "Progressing")


def test_an_entry_that_left_the_list_has_its_instance_deleted_by_uid_and_the_rest_is_kept() -> None:
    pool = pool_object(entries=("a",))
    plan = decide(observed(pool, instance_object("pool-a", pool), instance_object("pool-b", pool)), NOW)
    assert [a for a in plan.actions if isinstance(a, DeleteInstance)] == [DeleteInstance(name="pool-b", uid="uid-pool-b")]
    assert not [a for a in plan.actions if isinstance(a, ApplyInstance)]


def test_a_changed_address_or_a_lost_label_is_put_right() -> None:
    pool = pool_object(entries=("a", "b", "c"))
    moved, bare, fine = (instance_object(f"pool-{name}", pool) for name in "abc")
    moved["spec"]["source"]["agentURL"] = "http://elsewhere:81"
    bare["metadata"]["labels"] = {}
    plan = decide(observed(pool, moved, bare, fine), NOW)
    applied = [(a.name, a.source["agentURL"]) for a in plan.actions if isinstance(a, ApplyInstance)]
    assert applied == [("pool-a", "http://a:81"), ("pool-b", "http://b:81")]


def test_a_name_in_other_hands_is_left_alone_and_said() -> None:
    plan = decide(observed(pool_object(), strangers={"pool-a": "GRServingPool other"}), NOW)
    assert [a.name for a in plan.actions if isinstance(a, ApplyInstance)] == ["pool-b"]
    assert reason(plan, "InstancesReady") == ("False", "NameTaken")
    assert plan.status is not None
    message = find_condition(plan.status["conditions"], "InstancesReady")["message"]  # type: ignore[index]  # asserted above
    assert "GRServingPool other" in message
    assert "rename" in message


def test_instances_of_a_deleted_pool_of_the_same_name_are_waited_for() -> None:
    plan = decide(observed(pool_object(), predecessors=frozenset({"pool-a"})), NOW)
    assert [a.name for a in plan.actions if isinstance(a, ApplyInstance)] == ["pool-b"]
    assert reason(plan, "InstancesReady") == ("False", "Progressing")


def test_a_pool_whose_name_does_not_fit_a_label_is_told_so() -> None:
    plan = decide(observed(pool_object(name="p" * 64)), NOW)
    assert plan.actions == ()
    assert reason(plan, "InstancesReady") == ("False", "NameTooLong")


def test_a_paused_pool_changes_no_instance_and_keeps_reporting() -> None:
    pool = pool_object(entries=("a",), paused=True)
    plan = decide(observed(pool, instance_object("pool-b", pool, agent=REACHABLE)), NOW)
    assert not [a for a in plan.actions if not isinstance(a, WriteReadiness)]
    assert reason(plan, "Paused") == ("True", "PausedByUser")
    assert plan.status is not None
    assert plan.status["replicas"] == 1


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ({"reachable": False}, ("False", "AgentUnreachable")),
        ({"reachable": True, "startId": "a"}, ("False", "EngineUnreachable")),
        (REACHABLE, ("True", "InstanceReady")),
    ],
)
def test_an_instance_is_ready_when_agent_and_engine_answer(agent: dict[str, Any], expected: tuple[str, str]) -> None:
    pool = pool_object(entries=("a",))
    (action,) = [
        a
        for a in decide(observed(pool, instance_object("pool-a", pool, generation=4, agent=agent)), NOW).actions
        if isinstance(a, WriteReadiness)
    ]
    assert action.status["observedGeneration"] == 4
    assert [(i["status"], i["reason"]) for i in action.status["conditions"]] == [expected]


def test_an_instance_at_which_nobody_has_looked_yet_is_not_written_to() -> None:
    pool = pool_object(entries=("a",))
    plan = decide(observed(pool, instance_object("pool-a", pool)), NOW)
    assert not [a for a in plan.actions if isinstance(a, WriteReadiness)]
    assert reason(plan, "InstancesReady") == ("False", "Progressing")


def test_a_pool_is_ready_when_instances_policy_and_table_are_and_says_what_is_missing_until_then() -> None:
    pool = pool_object()
    instances = ready_instances(pool)
    assert reason(decide(observed(pool, *instances), NOW), "Ready") == ("False", "NoRoutingTable")
    assert reason(decide(observed(healthy(pool), *instances), NOW), "Ready") == ("True", "AllInstancesReady")
    lost = healthy(pool)
    lost["status"]["conditions"][0] = condition_item("PolicyHealthy", "False", "PolicyNotFound")
    assert reason(decide(observed(lost, *instances), NOW), "Ready") == ("False", "PolicyUnusable")
    instances[0]["status"]["agent"] = {"reachable": False}
    assert reason(decide(observed(healthy(pool), *instances), NOW), "Ready") == ("False", "SomeInstancesNotReady")


def test_after_an_edit_ready_keeps_its_old_word_until_the_other_loops_have_seen_the_edit() -> None:
    pool = pool_object()
    before = healthy(pool)
    first = decide(observed(before, *ready_instances(pool)), NOW)
    assert first.status is not None
    stored = {**before, "status": {**before["status"], **first.status}}
    stored["status"]["conditions"] = [*before["status"]["conditions"], *first.status["conditions"]]
    stored["metadata"] = {**stored["metadata"], "generation": 2}
    plan = decide(observed(stored, *ready_instances(pool)), at(100))
    assert plan.status is not None
    assert plan.status["observedGeneration"] == 1
    ready = find_condition(plan.status["conditions"], "Ready")
    assert ready is not None
    assert ready["observedGeneration"] == 1


def test_what_stands_already_is_not_written_again() -> None:
    pool = healthy(pool_object())
    instances = ready_instances(pool)
    first = decide(observed(pool, *instances), NOW)
    assert first.status is not None
    stored = {**pool, "status": {**pool["status"], **first.status}}
    stored["status"]["conditions"] = [*pool["status"]["conditions"], *first.status["conditions"]]
    again = decide(observed(stored, *instances), at(3600))
    assert again.status is None
    assert not [a for a in again.actions if isinstance(a, WriteReadiness)]
    assert again.announce == ()


def test_numbers_wait_for_ten_seconds_and_transitions_for_one() -> None:
    pool = healthy(pool_object())
    instances = ready_instances(pool)
    first = decide(observed(pool, *instances), NOW)
    assert first.status is not None
    stored = {**pool, "status": {**pool["status"], **first.status}}
    stored["status"]["conditions"] = [*pool["status"]["conditions"], *first.status["conditions"]]
    instances[0]["status"]["p99Ms"] = "77"
    waiting = decide(observed(stored, *instances, write_ages_s=(4.0,)), at(4))
    assert waiting.status is None
    assert waiting.requeue_after == pytest.approx(6.0)
    instances[0]["status"]["agent"] = {"reachable": False}
    hurried = decide(observed(stored, *instances, write_ages_s=(4.0,)), at(4))
    assert reason(hurried, "Ready")[0] == "False"
    assert [(word.level, word.reason) for word in hurried.announce] == [
        ("Warning", "SomeNotReady"),
        ("Warning", "SomeInstancesNotReady"),
    ]


def test_the_summary_counts_only_what_was_measured() -> None:
    pool = pool_object(entries=("a", "b", "c"))
    instances = ready_instances(pool)
    for instance, percent, p99, slo in ((instances[0], 30, "40", "99.9"), (instances[1], 41, "120", "98.9")):
        value = {"embBytes": percent, "kvBytes": 100 - percent, "embPercent": percent}
        instance["status"] |= {"split": {"accepted": value}, "p99Ms": p99, "sloPercent": slo, "strategyInForce": "Static"}
    plan = decide(observed(pool, *instances), NOW)
    assert plan.status is not None
    assert plan.status["embPercent"] == {"min": 30, "mean": 36, "max": 41}
    assert (plan.status["p99Ms"], plan.status["sloPercent"], plan.status["strategyInForce"]) == ("120", "99.4", "Static")
    assert plan.status["instances"] == {"total": 3, "ready": 3, "settled": 3, "unreachable": 0, "shadow": 0}
    assert plan.status["selector"] == "grfleet.dev/pool=pool"


agents = st.sampled_from([None, REACHABLE, {"reachable": False}, {"reachable": True}])
words = st.sampled_from(
    [
        None,
        ("PolicyHealthy", "False", "PolicyNotFound"),
        ("PolicyHealthy", "Unknown", "AgentUnreachable"),
        ("TablePublished", "False", "Warming"),
        ("TablePublished", "Unknown", "Pending"),
    ]
)


@given(
    have=st.dictionaries(st.sampled_from("abcde"), agents),
    want=st.sets(st.sampled_from("abcde"), min_size=1),
    strangers=st.sets(st.sampled_from("abcde")),
    paused=st.booleans(),
    word=words,
    generation=st.integers(1, 3),
)
def test_whatever_is_seen_every_condition_is_documented_and_no_name_is_both_applied_and_deleted(
    have: dict[str, Any], want: set[str], strangers: set[str], paused: bool, word: tuple[str, str, str] | None, generation: int
) -> None:
    pool = pool_object(entries=tuple(sorted(want)), paused=paused)
    pool["metadata"]["generation"] = generation
    if word is not None:
        pool["status"] = {"conditions": [condition_item(*word)]}
    taken = {f"pool-{entry}": "nobody" for entry in (strangers & want) - have.keys()}
    instances = [instance_object(f"pool-{e}", pool, **({"agent": a} if a else {})) for e, a in sorted(have.items())]
    plan = decide(observed(pool, *instances, strangers=taken), NOW)
    applied = {a.name for a in plan.actions if isinstance(a, ApplyInstance)}
    deleted = {a.name for a in plan.actions if isinstance(a, DeleteInstance)}
    assert not applied & deleted
    assert not applied & taken.keys()
    assert applied == (set() if paused else {f"pool-{e}" for e in want - have.keys()} - taken.keys())
    assert deleted == (set() if paused else {f"pool-{e}" for e in have.keys() - want})
    written = [item for a in plan.actions if isinstance(a, WriteReadiness) for item in a.status["conditions"]]
    for item in [*written, *(plan.status or {}).get("conditions", ())]:
        check_condition(item["type"], item["status"], item["reason"])
        assert item["lastTransitionTime"]
