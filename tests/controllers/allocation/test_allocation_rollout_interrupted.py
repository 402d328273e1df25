"""What comes between while a change is on trial: brakes, edits, pauses, instances that come and go, and new leaders."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from rollout_world import CLIMB, SAFE, World, harmful, learned, running


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
