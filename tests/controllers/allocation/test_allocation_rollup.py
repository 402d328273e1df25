"""SplitSettled and PolicyHealthy of a pool from those of its instances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import NOW, at, condition_item, instance_object, pool_object

from controllers.allocation.intent import intent_for
from controllers.allocation.observe import PoolView
from controllers.allocation.rollout import part_of
from controllers.allocation.rollup import decide_rollup, pool_policy_healthy
from controllers.lookup import Found, Lookup, NotFound
from controllers.model_lookup import ModelUnusable
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.hbm_policy import RolloutPhase
from crds.instance import PolicySource
from crds.pool_rollout import PolicyPart, PoolRollout
from crds.reasons import check_condition, reasons_of

POLICY = Found(spec=HBMPolicySpec(), name="mine", namespace="team", generation=3, source=PolicySource.POOL)


def view(
    pool: dict[str, Any], *words: tuple[tuple[str, str], tuple[str, str]], policy: Lookup[HBMPolicySpec] = POLICY
) -> PoolView:
    """A pool whose instances say (status, reason) of PolicyHealthy and of SplitSettled."""
    intent = intent_for(GRServingPool.parse(pool), POLICY).to_wire()
    instances = []
    for number, (healthy, settled) in enumerate(words):
        items = [condition_item("PolicyHealthy", *healthy), condition_item("SplitSettled", *settled)]
        instances.append(instance_object(f"pool-{number}", pool, intent=intent, conditions=items))
    return PoolView(
        pool=GRServingPool.parse(pool),
        stored=pool,
        policy=policy,
        instances=tuple((each, GRInstance.parse(each)) for each in instances),
    )


def said(seen: PoolView) -> dict[str, tuple[str, str, str]]:
    status = decide_rollup(seen, NOW).status
    assert status is not None
    return {item["type"]: (item["status"], item["reason"], item["message"]) for item in status["conditions"]}


FINE = (("True", "StrategyActive"), ("True", "Settled"))


def test_a_pool_is_well_when_all_its_instances_are() -> None:
    words = said(view(pool_object(), FINE, FINE))
    assert words["PolicyHealthy"][:2] == ("True", "StrategyActive")
    assert words["SplitSettled"] == ("True", "Settled", "2 of 2 instances are settled")


def test_the_worst_instance_names_the_reason_and_the_message_names_the_instance() -> None:
    words = said(
        view(
            pool_object(),
            FINE,
            (("Unknown", "AgentUnreachable"), ("Unknown", "NotObserved")),
            (("False", "SecondWriter"), ("False", "Moving")),
        )
    )
    assert words["PolicyHealthy"] == ("False", "SecondWriter", "1 of 3 instances: pool-2 (SecondWriter)")
    assert words["SplitSettled"][:2] == ("False", "SomeMoving")


@pytest.mark.parametrize("phase", RolloutPhase)
def test_a_strategy_on_trial_is_never_said_to_decide_on_all_instances(phase: RolloutPhase) -> None:
    told = view(pool_object(), FINE, FINE)  # the intents of both instances say MissRatioCurve
    learned = replace(POLICY, spec=HBMPolicySpec.model_validate({"strategy": "Learned", "learned": {"model": "split-1"}}))
    part = PolicyPart.model_validate(part_of(intent_for(told.pool, POLICY).to_wire()))
    rollout = PoolRollout(phase=phase, revision="0" * 16, policy_ref=part.policy_ref, stable=part)
    words = pool_policy_healthy(replace(told, policy=learned), rollout)
    on_trial = phase in (RolloutPhase.MEASURING, RolloutPhase.CANARY, RolloutPhase.EXTENDED, RolloutPhase.INCONCLUSIVE)
    assert ("MissRatioCurve on 2 of 2 instances" in words.message) is on_trial
    assert ("see RolloutProgressing" in words.message) is on_trial


@pytest.mark.parametrize("reason", ["ModelMissing", "ModelRefused"])
def test_a_pool_whose_model_may_not_run_says_what_is_wrong_with_it(reason: Literal["ModelMissing", "ModelRefused"]) -> None:
    seen = view(pool_object(), (("False", reason), ("True", "Settled")), (("False", "SecondWriter"), ("True", "Settled")))
    model = ModelUnusable(reason=reason, why="there is no AllocatorModel team/split-9")
    listed = f"2 of 2 instances: pool-0 ({reason}), pool-1 (SecondWriter)"
    assert pool_policy_healthy(replace(seen, model=model)).message == f"{listed}; {model.why}"
    assert pool_policy_healthy(seen).message == listed


def test_a_policy_that_is_missing_is_said_once_for_the_pool() -> None:
    words = said(view(pool_object(), FINE, policy=NotFound(name="mine", namespace="team")))
    assert words["PolicyHealthy"][:2] == ("False", "PolicyNotFound")


def test_while_an_instance_has_yet_to_take_up_an_edit_the_old_word_stands() -> None:
    pool = pool_object()
    status = decide_rollup(view(pool, FINE), NOW).status
    assert status is not None
    stored = {**pool, "status": dict(status), "metadata": {**pool["metadata"], "generation": 2}}
    stored["spec"] = {**stored["spec"], "slo": {"p99Ms": 70, "goodPercent": "99"}}
    seen = view(pool, FINE)
    lagging = PoolView(pool=GRServingPool.parse(stored), stored=stored, policy=POLICY, instances=seen.instances)
    assert decide_rollup(lagging, at(60)).status is None
    assert decide_rollup(view(stored, FINE), at(60)).status is not None


def test_what_stands_already_is_not_written_again() -> None:
    pool = pool_object()
    status = decide_rollup(view(pool, FINE), NOW).status
    assert status is not None
    assert decide_rollup(view({**pool, "status": dict(status)}, FINE), at(600)).status is None


def pairs(type_: str) -> list[tuple[str, str]]:
    """Every documented (status, reason) of an instance."""
    return [(status, reason.name) for reason in reasons_of(type_) for status in reason.status]


@given(st.lists(st.tuples(st.sampled_from(pairs("PolicyHealthy")), st.sampled_from(pairs("SplitSettled"))), max_size=6))
def test_whatever_the_instances_say_the_pool_says_something_documented(words: list[Any]) -> None:
    for type_, (status, reason, _) in said(view(pool_object(), *words)).items():
        check_condition(type_, status, reason)
