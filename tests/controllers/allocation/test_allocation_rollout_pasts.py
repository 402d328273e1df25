"""What a trial is compared with, and what stands in a status: the past of another change, or what a person wrote there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from rollout_world import CLIMB, SAFE, World, learned

from crds.pool_rollout import PoolRollout


def _running(world: World, spec: dict[str, Any] = SAFE) -> World:
    world.ask(spec)
    world.step()
    world.turn(40)
    return world


def _with_model(name: str, factor: float) -> Callable[[dict[str, Any]], float]:
    return lambda intent: factor if (intent.get("modelRef") or {}).get("name") == name else 1.0


def _killed(world: World) -> None:
    world.ask(SAFE)


def _in_shadow(world: World) -> None:
    world.ask(learned("a", enforcement="Shadow"))


def _passed(world: World) -> None:
    world.until("Complete")


def _replaced(world: World) -> None:
    """By yet another change, which is asked for before this one has ended."""


@pytest.mark.parametrize("end", [_killed, _in_shadow, _passed, _replaced])
def test_however_a_trial_ends_what_its_canaries_measured_is_not_the_past_of_the_next_one(end: Callable[[World], None]) -> None:
    world = _running(World(count=2, noise=0.0, factor=_with_model("a", 0.5)))
    world.ask(learned("a"))
    world.step()
    assert world.phase == "Canary"
    world.turn(6)
    end(world)
    world.step()
    world.ask(learned("b"))
    world.step()
    world.until("Canary", most=40)
    assert float(world.rollout["noise"]["p99Sd"]) < 0.001, "without noise nothing wanders, unless two changes are mixed"


def test_a_change_that_was_taken_back_is_tried_anew_when_its_policy_is_made_again() -> None:
    world = _running(World(count=6, noise=0.0, factor=_with_model("a", 2.0)))
    world.ask(learned("a"))
    world.step()
    world.until("RolledBack")
    generation = world.generation
    world.delete_policy()
    world.step()
    world.turn(3)
    assert set(world.strategies().values()) == {"MissRatioCurve"}
    writes = len(world.writes)
    world.turn(30)
    assert len(world.writes) == writes, "at rest nothing is written"
    world.generation = generation - 1
    world.ask(learned("a"))  # the API server counts the generations of a new object anew: it may have the same number
    world.step()
    assert world.phase == "Measuring"
    world.until("RolledBack")


@pytest.mark.parametrize(
    "member",
    [
        {"p99Ms": "0"},
        {"p99Ms": "0.000000"},
        {"p99Ms": "999999999.999999"},
        {"p99Ms": "40", "requestsPerSecond": "0", "sloPercent": "0"},
        {"p99Ms": "40", "requestsPerSecond": "0.000001", "sloPercent": "100"},
    ],
)
@pytest.mark.parametrize(
    "noise",
    [
        None,
        {"windows": 0, "p99Sd": "0", "p99Rho": "0"},
        {"windows": 100_000, "p99Sd": "999999999", "p99Rho": "999999999", "badSd": "999999999", "badRho": "1"},
    ],
)
@pytest.mark.parametrize("phase", ["Canary", "Extended", "Inconclusive"])
def test_whatever_stands_in_the_status_a_trial_goes_on_and_a_brake_ends_it(
    member: dict[str, str], noise: dict[str, Any] | None, phase: str
) -> None:
    world = _running(World(count=4))
    world.ask(learned("a"))
    world.step()
    rollout = copy.deepcopy(world.rollout)
    for group in ("canaries", "controls"):
        rollout[group] = [{"name": each["name"], "uid": each["uid"], **member} for each in rollout[group]]
    rollout |= {"phase": phase, "noise": noise, "since": "9999-12-31T23:59:59Z", "soakedSeconds": 10_000_000}
    if noise is None:
        del rollout["noise"]
    PoolRollout.model_validate(rollout)  # the API takes it, so a person may have written it
    world.pool["status"]["rollout"] = rollout
    world.turn(20)
    assert world.phase in ("Canary", "Extended", "Inconclusive", "RolledBack", "Complete", "Measuring")
    world.ask(SAFE)
    world.step()
    assert set(world.strategies().values()) == {"MissRatioCurve"}


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_trial_that_nobody_ended_for_months_can_be_paused_and_goes_on(since: str) -> None:
    world = _running(World(count=4))
    world.ask(learned("a"))
    world.step()
    world.pool["status"]["rollout"] |= {"phase": "Inconclusive", "since": since, "soakedSeconds": 9_999_990}
    world.lead_anew()
    world.turn(3)
    world.pause()
    world.turn(3)
    assert (world.progress["reason"], world.rollout["phase"]) == ("PausedByUser", "Inconclusive")
    assert world.rollout["soakedSeconds"] <= 10_000_000
    world.pause(False)
    world.turn(3)
    assert world.progress["reason"] == "Inconclusive"


def test_from_one_change_to_the_next_and_back_in_a_row_only_what_was_stable_stays() -> None:
    world = _running(World(count=6), CLIMB)
    stable = set(world.strategies().values())
    for spec in (learned("a"), CLIMB, learned("b"), learned("a"), learned("b")):
        world.ask(spec)
        world.step()
        world.turn(2)
        told = world.strategies()
        assert {told[name] for name in told if name not in world.canaries} == stable
