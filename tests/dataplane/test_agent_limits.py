"""The agent brings the engine's limits to the intent: on a change only, never above the pool, never in the way of the split."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dataplane_fakes import GIB
from dataplane_world import World
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.engine import LimitsAnswer, LimitsRequest

POOL = 16 * GIB


def pre_infer(slots: int = 8, gib: float = 2, **more: int) -> dict[str, int]:
    return {"slots": slots, "bytes": int(gib * GIB), **more}


def in_force(world: World) -> tuple[int, int]:
    return world.engine.bounds.pre_infer_slots, world.engine.bounds.pre_infer_bytes


async def test_slots_come_at_once_and_bytes_when_the_split_has_made_room(world: World) -> None:
    world.engine.lag_readings = 3
    world.static(50, preInfer=pre_infer(slots=8, gib=2), usableBytes=14 * GIB)
    await world.rounds(3)
    assert in_force(world) == (8, 0)
    assert "preInferBytes stays at 0 until the split has shrunk" in world.agent.status().message
    await world.rounds(10)
    assert in_force(world) == (8, 2 * GIB)
    assert sum(world.engine.limits) <= 14 * GIB
    status = world.agent.status()
    assert status.limits == world.engine.bounds
    assert "preInferBytes" not in status.message
    assert world.engine.violations == []


async def test_the_split_makes_room_although_the_intent_forgot_to_take_the_bytes_from_it(world: World) -> None:
    world.static(50, preInfer=pre_infer(gib=3))
    await world.rounds(10)
    assert in_force(world)[1] == 3 * GIB
    assert sum(world.engine.limits) == 13 * GIB


async def test_limits_are_lowered_before_the_split_grows(world: World) -> None:
    world.static(50, preInfer=pre_infer(gib=4), usableBytes=12 * GIB)
    await world.rounds(10)
    world.engine.limits_fault = "lost before"
    world.static(50, preInfer=pre_infer(gib=1), usableBytes=15 * GIB)
    await world.rounds(4)
    assert sum(world.engine.limits) == 12 * GIB
    world.engine.limits_fault = ""
    await world.rounds(20)
    assert in_force(world)[1] == GIB
    assert sum(world.engine.limits) == 15 * GIB


async def test_nothing_is_asked_at_rest(world: World) -> None:
    world.static(50, preInfer=pre_infer())
    await world.rounds(10)
    asked = len(world.engine.limits_asked)
    world.static(50, preInfer=pre_infer())
    await world.rounds(20)
    assert len(world.engine.limits_asked) == asked
    assert asked <= 3  # what is in force; slots; bytes


async def test_without_capacity_in_the_intent_and_in_a_paused_pool_the_limits_stay(world: World) -> None:
    world.static(50)
    await world.rounds(3)
    world.static(50, preInfer=pre_infer(), paused=True)
    await world.rounds(3)
    assert world.engine.limits_asked == []


async def test_a_new_engine_process_is_given_the_limits_again(world: World) -> None:
    world.static(50, preInfer=pre_infer())
    await world.rounds(10)
    world.engine.restart()
    await world.rounds(10)
    assert in_force(world) == (8, 2 * GIB)
    assert world.engine.violations == []


async def test_a_new_agent_adopts_what_is_in_force_with_one_call(world: World) -> None:
    world.static(50, preInfer=pre_infer())
    await world.rounds(10)
    asked = len(world.engine.limits_asked)
    world.agent = world.new_agent()
    world.static(50, preInfer=pre_infer())
    await world.rounds(5)
    assert [request.revision for request in world.engine.limits_asked[asked:]] == [0]
    assert world.agent.status().limits == world.engine.bounds


async def test_limits_that_somebody_else_changed_are_adopted_and_changed_from_there(world: World) -> None:
    world.static(50, preInfer=pre_infer())
    await world.rounds(10)
    world.engine.bounds = LimitsRequest(revision=17, pre_infer_slots=1, pre_infer_bytes=0)
    world.static(50, preInfer=pre_infer(slots=9))
    await world.rounds(5)
    assert in_force(world) == (9, 2 * GIB)
    assert world.engine.bounds.revision == 18


@pytest.mark.parametrize("fault", ["lost before", "lost after"])
async def test_a_lost_answer_is_made_up_for(world: World, fault: str) -> None:
    world.static(50, preInfer=pre_infer())
    world.engine.limits_fault = fault
    await world.rounds(4)
    world.engine.limits_fault = ""
    await world.rounds(20)
    assert in_force(world) == (8, 2 * GIB)
    assert world.engine.violations == []


async def test_an_engine_that_does_not_take_them_is_asked_again_for_other_ones_only_and_the_status_says_so(world: World) -> None:
    world.engine.limits_fault = "unsupported"
    world.static(50, preInfer=pre_infer(gib=0))
    await world.rounds(10)
    asked = len(world.engine.limits_asked)
    await world.rounds(10)
    assert len(world.engine.limits_asked) == asked
    assert "the engine does not take them" in world.agent.status().message
    world.engine.limits_fault = ""
    world.static(50, preInfer=pre_infer(slots=3, gib=0))
    await world.rounds(3)
    assert in_force(world) == (3, 0)
    assert "does not take" not in world.agent.status().message


async def test_an_engine_without_the_call_is_asked_less_and_less_often(world: World) -> None:
    world.engine.limits_fault = "garbage"
    world.static(50, preInfer=pre_infer())
    await world.rounds(600)
    assert len(world.engine.limits_asked) <= 12
    assert world.reason == "StaticTarget"


@pytest.mark.parametrize(("tiers", "sent"), [(["hbm"], (0, 0)), (["hbm", "dram"], (5, 0)), (["hbm", "dram", "ssd"], (5, 7))])
async def test_a_tier_that_the_engine_does_not_have_is_left_out_and_named(tiers: list[str], sent: tuple[int, int]) -> None:
    world = World(tiers=tiers)
    world.static(50, preInfer=pre_infer(gib=0, hostBytes=5, ssdBytes=7))
    await world.rounds(4)
    assert (world.engine.bounds.host_bytes, world.engine.bounds.ssd_bytes) == sent
    message = world.agent.status().message
    assert ("no tier dram" in message, "no tier ssd" in message) == ("dram" not in tiers, "ssd" not in tiers)


async def test_a_call_that_hangs_delays_no_round(world: World) -> None:
    hang = asyncio.Event()

    async def put_limits(request: LimitsRequest) -> LimitsAnswer:
        await hang.wait()
        return LimitsAnswer.__new__(LimitsAnswer)

    world.engine.put_limits = put_limits  # type: ignore[method-assign]
    world.static(80, preInfer=pre_infer(gib=0))
    for _ in range(10):
        world.engine.serve()
        world.clock.advance(1.0)
        await world.agent.round()
    assert world.emb_percent == pytest.approx(80, abs=1)
    running = asyncio.create_task(world.agent.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.agent.orders_settled()  # given up together with the loop


async def test_a_new_agent_lets_the_split_grow_only_once_it_knows_what_is_in_force(world: World) -> None:
    world.static(50, preInfer=pre_infer(gib=4))
    await world.rounds(12)
    world.agent = world.new_agent()
    world.engine.limits_fault = "lost before"
    world.static(50, preInfer=pre_infer(gib=0))
    await world.rounds(12)
    assert sum(world.engine.limits) == 12 * GIB
    world.engine.limits_fault = ""
    await world.rounds(30)
    assert sum(world.engine.limits) == 16 * GIB


async def test_an_engine_without_the_call_is_not_kept_from_growing(world: World) -> None:
    world.static(50, usableBytes=8 * GIB)
    await world.rounds(12)
    world.engine.limits_fault = "garbage"
    world.static(50, preInfer=pre_infer(gib=0))
    await world.rounds(20)
    assert sum(world.engine.limits) == 16 * GIB


steps = st.one_of(
    st.tuples(st.just("intent"), st.tuples(st.integers(5, 95), st.sampled_from([None, 0, 1, 3, 8, 20]), st.booleans())),
    st.tuples(st.just("limits"), st.sampled_from(["", "", "lost before", "lost after", "unsupported", "garbage"])),
    st.tuples(st.just("put"), st.sampled_from(["", "", "conflict"])),
    st.tuples(st.just("fault"), st.sampled_from(["", "", "nan", "bad samples"])),
    st.tuples(st.just("lag"), st.integers(0, 4)),
    st.tuples(st.just("reachable"), st.booleans()),
    st.tuples(st.just("restart engine"), st.none()),
    st.tuples(st.just("restart agent"), st.none()),
    st.tuples(st.just("rounds"), st.integers(1, 6)),
)


def happen(world: World, what: str, value: Any) -> None:
    engine = world.engine
    if what == "intent":
        percent, gib, honest = value
        more: dict[str, Any] = {} if gib is None else {"preInfer": pre_infer(gib=gib)}
        if honest:  # the operator has taken the bytes from what the split may use
            more["usableBytes"] = max(0, POOL - (gib or 0) * GIB)
        world.static(percent, **more)
    elif what == "limits":
        engine.limits_fault = value
    elif what == "put":
        engine.put_fault = value
    elif what == "fault":
        engine.fault = value
    elif what == "lag":
        engine.lag_readings = value
    elif what == "reachable":
        engine.reachable = value
    elif what == "restart engine":
        engine.restart()
    elif what == "restart agent":
        world.agent = world.new_agent()


async def play(script: list[tuple[str, Any]]) -> None:
    world = World()
    engine = world.engine
    known = False  # whether this agent may know of the reservation: else only the intent protects it
    for what, value in script:
        happen(world, what, value)
        if what in ("restart agent", "restart engine"):
            known = False
        before = engine.split_most() + engine.bounds.pre_infer_bytes
        for _ in range(value if what == "rounds" else 1):
            await world.rounds()
            total = engine.split_most() + engine.bounds.pre_infer_bytes
            known = known or world.agent.status().limits is not None
            if known:
                assert total <= max(POOL, before), "split and prefixes grew above the pool"
            before = total
        assert engine.violations == []
    engine.limits_fault = engine.put_fault = engine.fault = ""
    engine.reachable, engine.lag_readings = True, 0
    world.static(40, preInfer=pre_infer(slots=5, gib=2), usableBytes=14 * GIB)
    await world.rounds(30)
    assert in_force(world) == (5, 2 * GIB)
    assert sum(engine.limits) <= 14 * GIB


@settings(max_examples=80, deadline=None)
@given(st.lists(steps, max_size=30))
def test_split_and_prefixes_never_grow_above_the_pool_and_arrive_whatever_the_engine_does(script: list[tuple[str, Any]]) -> None:
    asyncio.run(play(script))


async def raise_and_lower(changes: list[tuple[int, str, int]]) -> None:
    world = World()
    engine = world.engine
    for gib, fault, rounds in changes:
        engine.limits_fault = fault
        world.static(50, preInfer=pre_infer(gib=gib))
        for _ in range(rounds):
            await world.rounds()
            assert engine.split_most() + engine.bounds.pre_infer_bytes <= POOL, "split and prefixes together above the pool"
    assert engine.violations == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 4, 8, 12]), st.sampled_from(["", "", "lost before", "lost after"]), st.integers(1, 12)),
        min_size=2,
        max_size=8,
    )
)
def test_capacity_that_comes_and_goes_with_lost_answers_never_adds_up_to_more_than_the_pool(
    changes: list[tuple[int, str, int]],
) -> None:
    asyncio.run(raise_and_lower(changes))


async def test_a_reservation_whose_answer_was_lost_is_reckoned_with_until_the_engine_has_answered() -> None:
    await raise_and_lower([(0, "", 3), (8, "lost before", 1), (8, "", 8), (8, "lost after", 3), (0, "lost before", 20)])
    await raise_and_lower([(1, "", 10), (8, "lost before", 10), (8, "lost after", 20), (0, "lost before", 30), (0, "", 10)])
