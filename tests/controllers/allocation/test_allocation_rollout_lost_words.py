"""What must neither be lost on its way nor be taken for more than it is: steps that are not written, models that are away for a
moment, instances without traffic, agents that have not taken the change."""

from __future__ import annotations

import pytest
from rollout_world import CLIMB, World, harmful, learned, running


@pytest.mark.parametrize(("phase", "factor"), [("RolledBack", 2.0), ("Complete", 1.0)])
def test_a_step_whose_write_is_lost_or_has_to_wait_is_taken_at_the_next_look(phase: str, factor: float) -> None:
    world = running(World(count=8, factor=harmful("HillClimb", factor), lost={phase}))
    world.ask(CLIMB)
    world.step()
    world.until("Canary")
    while world.lost:
        assert world.phase == "Canary"
        world.turn()
    assert world.phase == "Canary", "the comparison has spoken and nothing of it is written"
    world.turn()
    assert world.phase == phase


def test_what_canaries_measured_is_no_past_of_the_next_change_however_their_trial_ended() -> None:
    world = running(World(count=6, factor=harmful("HillClimb", 2.0)))
    world.ask(CLIMB)
    world.step()
    world.until("RolledBack")
    world.turn()
    world.ask(learned())
    world.step()
    assert world.phase == "Measuring"


def test_a_model_that_is_away_for_a_moment_does_not_let_what_was_taken_back_be_tried_again() -> None:
    world = running(World(count=6, factor=lambda intent: 2.0 if "modelRef" in intent else 1.0))
    world.ask(learned())
    world.step()
    world.until("RolledBack")
    model, world.model = world.model, None
    world.turn(3)
    assert (world.phase, world.healthy["reason"], world.progress["reason"]) == ("RolledBack", "RolledBack", "RolledBack")
    assert set(world.strategies().values()) == {"Learned"}, "without a model it is the anchor that decides"
    world.model = model
    world.turn(20)
    assert world.phase == "RolledBack"
    assert set(world.strategies().values()) == {"MissRatioCurve"}
    world.ask(learned())  # a person's word, by the generation
    world.step()
    assert world.phase in ("Measuring", "Canary")


@pytest.mark.parametrize("brake", [{"strategy": "MissRatioCurve"}, learned(enforcement="Shadow")], ids=["safe", "shadow"])
def test_a_brake_ends_what_was_taken_back_also_while_its_model_is_away(brake: dict[str, object]) -> None:
    world = running(World(count=6, factor=lambda intent: 2.0 if "modelRef" in intent else 1.0))
    world.ask(learned())
    world.step()
    world.until("RolledBack")
    world.model = None
    world.step()
    world.ask(brake)
    world.model = None
    world.step()
    assert world.rollout == {}


def test_canaries_whose_controls_have_no_traffic_are_measured_as_if_there_were_none() -> None:
    world = World(count=2, quiet={"pool-1"})
    running(world, turns=17)
    world.ask(CLIMB)
    world.step()
    assert world.phase == "Measuring", "sixteen windows are enough beside others, and not without"
    world.until("Canary", most=10)
    assert world.canaries == ["pool-0"]
    assert "controls" not in world.rollout
    assert world.rollout["noise"]["windows"] >= 24


def test_a_canary_that_refuses_the_change_proves_nothing_though_the_same_strategy_decides_there() -> None:
    soon = {**CLIMB, "rollout": {"soakSeconds": 60}}
    world = running(World(count=6, factor=harmful("HillClimb", 2.0)), {**soon, "enforcement": "Shadow"}, turns=20)
    world.ask({**soon, "enforcement": "Active"})
    world.step()
    world.deaf = set(world.canaries)
    world.until("Inconclusive", most=20)
    assert "nothing to compare" in world.progress["message"]
    world.deaf = set()
    world.until("RolledBack", most=40)
