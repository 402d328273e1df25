"""Whatever an engine does, the agent never asks for more than the pool, never grows into a shrink, and recovers afterwards."""

import asyncio

from dataplane_fakes import GIB, MIB
from dataplane_world import World
from hypothesis import given, settings
from hypothesis import strategies as st

POOL = 16 * GIB
FAULTS = [
    "nan",
    "infinite clock",
    "garbage",
    "bad samples",
    "counters fall",
    "limits above pool",
    "more hits than asked",
    "negative",
]
PUT_FAULTS = ["conflict", "unsupported", "lost", "garbage", "above pool", "another process"]

events = st.one_of(
    st.tuples(st.just("fault"), st.sampled_from(["", "", *FAULTS])),
    st.tuples(st.just("put"), st.sampled_from(["", "", *PUT_FAULTS])),
    st.tuples(st.just("lag"), st.integers(0, 4)),
    st.tuples(st.just("reachable"), st.booleans()),
    st.tuples(st.just("restart engine"), st.none()),
    st.tuples(st.just("another pool"), st.sampled_from([POOL, 9 * GIB, 2 * GIB])),
    st.tuples(st.just("restart agent"), st.none()),
    st.tuples(st.just("foreign"), st.integers(1, 15)),
    st.tuples(st.just("epoch"), st.none()),
    st.tuples(st.just("intent"), st.tuples(st.integers(5, 95), st.sampled_from([POOL, 12 * GIB, 3 * GIB, 100 * MIB, 40 * GIB]))),
    st.tuples(st.just("shadow"), st.integers(5, 95)),
    st.tuples(st.just("curves"), st.none()),
    st.tuples(st.just("load"), st.sampled_from([0, 100, 400])),
)


def happen(world: World, what: str, value: object) -> None:
    engine = world.engine
    if what == "fault":
        engine.fault = str(value)
    elif what == "put":
        engine.put_fault = str(value)
    elif what == "lag":
        engine.lag_readings = int(str(value))
    elif what == "reachable":
        engine.reachable = bool(value)
    elif what == "restart engine":
        engine.restart()
    elif what == "another pool":
        engine.pool_bytes = int(str(value))  # and a new process, as the granted memory of one never changes
        engine.restart()
    elif what == "restart agent":
        world.agent = world.new_agent()
    elif what == "foreign":
        engine.foreign_write(emb_bytes=engine.pool_bytes * int(str(value)) // 16)
    elif what == "epoch":
        engine.epoch += 1
    elif what == "intent":
        percent, usable = value  # type: ignore[misc]  # the strategy above pairs them
        world.static(percent, usableBytes=usable)
    elif what == "shadow":
        world.static(int(str(value)), enforcement="Shadow")
    elif what == "curves":
        world.intend(strategy="MissRatioCurve")


async def play(script: list[tuple[str, object]]) -> None:
    world = World()
    load = 100
    for what, value in script:
        if what == "load":
            load = int(str(value))
        happen(world, what, value)
        engine = world.engine
        asked = len(engine.puts)
        world.touch_skewed_users(keys=20, rows=20)
        await world.rounds(requests=load)
        held = world.agent._intents.current
        pool = engine.pool_bytes
        usable = min(pool, (held.spec.usable_bytes or pool) if held else pool)
        assert engine.violations == []
        for put in engine.puts[asked:]:
            assert put.emb_bytes + put.kv_bytes <= usable
            assert held is not None
            assert held.spec.enforcement.value == "Active"
            assert engine.fault == "" or engine.fault == "counters fall", "no write on figures that cannot be trusted"
        assert sum(engine.limits) <= pool
        assert max(engine.limits[0], engine.used[0]) + max(engine.limits[1], engine.used[1]) <= pool
    await calm_down(world)


async def calm_down(world: World) -> None:
    """After the faults stop, the agent converges."""
    engine = world.engine
    engine.fault, engine.put_fault, engine.reachable, engine.lag_readings = "", "", True, 0
    world.static(40)
    await world.rounds(15)
    assert world.reason == "StaticTarget"
    assert abs(world.emb_percent - 40) <= max(1, 100 * engine.granule_bytes / engine.pool_bytes)
    assert engine.violations == []


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=40))
def test_the_pool_is_never_exceeded_and_the_agent_recovers_whatever_the_engine_does(script: list[tuple[str, object]]) -> None:
    asyncio.run(play(script))
