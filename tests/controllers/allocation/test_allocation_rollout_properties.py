"""Through any history of a pool nobody is given without a permit what needs canaries, and a brake reaches everybody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_objects import NOW, agent_status, instance_object, pool_object
from rollout_world import CLIMB, SAFE, World, learned

from controllers.agent_book import AgentBook
from controllers.allocation.controller import AllocationLoop
from controllers.allocation.intent import intent_for
from controllers.allocation.observe import Observation, PoolView
from controllers.allocation.report import status_of
from controllers.allocation.rollout import TRYING, charge_in, is_canary, part_of, revision_of
from controllers.allocation.rollup import forecast_of
from controllers.allocation.sightings import Answered, problem_of
from controllers.lookup import Found
from controllers.model_bytes import ModelBytes
from controllers.parsed import ParsedObjects
from controllers.runtime.resources import INSTANCES, POOLS, Key
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.signing_key import SigningKey
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.hbm_policy import RolloutPhase
from crds.instance import PolicySource
from crds.pool_rollout import PoolRollout
from crds.reasons import check_condition
from policies.rollout.risk import needs_canaries

SHADOW = learned(enforcement="Shadow")
QUICK = learned("b", rollout={"soakSeconds": 0})
HALF = learned("b", rollout={"canaryPercent": 50, "rollbackP99Percent": 30})
ASKED = [SAFE, CLIMB, learned("a"), learned("b"), SHADOW, QUICK, HALF, {"strategy": "Static"}]


class WatchedWorld(World):
    """Looks at every intent that is written."""

    def _write_intents(self) -> None:
        before = json.loads(json.dumps({name: each["spec"].get("intent") for name, each in self.instances.items()}))
        super()._write_intents()
        rollout = PoolRollout.model_validate(self.rollout) if self.rollout else None
        for name, stored in self.instances.items():
            new, old = stored["spec"].get("intent"), before[name]
            if new is None or new == old or not needs_canaries(charge_in(new), charge_in(old) if old else None):
                continue
            assert rollout is not None, f"{name} got {new} without a rollout"
            permitted = rollout.revision == revision_of(new) and (
                rollout.phase is RolloutPhase.COMPLETE or (rollout.phase in TRYING and is_canary(rollout, stored))
            )
            stable = charge_in(rollout.stable.to_wire())
            assert permitted or charge_in(new) == stable, f"{name} got {new} while {rollout.phase}"


def acts(world: WatchedWorld, what: tuple[str, Any]) -> None:
    word, more = what
    if word == "ask":
        world.ask(more)
    elif word == "delete":
        world.delete_policy()
    elif word == "pause":
        world.pause(more)
    elif word == "turn":
        world.turn(more)
    elif word == "lead":
        world.lead_anew()
    elif word == "join":
        world.join()
    elif word == "model":
        world.model = world.named if more else None
    elif word == "lose":
        world.lost = {more}
    elif len(world.instances) > 1:
        world.leave(sorted(world.instances)[more % len(world.instances)])
    world.step()


HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(ASKED)),
        st.tuples(st.sampled_from(["delete", "lead", "join"]), st.none()),
        st.tuples(st.sampled_from(["pause", "model"]), st.booleans()),
        st.tuples(st.just("lose"), st.sampled_from([phase.value for phase in RolloutPhase])),
        st.tuples(st.just("turn"), st.sampled_from([1, 4, 20])),
        st.tuples(st.just("leave"), st.integers(0, 9)),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORY, st.integers(0, 1000), st.sampled_from([0.05, 0.4]))
def test_through_any_history_permits_are_kept_and_a_brake_ends_it(history: list[Any], seed: int, noise: float) -> None:
    world = WatchedWorld(count=4, seed=seed, noise=noise)
    world.ask(SAFE)
    world.step()
    for what in history:
        acts(world, what)
        for item in world.pool.get("status", {}).get("conditions", ()):
            check_condition(item["type"], item["status"], item["reason"])
        trying = world.phase in {phase.value for phase in TRYING}
        assert bool(world.canaries) == trying
    world.lost = set()
    world.pause(False)
    world.ask(SAFE)
    world._write_intents()
    assert set(world.strategies().values()) == {"MissRatioCurve"}
    world.step()
    assert world.rollout == {}
    world.ask(QUICK)
    world.step()
    assert set(world.strategies().values()) == {"Learned/b"}
    world.turn(3)
    writes = len(world.writes)
    world.turn(3)
    assert len(world.writes) == writes, "at rest nothing is written"


def test_a_step_of_a_rollout_wakes_every_instance_of_the_pool_and_a_measurement_does_not() -> None:
    pool = pool_object()
    store = Store((POOLS, INSTANCES))
    for name in ("pool-a", "pool-b"):
        store.upsert(INSTANCES, instance_object(name, pool))
    loop = AllocationLoop(SigningKey(), ParsedObjects(), AgentBook(), ModelBytes())
    key = Key("team", "pool")
    stepped = {**pool, "status": {"rollout": {"phase": "Canary"}}}
    woken = set(loop.keys_for(WatchEvent(EventType.MODIFIED, POOLS, key, stepped, pool), store))
    assert woken == {Key("team", "pool-a"), Key("team", "pool-b")}
    measured = {**stepped, "status": {**stepped["status"], "p99Ms": "41"}}
    assert set(loop.keys_for(WatchEvent(EventType.MODIFIED, POOLS, key, measured, stepped), store)) == set()


def told(spec: HBMPolicySpec, **figures: Any) -> dict[str, Any]:
    """Status of an instance under that policy whose agent predicts these figures."""
    pool = pool_object(entries=("a",))
    policy = Found(spec=spec, name="mine", namespace="team", generation=1, source=PolicySource.POOL)
    stored = instance_object("pool-a", pool, intent=intent_for(GRServingPool.parse(pool), policy).to_wire())
    seen = Observation(
        instance=GRInstance.parse(stored),
        stored=stored,
        pool=GRServingPool.parse(pool),
        policy=policy,
        sighting=Answered(status=agent_status(**figures)),
    )
    return status_of(seen, NOW)[0]


def test_in_shadow_the_status_says_what_the_strategy_expects() -> None:
    shadow = HBMPolicySpec.model_validate({"strategy": "MissRatioCurve", "enforcement": "Shadow"})
    figures = {"predicted_p99_ms": 41.23, "goal_p99_ms": 35.61}
    assert told(shadow, **figures)["forecast"] == {"inForceP99Ms": "41", "goalP99Ms": "36"}
    assert "forecast" not in told(shadow)
    assert "forecast" not in told(HBMPolicySpec(), **figures), "what acts is measured, not predicted"


def test_the_pool_has_the_mean_of_its_instances_and_noise_does_not_move_it() -> None:
    pool = pool_object()
    pool["status"] = {"forecast": {"inForceP99Ms": "40", "goalP99Ms": "36"}}
    stored = [
        instance_object(f"pool-{name}", pool, forecast={"inForceP99Ms": in_force, "goalP99Ms": "30"})
        for name, in_force in (("a", "39"), ("b", "42"))
    ]
    view = PoolView(
        pool=GRServingPool.parse(pool),
        stored=pool,
        policy=Found(spec=HBMPolicySpec(), name="mine", namespace="team", generation=1, source=PolicySource.POOL),
        instances=tuple((each, GRInstance.parse(each)) for each in stored),
    )
    assert forecast_of(view) == {"inForceP99Ms": "40", "goalP99Ms": "30"}


@pytest.mark.parametrize("field", ["predicted_p99_ms", "goal_p99_ms"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e12])
def test_a_forecast_that_is_no_latency_is_not_believed(field: str, value: float) -> None:
    assert problem_of(agent_status(**{field: value}), usable_bytes=None) is not None


def test_what_an_intent_takes_from_the_policy_does_not_depend_on_who_asks() -> None:
    one = part_of(told_intent(1))
    other = part_of(told_intent(2))
    assert one != other
    assert revision_of(one) == revision_of(other)


def told_intent(generation: int) -> dict[str, Any]:
    policy = Found(spec=HBMPolicySpec(), name="mine", namespace="team", generation=generation, source=PolicySource.POOL)
    return intent_for(GRServingPool.parse(pool_object()), policy).to_wire()
