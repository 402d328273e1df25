"""The life of a change of strategy or model in a pool, in virtual time: canaries, soak, all, or back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import rollout_world
from rollout_world import SAFE, World, harmful, learned, running

from contract.agent import AgentStatus
from crds.pool_rollout import PoolRollout


def test_a_change_goes_to_canaries_first_and_to_all_after_the_soak() -> None:
    world = running(World(count=8))
    assert world.rollout == {}, "a pool at rest has no rollout"
    world.ask(learned())
    world.step()
    assert world.phase == "Canary", "ten minutes of figures are there already"
    assert len(world.canaries) == 1
    assert Counter(world.strategies().values()) == {"MissRatioCurve": 7, "Learned/a": 1}
    assert world.strategies()[world.canaries[0]] == "Learned/a"
    took = world.until("Complete")
    assert 30 <= took <= 62, "not before the soak of 300 s"
    assert set(world.strategies().values()) == {"Learned/a"}
    assert world.progress["status"] == "True"
    assert world.progress["reason"] == "Complete"
    assert world.reasons()[0] == "CanarySoaking"
    assert world.reasons()[-1] == "Complete"


def test_a_change_that_harms_is_taken_back_and_stays_back_until_the_policy_changes() -> None:
    world = running(World(count=8, factor=harmful("Learned", 1.4)))
    world.ask(learned())
    world.step()
    took = world.until("RolledBack")
    assert took <= 60
    assert set(world.strategies().values()) == {"MissRatioCurve"}
    assert world.healthy["reason"] == "RolledBack"
    assert world.progress["reason"] == "RolledBack"
    assert "P99 +" in world.progress["message"]
    assert world.reasons()[-1] == "RolledBack"
    writes = len(world.writes)
    world.turn(60)
    assert world.phase == "RolledBack"
    assert len(world.writes) == writes, "at rest nothing is written"
    world.ask(learned(rollout={"rollbackP99Percent": 100}))  # the same change, asked for again by another generation
    world.step()
    assert world.phase == "Measuring", "what the canaries of the last try measured is no past"
    assert world.healthy["reason"] == "StrategyActive"
    world.until("Canary", most=20)


def test_more_bad_requests_are_harm_too_even_when_the_p99_stays() -> None:
    world = running(World(count=8, slo_percent=lambda intent: 98.9 if intent["strategy"] == "Learned" else 99.6))
    world.ask(learned())
    world.step()
    world.until("RolledBack", most=60)
    assert "bad requests +0.7 points" in world.progress["message"]


def test_one_instance_is_compared_with_its_own_past_for_twice_as_long() -> None:
    world = running(World(count=1))
    world.ask(learned())
    world.step()
    assert world.phase == "Canary"
    assert world.rollout.get("controls") is None
    took = world.until("Complete")
    assert took >= 60, "twice the soak"
    assert "their past" in world.progress["message"]


def test_one_instance_takes_a_harmful_change_back() -> None:
    world = running(World(count=1, factor=harmful("Learned", 1.6)))
    world.ask(learned())
    world.step()
    world.until("RolledBack", most=120)
    assert set(world.strategies().values()) == {"MissRatioCurve"}


def test_one_instance_whose_load_has_changed_is_not_passed() -> None:
    world = running(World(count=1))
    world.ask(learned())
    world.step()
    world.requests_per_second *= 1.6
    world.until("Inconclusive", most=150)
    world.turn(100)
    assert world.phase == "Inconclusive"
    assert world.progress["status"] == "False"


def test_without_requests_nothing_is_changed_and_the_reason_is_said() -> None:
    world = running(World(count=4, requests_per_second=0.5))
    world.ask(learned())
    world.step()
    world.turn(50)
    assert world.phase == "Measuring"
    assert set(world.strategies().values()) == {"MissRatioCurve"}
    assert "0 of 12 windows with 20 requests or more" in world.progress["message"]
    writes = len(world.writes)
    world.turn(50)
    assert len(world.writes) == writes


def test_without_a_soak_all_take_the_change_at_once() -> None:
    world = running(World(count=4, requests_per_second=0.5))
    world.ask(learned(rollout={"soakSeconds": 0}))
    world.step()
    assert set(world.strategies().values()) == {"Learned/a"}
    assert world.phase == "Complete"


def test_a_new_pool_takes_its_policy_as_it_is() -> None:
    world = World(count=3)
    world.ask(learned())
    world._write_intents()
    assert set(world.strategies().values()) == {"None"}, "nothing that needs canaries is written before the rollout says so"
    world.step()
    assert set(world.strategies().values()) == {"Learned/a"}
    assert world.reasons() == [], "nothing was there that could change"


def test_from_shadow_to_active_is_a_change_and_back_is_a_brake() -> None:
    world = running(World(count=6), learned(enforcement="Shadow"))
    assert set(world.strategies().values()) == {"Shadow Learned/a"}
    world.ask(learned())
    world.step()
    assert Counter(world.strategies().values()) == {"Shadow Learned/a": 5, "Learned/a": 1}
    world.ask(learned(enforcement="Shadow"))
    world._write_intents()
    assert set(world.strategies().values()) == {"Shadow Learned/a"}


def test_more_room_for_the_model_is_a_change_and_less_is_a_brake() -> None:
    world = running(World(count=6), learned(rollout={"soakSeconds": 0}))
    wide = learned()
    wide["learned"] = {"model": "a", "clampPercent": 30}
    world.ask(wide)
    world.step()
    clamps = Counter(each["spec"]["intent"]["learned"]["clampPercent"] for each in world.instances.values())
    assert clamps == {10: 5, 30: 1}
    narrow = learned()
    narrow["learned"] = {"model": "a", "clampPercent": 2}
    world.ask(narrow)
    world._write_intents()
    assert {each["spec"]["intent"]["learned"]["clampPercent"] for each in world.instances.values()} == {2}


def test_bounds_reach_all_at_once_when_nothing_is_on_trial_and_with_the_change_when_something_is() -> None:
    world = running(World(count=6), learned(rollout={"soakSeconds": 0}))
    world.ask(learned(bounds={"minEmbPercent": 20}))
    world._write_intents()
    assert {each["spec"]["intent"]["bounds"]["minEmbPercent"] for each in world.instances.values()} == {20}
    world.step()
    world.turn(40)
    world.ask(learned("b", bounds={"minEmbPercent": 30}))
    world.step()
    assert Counter(each["spec"]["intent"]["bounds"]["minEmbPercent"] for each in world.instances.values()) == {20: 5, 30: 1}


def test_memory_of_the_pool_and_its_objective_never_wait_for_a_rollout() -> None:
    world = running(World(count=4))
    world.ask(learned())
    world.step()
    world.pool["spec"]["slo"]["p99Ms"] = 77
    world._write_intents()
    assert {each["spec"]["intent"]["p99Ms"] for each in world.instances.values()} == {77}


def test_more_canaries_are_chosen_by_percent_and_the_order_is_kept() -> None:
    world = running(World(count=10))
    world.ask(learned(rollout={"canaryPercent": 25}))
    world.step()
    assert len(world.canaries) == 3


def test_all_instances_as_canaries_have_no_controls() -> None:
    world = running(World(count=3))
    world.ask(learned(rollout={"canaryPercent": 100}))
    world.step()
    assert set(world.strategies().values()) == {"Learned/a"}
    assert world.rollout.get("controls") is None
    assert world.phase == "Canary"


def test_while_canaries_soak_status_is_written_twice_a_minute_at_most() -> None:
    world = running(World(count=8, noise=0.5))
    world.ask(learned())
    world.step()
    before = len(world.writes)
    world.turn(60)
    assert len(world.writes) - before <= 22
    PoolRollout.model_validate(world.rollout)


def test_a_canary_on_which_something_else_decides_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running(World(count=6))
    world.ask(learned())
    world.step()
    say = rollout_world.agent_status

    def fell_back(**figures: Any) -> AgentStatus:
        """The agent of a canary refused the model, and the anchor decides there."""
        canary = figures["uid"] in {f"uid-{name}" for name in world.canaries}
        return say(**figures | ({"strategy_in_force": "MissRatioCurve", "model_in_force": None} if canary else {}))

    monkeypatch.setattr(rollout_world, "agent_status", fell_back)
    world.until("Inconclusive", most=80)
    assert "nothing to compare" in world.progress["message"]
    world.turn(50)
    assert world.phase == "Inconclusive"


def test_one_instance_is_compared_with_the_time_under_its_old_strategy_only() -> None:
    world = running(World(count=1, factor=harmful("Learned", 3.0)), learned(rollout={"soakSeconds": 0}))
    world.ask(SAFE)  # the kill switch
    world.step()
    world.turn(20)
    world.ask(learned("b"))
    world.step()
    assert world.phase == "Measuring", "what the first model measured is not what this change is compared with"
    world.until("Canary", most=10)
    assert float(world.rollout["canaries"][0]["p99Ms"]) < 80.0
    world.until("RolledBack", most=30)
