"""What an agent makes of a second writer, and of an engine that is silent or tells nonsense: a freeze with its reason."""

import pytest
from dataplane_fakes import GIB
from dataplane_world import World


async def test_one_foreign_write_is_adopted(world: World) -> None:
    await world.rounds(2)
    world.static(30)
    await world.rounds(3)
    world.engine.foreign_write(emb_bytes=12 * GIB)
    await world.rounds(4)
    assert not world.frozen
    assert world.emb_percent == pytest.approx(30, abs=1)


async def freeze_by_foreign_writes(world: World) -> None:
    await world.rounds(2)
    world.static(30)
    await world.rounds(3)
    for _ in range(4):
        world.engine.foreign_write(emb_bytes=12 * GIB)
        await world.rounds()


async def test_repeated_foreign_writes_freeze_the_agent_with_second_writer(world: World) -> None:
    await freeze_by_foreign_writes(world)
    await world.rounds()
    asked = len(world.engine.puts)
    await world.rounds(5)
    assert (world.reason, world.frozen) == ("SecondWriter", True)
    assert len(world.engine.puts) == asked
    assert "only one agent" in world.agent.status().message


async def test_the_agent_thaws_when_foreign_writes_have_stopped_for_a_minute(world: World) -> None:
    await freeze_by_foreign_writes(world)
    await world.rounds(70)
    assert not world.frozen
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_a_new_intent_thaws_the_agent_at_once(world: World) -> None:
    await freeze_by_foreign_writes(world)
    await world.rounds()
    assert world.frozen
    world.static(35)
    await world.rounds(3)
    assert world.emb_percent == pytest.approx(35, abs=1)


async def test_repeated_conflict_answers_freeze_too(world: World) -> None:
    world.engine.put_fault = "conflict"
    await world.rounds(2)
    world.static(30)
    await world.rounds(6)
    assert world.reason == "SecondWriter"
    assert len(world.engine.puts) == 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan", "NotANumber"),
        ("infinite clock", "NotANumber"),
        ("garbage", "EngineGarbage"),
        ("bad samples", "EngineGarbage"),
        ("counters fall", "CountersWentBack"),
        ("limits above pool", "LimitsAbovePool"),
        ("more hits than asked", "EngineGarbage"),
        ("negative", "EngineGarbage"),
    ],
)
async def test_hostile_figures_freeze_the_split_with_a_reason_and_calm_thaws_it(world: World, fault: str, reason: str) -> None:
    await world.rounds(3)
    world.static(30, step={"maxPercentPerSecond": 2, "deadbandPercent": 0})
    await world.rounds(2)
    asked, limits = len(world.engine.puts), world.engine.limits
    world.engine.fault = fault
    await world.rounds(3)
    assert (world.reason, world.frozen) == (reason, True)
    world.engine.fault = ""
    await world.rounds(2)
    assert (world.reason, world.frozen) == (reason, True), "one good reading is not enough"
    assert (len(world.engine.puts), world.engine.limits) == (asked, limits)
    await world.rounds(5)
    assert (world.reason, world.frozen) == ("StaticTarget", False)
    assert world.engine.limits[0] < limits[0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("above pool", "LimitsAbovePool"), ("garbage", "EngineGarbage"), ("lost", "EngineUnreachable")],
)
async def test_an_answer_to_a_write_is_distrusted_as_a_reading_is(world: World, fault: str, reason: str) -> None:
    await world.rounds(3)
    world.engine.put_fault = fault
    world.static(30)
    await world.rounds(1)
    assert (world.reason, world.frozen) == (reason, True)
    assert len(world.engine.puts) == 1, "nothing is built on such an answer"
    world.engine.put_fault = ""
    await world.rounds(12)
    assert (world.reason, world.frozen) == ("StaticTarget", False)
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_an_answer_from_another_process_is_left_for_the_next_reading(world: World) -> None:
    await world.rounds(3)
    world.engine.put_fault = "another process"
    world.static(30)
    await world.rounds(1)
    assert len(world.engine.puts) == 1
    world.engine.put_fault = ""
    await world.rounds(8)
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_an_engine_whose_clock_stands_still_is_stale(world: World) -> None:
    await world.rounds(3)
    world.static(30)
    for _ in range(8):
        world.clock.advance(1)
        await world.agent.round()
    assert (world.reason, world.frozen, world.engine.puts) == ("StaleData", True, [])
    await world.rounds(3)
    assert world.emb_percent < 50


async def test_a_silent_engine_is_waited_for_and_its_silence_is_recorded_once(world: World) -> None:
    await world.rounds(3)
    world.static(30)
    world.engine.reachable = False
    await world.rounds(5)
    status = world.agent.status()
    assert (status.reason, status.frozen, status.engine.reachable) == ("EngineUnreachable", True, False)
    assert (status.p99_ms, status.emb_hit_percent) == (None, None)
    assert world.agent.unready()
    records = world.agent.decisions_after(0, limit=400).decisions
    assert [r.reason for r in records].count("EngineUnreachable") == 1
    world.engine.reachable = True
    await world.rounds(4)
    assert world.agent.unready() == []
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_an_engine_that_was_never_there_leaves_figures_missing_and_not_zero(world: World) -> None:
    world.engine.reachable = False
    await world.rounds(2)
    status = world.agent.status()
    assert status.split is None
    assert status.requests_per_second is None
    assert b'grfleet_agent_hit_percent{cache="kv"} NaN' in world.agent.metrics_text()


async def test_a_quiet_hour_is_idle_and_moves_nothing(world: World) -> None:
    world.intend(strategy="MissRatioCurve")
    await world.rounds(3)
    asked = len(world.engine.puts)
    await world.rounds(5, requests=0)
    assert (world.reason, world.frozen) == ("Idle", False)
    assert len(world.engine.puts) == asked
    assert world.agent.status().emb_hit_percent is not None, "the window still reaches back to the requests"


async def test_a_failing_round_is_reported_and_the_next_one_works(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.rounds(3)
    monkeypatch.setattr("dataplane.agent.loop.decide", lambda *_: 1 / 0)
    await world.rounds()
    assert (world.reason, world.frozen) == ("InternalError", True)
    monkeypatch.undo()
    world.static(30)
    await world.rounds(8)
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_lost_samples_are_counted(world: World) -> None:
    await world.rounds(2)
    world.touch_skewed_users(keys=10, rows=10)
    world.engine.lost = 5
    await world.rounds()
    text = world.agent.metrics_text().decode()
    assert "grfleet_agent_samples_total 20.0" in text
    assert "grfleet_agent_samples_lost_total 5.0" in text
