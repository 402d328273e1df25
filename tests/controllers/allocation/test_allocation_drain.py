"""What an agent is told besides the split, and when a draining instance counts as drained."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import GIB, NOW, agent_status, at, condition_item, instance_object, pool_object

from contract import signing
from contract.agent import AgentStatus, EngineReport, Intent, ServingReport, intent_spec
from contract.engine import LimitsRequest, PreInferCounters
from contract.table import InstanceState
from controllers.agent_book import AgentBook
from controllers.allocation.agents import Agents
from controllers.allocation.controller import AllocationLoop
from controllers.allocation.decide import decide
from controllers.allocation.drained import QUIET_SECONDS, is_finishing
from controllers.allocation.execute import execute
from controllers.allocation.intent import intent_for, pushed_spec
from controllers.allocation.memory import Memory
from controllers.allocation.observe import BY_UID, Observation, _still_routed, observe_pool, uid_index
from controllers.allocation.report import status_of
from controllers.allocation.sightings import Answered, Silent, problem_of
from controllers.lookup import Found
from controllers.model_bytes import ModelBytes
from controllers.parsed import ParsedObjects
from controllers.runtime.clock import FakeClock
from controllers.runtime.conditions import find_condition
from controllers.runtime.resources import HBM_POLICIES, INSTANCES, POOLS, ROUTING_TABLES, Key
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.signing_key import SigningKey
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.instance import PolicySource

POLICY = Found(spec=HBMPolicySpec(), name="mine", namespace="team", generation=3, source=PolicySource.POOL)
DRAIN = {"reason": "ScaleDown", "startedAt": "2026-05-01T12:00:00Z", "deadlineSeconds": 60}
CAPACITY = {"slots": 8, "bytes": 2 * GIB}


def serving(*, in_flight: int = 0, queue: int = 0) -> ServingReport:
    return ServingReport(
        clock_ms=1.0, requests=9, queue=queue, in_flight=in_flight, live_prefix_bytes=0, pre_infer=PreInferCounters()
    )


def idle_status(*, idle: float | None = 9.0, in_flight: int = 0, draining: bool = True, **changes: Any) -> AgentStatus:
    """An agent whose engine drains and has had nothing to do for a while."""
    return agent_status(draining=draining, idle_seconds=idle, serving=serving(in_flight=in_flight), **changes)


def leaving(
    sighting: Any = None, *, drain: dict[str, Any] | None = DRAIN, old: dict[str, Any] | None = None, **more: Any
) -> Observation:
    """An instance whose agent holds its intent, with spec.drain set."""
    pool = pool_object(entries=("a",))
    stored = instance_object("pool-a", pool, intent=intent_for(GRServingPool.parse(pool), POLICY).to_wire(), **(old or {}))
    if drain is not None:
        stored["spec"]["drain"] = drain
    return Observation(
        instance=GRInstance.parse(stored),
        stored=stored,
        pool=GRServingPool.parse(pool),
        policy=POLICY,
        sighting=sighting or Answered(status=idle_status()),
        push_age_s=9.0,
        **more,
    )


def drained_of(seen: Observation) -> tuple[str, str] | None:
    item = find_condition(status_of(seen, NOW)[0]["conditions"], "Drained")
    return None if item is None else (item["status"], item["reason"])


# -- what is pushed -----------------------------------------------------------------------------------------------------------


def test_capacity_and_the_word_to_drain_are_pushed_beside_the_intent() -> None:
    pool = pool_object(memory={"hbmBytes": "80Gi", "hostBytes": "256Gi", "ssdBytes": "1Ti"})
    intent = intent_for(GRServingPool.parse(pool), POLICY).to_wire()
    told = intent_spec(pushed_spec({"intent": intent, "preInfer": CAPACITY, "drain": DRAIN}))
    assert told.pre_infer is not None
    assert (told.pre_infer.slots, told.pre_infer.bytes) == (8, 2 * GIB)
    assert (told.pre_infer.host_bytes, told.pre_infer.ssd_bytes) == (256 * GIB, 1024 * GIB)
    assert told.draining


def test_without_them_the_words_are_those_of_the_intent_alone() -> None:
    """An agent that holds the intent from an operator that knew nothing of them must not see other words of the same number."""
    intent = intent_for(GRServingPool.parse(pool_object()), POLICY).to_wire()
    assert pushed_spec({"intent": intent}) == intent
    assert {"hostBytes", "ssdBytes"}.isdisjoint(intent)


def test_a_pool_with_other_lower_tiers_gives_another_intent_and_so_another_generation() -> None:
    one, two = (
        intent_for(GRServingPool.parse(pool_object(memory={"hbmBytes": "80Gi", "hostBytes": size})), POLICY).to_wire()
        for size in ("1Gi", "2Gi")
    )
    assert one != two


@given(st.booleans(), st.booleans(), st.sampled_from(["0", "1Gi"]), st.integers(1, 5))
def test_what_is_pushed_depends_on_the_instance_alone_and_can_be_signed(
    capacity: bool, drain: bool, host: str, generation: int
) -> None:
    pool = pool_object(entries=("a",), memory={"hbmBytes": "80Gi", "hostBytes": host})
    spec: dict[str, Any] = {"intent": intent_for(GRServingPool.parse(pool), POLICY).to_wire()}
    spec |= ({"preInfer": CAPACITY} if capacity else {}) | ({"drain": DRAIN} if drain else {})
    before = msgspec.json.encode(spec)
    payloads = {
        signing.payload(Intent(uid="u", generation=generation, issued=1, expires=2, spec=pushed_spec(spec))) for _ in range(2)
    }
    assert len(payloads) == 1
    assert msgspec.json.encode(spec) == before


def test_a_drain_is_pushed_as_soon_as_it_has_a_generation() -> None:
    plan = decide(replace(leaving(Answered(status=agent_status(generation=0))), push_age_s=None), NOW)
    assert plan.push is not None
    assert plan.push.spec["draining"] is True


# -- Drained ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (leaving(), ("True", "NothingInFlight")),
        (leaving(Answered(status=idle_status(in_flight=2, idle=0.0))), ("False", "Finishing")),
        (leaving(Answered(status=idle_status(idle=QUIET_SECONDS - 0.1))), ("False", "Finishing")),
        (leaving(Answered(status=idle_status(draining=False))), ("False", "Finishing")),
        (leaving(Answered(status=idle_status(generation=0))), ("False", "Finishing")),  # an older intent, an older drain
        (leaving(Answered(status=idle_status(uid="uid-of-a-predecessor"))), ("False", "Finishing")),
        (leaving(still_routed=True), ("False", "Finishing")),
        (leaving(Answered(status=idle_status(idle=None))), ("Unknown", "NotObserved")),
        (leaving(Answered(status=agent_status(draining=True, idle_seconds=9.0))), ("Unknown", "NotObserved")),
        (leaving(Answered(status=idle_status(engine=EngineReport(reachable=False)))), ("Unknown", "NotObserved")),
        (leaving(Silent(why="refused", failures=4)), ("Unknown", "NotObserved")),
        (leaving(holder="team/other"), ("Unknown", "NotObserved")),
        (leaving(drain=None), None),
    ],
)
def test_an_instance_is_drained_only_when_a_fresh_word_of_its_agent_proves_it(
    seen: Observation, word: tuple[str, str] | None
) -> None:
    assert drained_of(seen) == word


def test_the_agent_of_a_draining_instance_is_asked_often_until_it_is_drained() -> None:
    assert is_finishing(leaving(Answered(status=idle_status(in_flight=1))))
    assert not is_finishing(leaving())
    assert not is_finishing(leaving(Silent(why="refused", failures=4)))
    assert not is_finishing(leaving(drain=None))


@pytest.mark.parametrize(("in_flight", "soonest", "latest"), [(1, 0.0, 2.0), (0, 8.0, 12.0)])
async def test_a_drain_under_way_is_looked_at_each_two_seconds_and_one_that_is_over_by_the_common_rhythm(
    in_flight: int, soonest: float, latest: float
) -> None:
    status, clock = idle_status(in_flight=in_flight), FakeClock()
    port: Any = SimpleNamespace(status=lambda: _answer(status))
    agents = Agents(clock=clock, rng=random.Random(1), connect=lambda url: port, book=AgentBook())
    await agents.look("uid-pool-a", "http://a:81")
    seen = leaving(Answered(status=status))
    plan = replace(decide(seen, NOW), status=None, push=None)
    ctx: Any = SimpleNamespace(clock=clock)
    await execute(plan, seen, agents, Memory(), SigningKey(), ModelBytes(), ctx)
    assert soonest <= agents.seconds_to_next("uid-pool-a") <= latest


async def _answer(status: AgentStatus) -> AgentStatus:
    return status


def test_drained_is_written_in_a_hurry_and_goes_with_the_drain() -> None:
    first = decide(leaving(), NOW)
    assert first.status is not None
    stands = leaving(old=dict(first.status), write_ages_s=(2.0,))
    assert decide(stands, NOW).status is None
    busy = decide(leaving(Answered(status=idle_status(in_flight=1)), old=dict(first.status), write_ages_s=(2.0,)), NOW)
    assert busy.status is not None  # a number would have waited for ten seconds
    back = decide(leaving(drain=None, old=dict(first.status), write_ages_s=(2.0,)), NOW)
    assert back.status is not None
    assert find_condition(back.status["conditions"], "Drained") is None


@pytest.mark.parametrize(("generation", "renewed"), [(1, True), (2, False)])
def test_a_drained_of_an_earlier_drain_is_said_anew_with_its_own_time(generation: int, renewed: bool) -> None:
    """The drain was called off and asked for again before anybody looked; who scales down compares the times."""
    stands = condition_item("Drained", "True", "NothingInFlight", generation=generation, since=at(-60))
    pool = pool_object(entries=("a",))
    intent = intent_for(GRServingPool.parse(pool), POLICY).to_wire()
    stored = instance_object("pool-a", pool, intent=intent, generation=2, conditions=[stands])
    stored["spec"]["drain"] = DRAIN
    seen = replace(leaving(Answered(status=idle_status(generation=2))), instance=GRInstance.parse(stored), stored=stored)
    item = find_condition(status_of(seen, at(5))[0]["conditions"], "Drained")
    assert item is not None
    assert (item["lastTransitionTime"] >= DRAIN["startedAt"]) is renewed


def table_of(*rows: tuple[str, InstanceState]) -> dict[str, Any]:
    return {
        "kind": "GRRoutingTable",
        "metadata": {"name": "pool", "namespace": "team", "uid": "uid-table", "resourceVersion": "1"},
        "spec": {"poolRef": "pool"},
        "status": {"instances": [{"name": uid, "uid": uid, "state": state.value} for uid, state in rows]},
    }


@pytest.mark.parametrize(
    ("rows", "others_drain", "routed"),
    [
        ((("uid-pool-a", InstanceState.READY), ("uid-pool-b", InstanceState.READY)), False, True),
        ((("uid-pool-a", InstanceState.DRAINING), ("uid-pool-b", InstanceState.READY)), False, False),
        ((("uid-pool-b", InstanceState.READY),), False, False),
        ((("uid-pool-a", InstanceState.READY), ("uid-pool-b", InstanceState.READY)), True, False),  # the kept last table
        ((), False, False),
    ],
)
def test_a_table_of_others_that_still_names_it_keeps_an_instance_from_being_drained(
    rows: Any, others_drain: bool, routed: bool
) -> None:
    store, pool = Store([INSTANCES, POOLS, HBM_POLICIES, ROUTING_TABLES]), pool_object()
    store.add_index(INSTANCES, BY_UID, uid_index)
    for name in ("pool-a", "pool-b"):
        made = instance_object(name, pool)
        if name == "pool-a" or others_drain:
            made["spec"]["drain"] = DRAIN
        store.upsert(INSTANCES, made)
    store.upsert(ROUTING_TABLES, table_of(*rows))
    mine = store.get(INSTANCES, Key("team", "pool-a"))
    assert mine is not None
    assert _still_routed(store, mine) is routed

    event = WatchEvent(EventType.MODIFIED, ROUTING_TABLES, Key("team", "pool"), table_of(*rows))
    woken = AllocationLoop(None, None, None, None).keys_for(event, store)  # type: ignore[arg-type]  # it only looks into the store
    assert {key.name for key in woken} == ({"pool-a", "pool-b"} if others_drain else {"pool-a"})


@pytest.mark.parametrize(("drains", "counted"), [("", ["pool-a", "pool-b"]), ("a", ["pool-b"]), ("ab", ["pool-a", "pool-b"])])
def test_who_leaves_says_nothing_about_its_pool_unless_all_do(drains: str, counted: list[str]) -> None:
    store, pool = Store([INSTANCES, POOLS, HBM_POLICIES, ROUTING_TABLES]), pool_object()
    store.upsert(POOLS, pool)
    for name in "ab":
        made = instance_object(f"pool-{name}", pool)
        if name in drains:
            made["spec"]["drain"] = DRAIN
        store.upsert(INSTANCES, made)
    ctx: Any = SimpleNamespace(store=store, settings=SimpleNamespace(operator_namespace="ops"))
    view = observe_pool(ctx, Key("team", "pool"), ParsedObjects(), write_ages_s=())
    assert view is not None
    assert [instance.metadata.name for _, instance in view.instances] == counted


# -- what is in force ---------------------------------------------------------------------------------------------------------


def limits(slots: int = 8, size: int = GIB) -> LimitsRequest:
    return LimitsRequest(revision=3, pre_infer_slots=slots, pre_infer_bytes=size)


def test_the_status_has_the_capacity_in_force_keeps_it_in_silence_and_leaves_it_out_when_nobody_knows() -> None:
    told, _ = status_of(leaving(Answered(status=agent_status(limits=limits())), drain=None), NOW)
    assert told["preInfer"] == {"slots": 8, "bytes": GIB}
    silent, _ = status_of(leaving(Silent(why="refused", failures=9), drain=None, old=told), NOW)
    assert silent["preInfer"] == {"slots": 8, "bytes": GIB}
    for unknown in (agent_status(), agent_status(limits=limits(slots=5000))):
        assert "preInfer" not in status_of(leaving(Answered(status=unknown), drain=None, old=told), NOW)[0]


def test_capacity_that_changed_is_worth_a_write() -> None:
    first = decide(leaving(Answered(status=agent_status(limits=limits())), drain=None), NOW)
    assert first.status is not None
    again = leaving(Answered(status=agent_status(limits=limits(slots=9))), drain=None, old=dict(first.status))
    assert decide(again, NOW).status is not None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"idle_seconds": float("nan")}, "idleSeconds"),
        ({"idle_seconds": float("inf")}, "idleSeconds"),
        ({"draining": True, "uid": "", "generation": 0}, "draining"),
        ({"serving": serving(in_flight=1, queue=2)}, "serving.queue"),
        ({"serving": msgspec.structs.replace(serving(), clock_ms=float("nan"))}, "serving.clockMs"),
        ({"serving": msgspec.structs.replace(serving(), pre_infer=PreInferCounters(slot_ms=float("inf")))}, "slotMs"),
    ],
)
def test_a_status_that_cannot_be_true_is_named_before_anybody_acts_on_it(changes: dict[str, Any], named: str) -> None:
    problem = problem_of(agent_status(**changes), usable_bytes=None)
    assert problem is not None
    assert named in problem
    assert problem_of(idle_status(), usable_bytes=None) is None


@pytest.mark.parametrize(
    "started", ["0001-01-01T00:00:00+23:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00"]
)
def test_a_drain_from_beyond_the_calendar_is_reported_like_another(started: str) -> None:
    said = condition_item("Drained", "True", "NothingInFlight", generation=1)
    seen = leaving(drain={**DRAIN, "startedAt": started}, old={"conditions": [said]})
    assert drained_of(seen) == ("True", "NothingInFlight")
    again = GRInstance.parse({**seen.stored, "status": status_of(seen, NOW)[0]}).to_wire()
    assert GRInstance.parse(again).spec.drain is not None
