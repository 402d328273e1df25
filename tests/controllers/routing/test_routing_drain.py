"""A draining instance leaves the table at once and comes back warm; a drain never empties the table."""

from __future__ import annotations

from typing import Any

from loop_objects import at, condition_item, instance_object, pool_object

from contract.table import unpack_slots
from controllers.holder import Holder
from controllers.lookup import Found
from controllers.routing.decide import Plan, decide
from controllers.routing.observe import Observation
from controllers.runtime.conditions import find_condition
from crds import GRInstance, GRRoutingTable, GRServingPool, RoutingPolicySpec
from crds.instance import PolicySource
from crds.routing_policy import Churn

POLICY = Found(spec=RoutingPolicySpec(churn=Churn(max_moved_percent=10)), name="default", source=PolicySource.DEFAULTS)
READY, NOT_READY, SILENT = ("True", "InstanceReady"), ("False", "EngineUnreachable"), ("False", "AgentUnreachable")


def instance(name: str, word: tuple[str, str] = READY, *, since: float = -9999, drain: str | None = None) -> dict[str, Any]:
    made = instance_object(f"pool-{name}", pool_object(), conditions=[condition_item("Ready", *word, since=at(since))])
    if drain is not None:
        made["spec"]["drain"] = {"reason": drain, "startedAt": "2026-05-01T12:00:00Z", "deadlineSeconds": 60}
    return made


def plan(table: dict[str, Any] | None, *instances: dict[str, Any], seconds: float = 0, **spec: Any) -> Plan:
    pool = pool_object(**spec)
    parsed = GRRoutingTable.parse(table) if table is not None else None
    seen = Observation(
        pool=GRServingPool.parse(pool),
        stored=pool,
        policy=POLICY,
        instances=tuple(GRInstance.parse(each) for each in instances),
        table=parsed,
        stored_table=table,
        holder=Holder.POOL if table is not None else Holder.NOBODY,
        started=at(-3600),
    )
    return decide(seen, at(seconds))


def published(status: Any) -> dict[str, Any]:
    assert status is not None
    reference = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRServingPool", "name": "pool", "uid": "uid-pool"}
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRRoutingTable",
        "metadata": {"name": "pool", "namespace": "team", "uid": "uid-table", "generation": 1, "ownerReferences": [reference]},
        "spec": {"poolRef": "pool"},
        "status": dict(status),
    }


def first(*names: str) -> dict[str, Any]:
    return published(plan(None, *(instance(name) for name in names)).table_status)


def shares(table: dict[str, Any]) -> dict[str, int]:
    """Slots of each row by name."""
    rows = table["status"]["instances"]
    slots = unpack_slots(table["status"]["slots"], instances=len(rows))
    return {row["name"]: slots.count(number) for number, row in enumerate(rows)}


def row_of(table: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((row for row in table["status"]["instances"] if row["name"] == name), None)


def said(result: Plan) -> tuple[str, str]:
    assert result.pool_status is not None
    item = find_condition(result.pool_status["conditions"], "TablePublished")
    assert item is not None
    return item["status"], item["reason"]


def test_a_draining_instance_loses_its_users_at_once_and_keeps_a_row_that_says_so() -> None:
    for reason in ("ScaleDown", "Terminating"):
        result = plan(first("a", "b", "c"), instance("a"), instance("b"), instance("c", drain=reason))
        after = published(result.table_status)
        assert shares(after)["pool-c"] == 0
        assert sum(shares(after).values()) == 4096
        row = row_of(after, "pool-c")
        assert row is not None
        assert (row["state"], row["weightPercent"]) == ("Draining", 100)
        assert said(result) == ("False", "Draining")


def test_users_of_a_drained_instance_do_not_wait_for_the_budget_and_use_it_up() -> None:
    result = plan(first("a", "b"), instance("a"), instance("b", drain="ScaleDown"))
    after = published(result.table_status)
    assert shares(after)["pool-a"] == 4096  # half of all users, the budget is a tenth
    later = plan(after, instance("a"), instance("b", drain="ScaleDown"), instance("c"), seconds=5)
    assert later.table_status is not None
    assert shares(published(later.table_status)).get("pool-c", 0) == 0
    assert said(later) == ("False", "BudgetExhausted")


def test_when_all_drain_the_last_table_stays_to_the_letter() -> None:
    before = first("a", "b")
    result = plan(before, instance("a", drain="ScaleDown"), instance("b", drain="ScaleDown"))
    assert said(result) == ("False", "NoInstances")
    assert result.table_status is not None
    assert result.table_status["slots"] == before["status"]["slots"]
    assert result.table_status["generation"] == before["status"]["generation"]


def test_a_drain_waits_for_nobody_to_be_ready_beside_it() -> None:
    """The only other one is not ready: its callers would only fail there."""
    result = plan(first("a"), instance("a", drain="ScaleDown"), instance("b", NOT_READY))
    assert said(result) == ("False", "NoInstances")


def test_a_drain_taken_back_returns_with_its_warm_weight_as_soon_as_it_is_ready_again() -> None:
    before = first("a", "b", "c")
    during = published(plan(before, instance("a"), instance("b"), instance("c", drain="ScaleDown")).table_status)
    waits = plan(during, instance("a"), instance("b"), instance("c", NOT_READY), seconds=70)
    assert row_of(published(waits.table_status or during["status"]), "pool-c") is not None
    back = plan(during, instance("a"), instance("b"), instance("c", since=70), seconds=71)
    after = published(back.table_status)
    row = row_of(after, "pool-c")
    assert row is not None
    assert row["weightPercent"] == 100  # a new one would begin at 25
    assert 0 < shares(after)["pool-c"] <= 0.1 * 4096


def test_the_row_goes_with_the_instance_and_moves_nobody() -> None:
    during = published(plan(first("a", "b"), instance("a"), instance("b", drain="ScaleDown")).table_status)
    result = plan(during, instance("a"), seconds=30)
    after = published(result.table_status)
    assert row_of(after, "pool-b") is None
    assert shares(after) == {"pool-a": 4096}
    assert after["status"]["movedPercent"] == "0"
    assert said(result) == ("True", "Published")


def test_nothing_is_written_while_a_drain_goes_on() -> None:
    instances = (instance("a"), instance("b", drain="ScaleDown"))
    during = published(plan(first("a", "b"), *instances).table_status)
    assert plan(during, *instances, seconds=1).table_status is None
    assert plan(during, instance("a"), instance("b", SILENT, drain="Terminating"), seconds=300).table_status is None


def test_the_silence_of_those_that_leave_puts_the_view_of_the_others_in_no_doubt() -> None:
    leaving = [instance(name, SILENT, drain="Terminating") for name in ("b", "c")]
    after = published(plan(first("a", "b", "c"), instance("a"), *leaving).table_status)
    assert shares(after)["pool-a"] == 4096
    doubted = plan(first("a", "b", "c"), instance("a"), instance("b", SILENT), instance("c", SILENT), seconds=1)
    assert said(doubted) == ("False", "ViewInDoubt")


def test_a_paused_pool_keeps_its_table_although_an_instance_drains() -> None:
    before = first("a", "b")
    result = plan(before, instance("a"), instance("b", drain="Terminating"), paused=True)
    assert said(result) == ("False", "PausedByUser")
    assert result.table_status is None or result.table_status["slots"] == before["status"]["slots"]


def test_an_instance_that_drains_before_it_served_is_not_let_in() -> None:
    assert plan(first("a"), instance("a"), instance("b", drain="ScaleDown")).table_status is None
