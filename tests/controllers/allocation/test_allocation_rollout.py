"""The life of a change of strategy or model in a pool, in virtual time: canaries, soak, all; and all the ways to end early."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from rollout_world import CLIMB, SAFE, World, learned

from crds.pool_rollout import PoolRollout


def harmful(charge: str, factor: float) -> Any:
    """The P99 under an intent whose strategy has this name is so many times as long."""
    return lambda intent: factor if intent["strategy"] == charge and intent["enforcement"] == "Active" else 1.0


def running(world: World, spec: dict[str, Any] = SAFE, *, turns: int = 40) -> World:
    """The pool has run under this policy for a while."""
    world.ask(spec)
    world.step()
    world.turn(turns)
    return world


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


@pytest.mark.parametrize("phase", ["Measuring", "Canary", "Extended", "Inconclusive", "Complete", "RolledBack"])
@pytest.mark.parametrize("brake", [SAFE, {"strategy": "Static"}, learned(enforcement="Shadow"), "pause"], ids=str)
def test_a_brake_reaches_every_instance_at_once_whatever_the_rollout_is_doing(phase: str, brake: Any) -> None:
    world = in_phase(phase)
    if brake == "pause":
        world.pause()
        world._write_intents()  # the half that is keyed by instance, alone: no step of the rollout is waited for
        assert all(each["spec"]["intent"]["paused"] for each in world.instances.values())
        return
    world.ask(brake)
    world._write_intents()
    expected = "Shadow Learned/a" if brake.get("enforcement") == "Shadow" else brake["strategy"]
    assert set(world.strategies().values()) == {expected}
    world.step()
    assert world.rollout == {}
    assert world.progress == {}
    if phase in ("Measuring", "Canary", "Extended", "Inconclusive"):
        assert world.reasons()[-1] == "RolloutEnded"


def in_phase(phase: str) -> World:
    """A world whose rollout of Learned is in that phase."""
    if phase == "Measuring":
        world = running(World(count=6), turns=3)
        world.ask(learned())
        world.step()
    elif phase in ("Canary", "Complete"):
        world = running(World(count=6))
        world.ask(learned())
        world.step()
    elif phase == "RolledBack":
        world = running(World(count=6, factor=harmful("Learned", 2.0)))
        world.ask(learned())
        world.step()
    else:
        world = running(World(count=6, noise=1.2))
        world.ask(learned())
        world.step()
    world.until(phase)
    return world


def test_going_back_to_the_old_policy_ends_the_rollout_at_once() -> None:
    world = running(World(count=6), learned("a", rollout={"soakSeconds": 0}))
    assert set(world.strategies().values()) == {"Learned/a"}
    world.ask(learned("b"))
    world.step()
    world.turn(3)
    assert Counter(world.strategies().values()) == {"Learned/a": 5, "Learned/b": 1}
    world.ask(learned("a"))
    world._write_intents()
    assert set(world.strategies().values()) == {"Learned/a"}
    world.step()
    assert world.phase == "Complete"


def test_a_second_edit_during_a_trial_begins_a_new_one_with_what_was_stable_before() -> None:
    world = running(World(count=6))
    world.ask(learned("a"))
    world.step()
    world.turn(4)
    first = world.canaries
    world.ask(learned("b"))
    world.step()
    assert world.phase == "Measuring"
    assert set(world.strategies().values()) == {"MissRatioCurve"}, "the first change is over, the second not begun"
    world.until("Canary", most=20)
    assert world.rollout["stable"]["strategy"] == "MissRatioCurve"
    assert world.strategies()[world.canaries[0]] == "Learned/b"
    assert first
    world.until("Complete")
    assert set(world.strategies().values()) == {"Learned/b"}


def test_two_edits_in_a_row_never_leave_the_first_one_anywhere() -> None:
    world = running(World(count=6))
    world.ask(learned("a"))
    world.ask(CLIMB)
    world.step()
    assert Counter(world.strategies().values()) == {"MissRatioCurve": 5, "HillClimb": 1}


def test_a_policy_that_is_deleted_during_a_trial_takes_the_canaries_back() -> None:
    world = running(World(count=6))
    world.ask(learned())
    world.step()
    world.turn(3)
    world.delete_policy()
    world.step()
    assert set(world.strategies().values()) == {"MissRatioCurve"}
    assert world.phase == "Withdrawn"
    assert world.healthy["reason"] == "PolicyNotFound"
    assert world.reasons()[-1] == "Withdrawn"
    writes = len(world.writes)
    world.turn(5)
    assert len(world.writes) == writes
    world.ask(learned())
    world.step()
    assert world.phase == "Measuring"
    world.until("Complete")
    assert set(world.strategies().values()) == {"Learned/a"}


def test_who_joins_during_a_trial_takes_what_is_stable_and_the_change_when_all_do() -> None:
    world = running(World(count=6))
    world.ask(learned())
    world.step()
    joined = world.join()
    world.step()
    assert world.strategies()[joined] == "MissRatioCurve"
    world.until("Complete")
    assert world.strategies()[joined] == "Learned/a"
    late = world.join()
    world.step()
    assert world.strategies()[late] == "Learned/a"


def test_a_successor_of_a_canary_is_no_canary() -> None:
    world = running(World(count=6))
    world.ask(learned())
    world.step()
    canary = world.canaries[0]
    world.instances[canary]["metadata"]["uid"] = "uid-of-another"
    del world.instances[canary]["spec"]["intent"]
    world._write_intents()
    assert world.strategies()[canary] == "MissRatioCurve"


def test_when_all_canaries_have_left_others_try() -> None:
    world = running(World(count=20))
    world.ask(learned())
    world.step()
    world.turn(5)
    first = world.canaries
    assert len(first) == 2
    world.leave(first[0])
    world.turn(2)
    assert world.canaries == first, "one of two is still there"
    world.leave(first[1])
    world.turn()
    world.until("Canary", most=20)
    assert not set(world.canaries) & set(first)
    world.until("Complete")


def test_a_control_that_leaves_changes_nothing_for_the_comparison() -> None:
    world = running(World(count=4, seed=3))
    world.levels["pool-3"] = 9.0  # very different from the others, and measured so
    world.turn(60)
    world.ask(learned())
    world.step()
    assert world.phase == "Canary"
    world.turn(6)
    if "pool-3" not in world.canaries:
        world.leave("pool-3")
    world.until("Complete")


def test_while_the_pool_is_paused_the_clock_stands_and_nobody_changes() -> None:
    world = running(World(count=6))
    world.ask(learned())
    world.step()
    world.turn(10)
    before = world.strategies()
    world.pause()
    world.step()
    assert world.progress["reason"] == "PausedByUser"
    world.turn()  # the agents report on the pause
    writes = len(world.writes)
    world.turn(99)
    assert world.strategies() == before
    assert len(world.writes) == writes
    assert "since" not in world.rollout
    assert 90 <= world.rollout["soakedSeconds"] <= 110
    world.pause(False)
    took = world.until("Complete")
    assert 18 <= took <= 52, "twenty windows of the soak were left, perhaps one extension"


def test_a_policy_edited_while_paused_begins_its_trial_when_the_pool_goes_on() -> None:
    world = running(World(count=6))
    world.pause()
    world.step()
    world.ask(learned())
    world.step()
    world.turn(3)
    assert set(world.strategies().values()) == {"MissRatioCurve"}
    world.pause(False)
    world.step()
    assert world.phase == "Canary"


def test_a_new_leader_goes_on_from_what_is_written_and_compares_anew() -> None:
    world = running(World(count=8))
    world.ask(learned())
    world.step()
    world.turn(25)
    rollout, before = dict(world.rollout), world.strategies()
    world.lead_anew()
    world.step()
    assert world.rollout == rollout
    assert world.strategies() == before
    took = world.until("Complete")
    assert 5 <= took <= 40, "the soak goes on; its end needs windows of this leader's own"


def test_a_new_leader_takes_a_harmful_change_back_by_the_past_that_stands_in_status() -> None:
    world = running(World(count=8, factor=harmful("Learned", 1.5)))
    world.ask(learned())
    world.step()
    world.turn(2)
    world.lead_anew()
    world.until("RolledBack", most=40)


def test_an_operator_that_was_away_for_an_hour_does_not_pass_a_change_it_has_not_seen() -> None:
    world = running(World(count=8, factor=harmful("Learned", 1.3)))
    world.ask(learned())
    world.step()
    world.turn(1)
    world.lead_anew()
    world.seconds += 3600.0
    world.step()
    assert world.phase in ("Canary", "Extended", "Inconclusive")
    assert Counter(world.strategies().values())["Learned/a"] == 1
    world.until("RolledBack", most=120)


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


def test_a_canary_on_which_something_else_decides_proves_nothing() -> None:
    world = running(World(count=6))
    world.ask(learned())
    world.step()
    say = world._say

    def fell_back(name: str, common: float) -> None:
        say(name, common)
        heard = world.book.last(f"uid-{name}")
        if name in world.canaries and heard is not None:
            world.book.windows.forget(f"uid-{name}")

    world._say = fell_back  # type: ignore[method-assign] # the canary's windows never count
    world.until("Inconclusive", most=80)
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
