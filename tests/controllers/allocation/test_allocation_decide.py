"""What the allocation loop decides: the intent, when it is pushed, and what is said about split and policy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import GIB, NOW, USABLE, agent_status, at, instance_object, pool_object

from contract import signing
from contract.agent import AgentStatus, EngineReport, Intent, IntentStatus, SplitReport, intent_spec
from controllers.allocation.decide import Plan, decide
from controllers.allocation.intent import intent_for
from controllers.allocation.memory import Refusal
from controllers.allocation.observe import Observation
from controllers.allocation.sightings import Answered, Garbled, Silent, problem_of
from controllers.lookup import Found, Lookup, NotFound, Unreadable
from controllers.runtime.conditions import find_condition
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.instance import PolicySource
from crds.reasons import check_condition

POLICY = Found(spec=HBMPolicySpec(), name="mine", namespace="team", generation=3, source=PolicySource.POOL)


def intent_of(pool: dict[str, Any], policy: Found[HBMPolicySpec] = POLICY) -> dict[str, Any]:
    return intent_for(GRServingPool.parse(pool), policy).to_wire()


def observed(
    *,
    pool: dict[str, Any] | None = None,
    intent: dict[str, Any] | None = None,
    policy: Lookup[HBMPolicySpec] = POLICY,
    generation: int = 1,
    status: dict[str, Any] | None = None,
    **more: Any,
) -> Observation:
    pool = pool or pool_object(entries=("a",))
    stored = instance_object("pool-a", pool, intent=intent, generation=generation, **(status or {}))
    return Observation(instance=GRInstance.parse(stored), stored=stored, pool=GRServingPool.parse(pool), policy=policy, **more)


def settled(**more: Any) -> Observation:
    """An instance whose agent holds the intent and has settled."""
    more.setdefault("sighting", Answered(status=agent_status()))
    return observed(intent=intent_of(pool_object(entries=("a",))), **more)


def resized(**changes: int) -> SplitReport:
    """The split of a healthy agent with other figures."""
    split = agent_status().split
    assert split is not None
    return msgspec.structs.replace(split, **changes)


def words(plan: Plan, type_: str) -> tuple[str, str]:
    assert plan.status is not None
    item = find_condition(plan.status["conditions"], type_)
    assert item is not None
    return item["status"], item["reason"]


def test_the_intent_has_what_the_agent_reads_and_can_be_signed() -> None:
    intent = intent_of(pool_object())
    read = intent_spec(intent)
    assert read.usable_bytes == USABLE
    assert read.bounds.fallback_emb_percent == 50
    signing.payload(Intent(uid="u", generation=1, issued=1, expires=2, spec=intent))
    assert intent["p99Ms"] == 50
    assert intent["policyRef"] == {"name": "mine", "namespace": "team", "generation": 3, "source": "Pool"}


def test_an_instance_without_an_intent_gets_one_before_anything_else() -> None:
    plan = decide(observed(sighting=Answered(status=agent_status(uid="", generation=0))), NOW)
    assert plan.intent == intent_of(pool_object(entries=("a",)))
    assert (plan.push, plan.status) == (None, None)


def test_an_intent_that_stands_already_is_not_written_again() -> None:
    assert decide(settled(), NOW).intent is None


def test_a_changed_policy_changes_the_intent() -> None:
    other = Found(spec=HBMPolicySpec(), name="mine", namespace="team", generation=4, source=PolicySource.POOL)
    assert decide(settled(policy=other), NOW).intent == intent_of(pool_object(entries=("a",)), other)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (NotFound(name="mine", namespace="team"), "PolicyNotFound"),
        (Unreadable(name="mine", namespace="team", why="strategy: unknown"), "PolicyInvalid"),
    ],
)
def test_without_a_usable_policy_the_last_intent_stays_and_the_condition_says_why(policy: Any, reason: str) -> None:
    plan = decide(settled(policy=policy), NOW)
    assert plan.intent is None
    assert words(plan, "PolicyHealthy") == ("False", reason)
    assert words(plan, "SplitSettled") == ("True", "Settled")


def test_a_pause_adds_one_word_to_the_intent_that_stands_and_takes_up_no_new_policy() -> None:
    stands = intent_of(pool_object(entries=("a",)))
    other = Found(spec=HBMPolicySpec(), name="other", namespace="team", generation=9, source=PolicySource.POOL)
    paused = pool_object(entries=("a",), paused=True)
    assert decide(observed(pool=paused, intent=stands, policy=other), NOW).intent == {**stands, "paused": True}
    gone = NotFound(name="mine", namespace="team")
    assert decide(observed(intent={**stands, "paused": True}, policy=gone), NOW).intent == {**stands, "paused": False}


@pytest.mark.parametrize(
    "status",
    [
        agent_status(uid="", generation=0),  # a new or restarted agent
        agent_status(uid="uid-of-a-predecessor", generation=40),
        agent_status(generation=1),  # an older intent of ours
    ],
)
def test_the_intent_is_pushed_whenever_the_agent_holds_another_one(status: AgentStatus) -> None:
    plan = decide(settled(generation=2, sighting=Answered(status=status)), NOW)
    assert plan.push is not None
    assert plan.push.generation == 2
    assert plan.push.spec == intent_of(pool_object(entries=("a",)))
    assert plan.status is None  # the answer will be worth more


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"generation": 2, "sighting": Answered(status=agent_status(generation=5))},  # our own view is old
        {"generation": 2, "sighting": Answered(status=agent_status(uid="other")), "holder": "team/other-a"},
        {"generation": 2, "sighting": Silent(why="refused", failures=3)},
        {"generation": 2, "sighting": Garbled(why="NaN")},
        {"generation": 2, "push_age_s": 1.0},  # it was handed over a moment ago
    ],
)
def test_nothing_is_pushed_to_an_agent_that_holds_it_is_taken_or_cannot_be_trusted(more: dict[str, Any]) -> None:
    assert decide(settled(**more), NOW).push is None


def test_a_refused_intent_is_said_and_handed_over_again_after_a_while() -> None:
    refusal = Refusal(status=IntentStatus.FORGED, reason="signature: not made by the operator's key")
    sighting = Answered(status=agent_status(uid="", generation=0))
    plan = decide(settled(sighting=sighting, refusal=refusal, push_age_s=2.0), NOW)
    assert plan.push is None
    assert words(plan, "PolicyHealthy") == ("False", "IntentNotAccepted")
    assert decide(settled(sighting=sighting, refusal=refusal, push_age_s=9.0), NOW).push is not None


def test_a_refusal_is_over_when_the_agent_says_that_it_holds_the_intent_though_no_answer_came() -> None:
    refusal = Refusal(status=IntentStatus.EXPIRED, reason="expires: 900 s ago")  # the answer to the next attempt was lost
    assert words(decide(settled(refusal=refusal, push_age_s=9.0), NOW), "PolicyHealthy") == ("True", "StrategyActive")


def test_the_report_is_rounded_and_keeps_target_accepted_and_settled_apart() -> None:
    split = SplitReport(
        usable_bytes=USABLE,
        target_emb_bytes=45 * GIB,
        accepted_emb_bytes=36 * GIB,
        accepted_kv_bytes=24 * GIB,
        used_emb_bytes=GIB,
        used_kv_bytes=GIB,
        revision=8,
        settled=False,
        overage_bytes=0,
        refill_backlog_bytes=0,
    )
    plan = decide(settled(sighting=Answered(status=agent_status(split=split))), NOW)
    assert plan.status is not None
    assert plan.status["split"]["target"]["embPercent"] == 75
    assert plan.status["split"]["accepted"] == {"embBytes": 36 * GIB, "kvBytes": 24 * GIB, "embPercent": 60}
    assert "settled" not in plan.status["split"]
    assert plan.status["caches"] == {"embHitPercent": 91, "kvHitPercent": 60}
    assert (plan.status["p99Ms"], plan.status["sloPercent"]) == ("42", "99.6")
    assert plan.status["agent"] == {"reachable": True, "startId": "agent-1", "engineStartId": "engine-1", "intentGeneration": 1}
    assert words(plan, "SplitSettled") == ("False", "Moving")


def test_noise_around_what_is_published_writes_nothing() -> None:
    first = decide(settled(), NOW).status
    assert first is not None
    for wobble in (-1, 1):
        noisy = agent_status(
            emb_hit_percent=91.2 + 0.6 * wobble,
            p99_ms=41.7 + 0.5 * wobble,
            slo_percent=99.63 + 0.05 * wobble,
            message=f"anything {wobble}",
        )
        assert decide(settled(status=dict(first), sighting=Answered(status=noisy)), at(60)).status is None


def test_a_split_that_has_arrived_is_published_to_the_byte() -> None:
    first = decide(settled(), NOW).status
    assert first is not None
    moved = decide(settled(status=dict(first), sighting=Answered(status=agent_status(emb_bytes=30 * GIB + 7))), at(60)).status
    assert moved is not None
    assert moved["split"]["settled"]["embBytes"] == 30 * GIB + 7


def test_a_status_is_written_at_most_once_in_ten_seconds() -> None:
    plan = decide(settled(write_ages_s=(3.0,)), NOW)
    assert plan.status is None
    assert plan.requeue_after == pytest.approx(7.0)


def test_one_missed_call_proves_nothing_and_two_keep_the_split_but_drop_the_measurements() -> None:
    first = decide(settled(), NOW).status
    assert first is not None
    once = decide(settled(status=dict(first), sighting=Silent(why="refused", failures=1)), at(20))
    assert once == Plan()
    twice = decide(settled(status=dict(first), sighting=Silent(why="refused", failures=2)), at(21))
    assert twice.status is not None
    assert twice.status["agent"]["reachable"] is False
    assert twice.status["split"] == first["split"]
    assert not {"p99Ms", "sloPercent", "caches"} & twice.status.keys()
    assert words(twice, "PolicyHealthy") == ("Unknown", "AgentUnreachable")
    assert words(twice, "SplitSettled") == ("Unknown", "NotObserved")


@pytest.mark.parametrize(
    ("trouble", "reason"), [({"sighting": Garbled(why="NaN")}, "AgentMisbehaves"), ({"holder": "team/other"}, "AgentTaken")]
)
def test_what_an_agent_is_comes_before_that_it_leaves_intents_unanswered(trouble: dict[str, Any], reason: str) -> None:
    assert words(decide(settled(**trouble, unanswered=3), NOW), "PolicyHealthy") == ("False", reason)
    unread = settled(generation=2, unanswered=3, push_age_s=None)
    assert words(decide(unread, NOW), "PolicyHealthy") == ("False", "IntentNotAccepted")


def test_what_a_misbehaving_agent_says_is_not_used_and_the_last_good_split_stays() -> None:
    first = decide(settled(), NOW).status
    assert first is not None
    plan = decide(settled(status=dict(first), sighting=Garbled(why="p99Ms is not a latency")), at(20))
    assert plan.status is not None
    assert plan.status["split"] == first["split"]
    assert words(plan, "PolicyHealthy") == ("False", "AgentMisbehaves")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"frozen": True, "reason": "SecondWriter"}, ("False", "SecondWriter")),
        ({"frozen": True, "reason": "NotANumber"}, ("False", "DataUnusable")),
        ({"frozen": True, "reason": "InternalError"}, ("False", "AgentFrozen")),
        ({"reason": "NotResizable"}, ("False", "SplitNotResizable")),
        ({"reason": "ModelMissing"}, ("False", "ModelMissing")),
        ({"strategy_in_force": "HillClimb"}, ("False", "FellBack")),
        ({}, ("True", "StrategyActive")),
    ],
)
def test_what_the_agent_says_of_its_strategy_becomes_a_documented_reason(
    changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert words(decide(settled(sighting=Answered(status=agent_status(**changes))), NOW), "PolicyHealthy") == expected


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kv_hit_percent": float("nan")}, "kvHitPercent"),
        ({"slo_percent": 100.5}, "sloPercent"),
        ({"p99_ms": float("inf")}, "p99Ms"),
        ({"p99_ms": -1.0}, "p99Ms"),
        ({"agent_start_id": "a b"}, "agentStartId"),
        ({"reason": "two words"}, "reason"),
        ({"engine": EngineReport(reachable=True, start_id="")}, "engine.startId"),
        ({"split": resized(target_emb_bytes=61 * GIB)}, "split.targetEmbBytes"),
        ({"split": resized(usable_bytes=0)}, "split.usableBytes"),
        ({"split": resized(usable_bytes=USABLE + 1)}, "split.usableBytes"),
    ],
)
def test_an_answer_that_cannot_be_true_is_recognised(changes: dict[str, Any], complaint: str) -> None:
    problem = problem_of(agent_status(**changes), usable_bytes=USABLE)

    assert problem is not None
    assert complaint in problem
    assert problem_of(agent_status(), usable_bytes=USABLE) is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), -1.0, 1e12])
@pytest.mark.parametrize(
    "field",
    [each.name for each in msgspec.structs.fields(AgentStatus) if each.type == (float | None) or each.name == "idle_seconds"],
)
def test_no_number_of_a_status_goes_unlooked_at(field: str, number: float) -> None:
    """Each of them is written into a status, or counted with, somewhere."""
    endless = field == "idle_seconds" and number == 1e12
    assert (problem_of(agent_status(**{field: number}), usable_bytes=USABLE) is None) == endless


def test_a_split_from_before_the_pool_was_made_smaller_is_no_lie() -> None:
    before = agent_status(generation=1)
    on_its_way = agent_status(split=resized(usable_bytes=20 * GIB, target_emb_bytes=30 * GIB))

    assert problem_of(before, usable_bytes=None) is None
    assert problem_of(on_its_way, usable_bytes=20 * GIB) is None
    assert words(decide(settled(sighting=Answered(status=on_its_way)), NOW), "SplitSettled") == ("False", "Moving")


sightings = st.one_of(
    st.none(),
    st.builds(Silent, why=st.just("no"), failures=st.integers(1, 9)),
    st.builds(Garbled, why=st.just("bad")),
    st.builds(
        lambda **fields: Answered(status=agent_status(**fields)),
        uid=st.sampled_from(["", "uid-pool-a", "other"]),
        generation=st.integers(0, 4),
        emb_bytes=st.integers(0, USABLE),
        frozen=st.booleans(),
        reason=st.sampled_from(["AnchorTarget", "SecondWriter", "NotANumber", "ModelMissing", "NotResizable", "Idle"]),
        strategy_in_force=st.sampled_from(["Static", "MissRatioCurve", "None"]),
        split=st.sampled_from([None, agent_status().split]),
        p99_ms=st.one_of(st.none(), st.floats(0, 1e6)),
        slo_percent=st.one_of(st.none(), st.floats(0, 100)),
    ),
)
policies = st.sampled_from(
    [POLICY, NotFound(name="x", namespace="team"), Found(spec=HBMPolicySpec(), name="default", source=PolicySource.DEFAULTS)]
)


@given(
    sighting=sightings,
    policy=policies,
    has_intent=st.booleans(),
    generation=st.integers(1, 3),
    paused=st.booleans(),
    holder=st.sampled_from([None, "team/other"]),
    push_age_s=st.one_of(st.none(), st.floats(0, 20)),
)
def test_whatever_is_seen_the_status_is_valid_documented_and_stable(
    sighting: Any, policy: Any, has_intent: bool, generation: int, paused: bool, holder: str | None, push_age_s: float | None
) -> None:
    pool = pool_object(entries=("a",), paused=paused)
    intent = intent_of(pool) if has_intent else None
    more = {"pool": pool, "intent": intent, "policy": policy, "generation": generation, "sighting": sighting}
    plan = decide(observed(**more, holder=holder, push_age_s=push_age_s), NOW)
    if plan.push is not None:
        assert plan.push.generation == generation
        assert isinstance(sighting, Answered)
        assert holder is None
    if plan.status is None:
        return
    for item in plan.status["conditions"]:
        check_condition(item["type"], item["status"], item["reason"])
    stored = instance_object("pool-a", pool, **dict(plan.status))
    GRInstance.parse(stored)  # the API would take it
    again = decide(observed(**more, holder=holder, push_age_s=0.0, status=dict(plan.status)), at(1000))
    assert again.status is None  # the same world twice is written once
