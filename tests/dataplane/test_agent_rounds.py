"""What the agent does round by round: orders, adoption, what survives a restart, and the pace of the engine."""

import msgspec
import pytest
from dataplane_fakes import GIB
from dataplane_world import World

from contract.engine import SplitAnswer, SplitRequest, SplitStatus
from policies.allocation.strategy import decide
from policies.allocation.types import DecisionInputs


async def test_without_an_intent_the_engine_keeps_its_split_and_is_measured(world: World) -> None:
    await world.rounds(4, emb_hit=0.75)
    status = world.agent.status()
    assert (status.reason, status.frozen, status.strategy_in_force) == ("NoIntent", False, "None")
    assert world.engine.puts == []
    assert status.emb_hit_percent == pytest.approx(75, abs=0.1)
    assert status.requests_per_second == pytest.approx(100)
    assert status.p99_ms is not None


async def test_an_intent_moves_the_split_shrink_first_and_settles(world: World) -> None:
    await world.rounds(2)
    world.static(30)
    await world.rounds(4)
    status = world.agent.status()
    assert world.emb_percent == pytest.approx(30, abs=1)
    assert status.split is not None
    assert status.split.settled
    assert status.split.target_emb_bytes == status.split.accepted_emb_bytes == world.engine.limits[0]
    assert world.engine.violations == []
    shrink, grow = world.engine.puts[:2]
    assert shrink.kv_bytes == 8 * GIB
    assert grow.kv_bytes > 8 * GIB


async def test_the_split_never_moves_faster_than_the_intent_allows(world: World) -> None:
    await world.rounds(2)
    world.static(10, step={"maxPercentPerSecond": 2, "deadbandPercent": 0})
    before = world.emb_percent
    for _ in range(5):
        await world.rounds()
        assert before - world.emb_percent <= 2.0 + 100 * world.engine.granule_bytes / world.engine.pool_bytes
        before = world.emb_percent
    assert world.emb_percent < 45


async def test_a_split_on_a_long_way_names_its_end_as_target_and_not_the_next_step(world: World) -> None:
    await world.rounds(2)
    world.static(10, step={"maxPercentPerSecond": 2, "deadbandPercent": 0})
    seen = []
    for _ in range(30):
        await world.rounds()
        split = world.agent.status().split
        assert split is not None
        seen.append((split.target_emb_bytes, split.accepted_emb_bytes))
    end = seen[-1][1]
    assert end == pytest.approx(0.1 * world.engine.pool_bytes, abs=world.engine.granule_bytes)
    on_the_way = [target for target, accepted in seen if accepted != end]
    assert len(on_the_way) > 10
    assert set(on_the_way) == {end}


async def test_shadow_records_decisions_and_applies_none(world: World) -> None:
    await world.rounds(2)
    world.static(30, enforcement="Shadow")
    await world.rounds(3)
    assert world.engine.puts == []
    last = world.agent.decisions_after(0, limit=400).decisions[-1]
    assert (last.reason, last.applied) == ("StaticTarget", False)
    assert last.target_emb_bytes < 8 * GIB
    assert "shadow" in world.agent.status().message


async def test_a_paused_pool_holds_and_goes_on_when_resumed(world: World) -> None:
    await world.rounds(2)
    world.static(30, paused=True)
    await world.rounds(3)
    assert (world.reason, world.frozen, world.engine.puts) == ("Paused", False, [])
    world.static(30)
    await world.rounds(3)
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_a_learned_strategy_without_a_model_says_so_and_follows_the_anchor(world: World) -> None:
    world.intend(strategy="Learned")
    for _ in range(75):
        world.touch_skewed_users()
        await world.rounds()
    last = world.agent.decisions_after(0, limit=400).decisions[-1]
    assert (last.reason, last.layer, last.strategy) == ("ModelMissing", "Anchor", "Learned")
    assert world.agent.status().strategy_in_force == "MissRatioCurve"


async def test_the_curves_move_the_split_to_the_side_that_needs_it(world: World) -> None:
    world.intend(strategy="MissRatioCurve")
    for _ in range(80):
        world.touch_skewed_users()
        await world.rounds(requests=400, kv_hit=0.4, emb_hit=0.999)
    assert world.reason == "AnchorTarget"
    assert world.emb_percent < 40
    assert world.engine.violations == []


async def test_a_recorded_decision_can_be_decided_again_with_the_same_result(world: World) -> None:
    world.intend(strategy="MissRatioCurve")
    for _ in range(70):
        world.touch_skewed_users()
        await world.rounds()
    answer = msgspec.json.decode(msgspec.json.encode(world.agent.decisions_after(0, limit=400)))
    for record in answer["decisions"][-5:]:
        inputs = {name: value for name, value in record["inputs"].items() if name != "round"}
        i = msgspec.convert(inputs, DecisionInputs)
        again, _ = decide(i.observation, i.view, i.intent, i.state, i.now_ms)
        assert again.target_emb_bytes == record["targetEmbBytes"]
        assert again.reason.value == record["reason"]


async def test_a_price_that_stands_on_a_prior_is_named_in_the_record_until_it_is_measured(world: World) -> None:
    world.intend(strategy="MissRatioCurve")
    for _ in range(70):
        world.touch_skewed_users()
        await world.rounds(emb_hit=1.0, kv_hit=0.4)
    record = msgspec.json.decode(msgspec.json.encode(world.agent.decisions_after(69, limit=1).decisions[0]))
    assert record["reason"] == "AnchorTarget"
    assert record["inputs"]["round"]["assumedPrices"] == record["inputs"]["view"]["costs"]["assumed"] == ["EmbMissRow"]
    i = msgspec.convert({name: value for name, value in record["inputs"].items() if name != "round"}, DecisionInputs)
    again, _ = decide(i.observation, i.view, i.intent, i.state, i.now_ms)
    assert again.target_emb_bytes == record["targetEmbBytes"]
    await world.rounds(2, emb_hit=0.9)
    assert "assumedPrices" not in world.agent.decisions_after(71, limit=1).decisions[0].inputs["round"]


async def test_usable_bytes_of_the_intent_bound_both_limits_together(world: World) -> None:
    await world.rounds(2)
    world.static(50, usableBytes=12 * GIB)
    await world.rounds(6)
    assert sum(world.engine.limits) <= 12 * GIB
    assert world.engine.limits[0] == 6 * GIB


# -- memory loss ---------------------------------------------------------------------------------------------------------------


async def test_a_restarted_agent_adopts_the_split_in_force_and_goes_on(world: World) -> None:
    await world.rounds(2)
    world.static(30)
    await world.rounds(4)
    revision = world.engine.revision
    world.agent = world.new_agent()
    await world.rounds(2)
    assert world.reason == "NoIntent"
    assert world.engine.revision == revision
    world.static(40)
    await world.rounds(3)
    assert world.emb_percent == pytest.approx(40, abs=1)
    assert not {SplitStatus.STALE, SplitStatus.CONFLICT} & set(world.engine.answers)


async def test_a_restarted_agent_does_not_walk_to_the_fallback_before_it_has_curves(world: World) -> None:
    world.engine.foreign_write(emb_bytes=4 * GIB)
    await world.rounds(2)
    world.intend(strategy="MissRatioCurve")
    await world.rounds(10)
    assert world.reason == "EstimateNotTrusted"
    assert (world.emb_percent, world.engine.puts) == (25.0, [])


async def test_a_fresh_engine_walks_to_the_fallback_until_there_are_curves(world: World) -> None:
    await world.rounds(2)
    world.intend(strategy="MissRatioCurve", bounds={"fallbackEmbPercent": 30})
    await world.rounds(6)
    assert world.reason == "EstimateNotTrusted"
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_a_restarted_engine_is_adopted_with_its_lower_revision_and_no_negative_window(world: World) -> None:
    await world.rounds(2)
    world.static(30)
    await world.rounds(4)
    old_revision = world.engine.revision
    world.engine.restart()
    await world.rounds(1)
    assert world.reason == "NoWindow"
    assert world.engine.revision == 0 < old_revision
    await world.rounds(4)
    status = world.agent.status()
    assert (status.engine.start_id, status.frozen) == ("start-2", False)
    assert world.emb_percent == pytest.approx(30, abs=1)
    assert status.requests_per_second is not None
    assert status.requests_per_second >= 0


async def test_what_is_known_of_the_users_survives_a_restart_of_the_engine(world: World) -> None:
    world.intend(strategy="MissRatioCurve")
    for _ in range(75):
        world.touch_skewed_users()
        await world.rounds(requests=400)
    assert world.reason == "AnchorTarget"
    world.engine.restart()
    for _ in range(3):
        world.touch_skewed_users()
        await world.rounds(requests=400)
    assert world.reason == "AnchorTarget"


async def test_emptied_caches_are_noted_and_do_not_stop_the_agent(world: World) -> None:
    await world.rounds(3)
    world.static(30)
    world.engine.epoch = 1
    await world.rounds(3)
    assert world.agent.status().engine.epoch == 1
    assert world.emb_percent == pytest.approx(30, abs=1)
    records = world.agent.decisions_after(0, limit=400).decisions
    assert [bool(r.inputs["round"].get("emptied")) for r in records].count(True) == 1


# -- the engine's own pace -------------------------------------------------------------------------------------------------------


async def test_nothing_grows_while_the_engine_defers(world: World) -> None:
    world.engine.lag_readings = 3
    await world.rounds(2)
    world.static(30)
    for _ in range(12):
        await world.rounds()
        over = world.engine.split_state().overage_bytes
        if over:
            assert world.engine.limits[1] <= 16 * GIB - world.engine.used[0]
    assert SplitStatus.DEFERRED in world.engine.answers
    assert world.engine.violations == []
    assert world.emb_percent == pytest.approx(30, abs=1)


async def test_an_engine_that_refuses_every_change_is_left_alone_until_a_new_intent(world: World) -> None:
    world.engine.put_fault = "unsupported"
    await world.rounds(2)
    world.static(30)
    await world.rounds(4)
    assert world.reason == "NotResizable"
    asked = len(world.engine.puts)
    await world.rounds(3)
    assert len(world.engine.puts) == asked == 1
    world.engine.put_fault = ""
    world.static(31)
    await world.rounds(3)
    assert world.emb_percent == pytest.approx(31, abs=1)


async def test_changes_are_no_greater_than_the_engine_takes_in_one_revision(world: World) -> None:
    world.engine.max_change = GIB
    await world.rounds(2)
    world.static(25)
    await world.rounds(12)
    assert world.engine.violations == []
    assert world.emb_percent == pytest.approx(25, abs=1)


async def test_refill_never_exceeds_its_cap_also_when_the_cap_falls_without_a_move(world: World) -> None:
    await world.rounds(2)
    world.static(40, refill={"maxLinkPercent": 20})
    await world.rounds(4)
    assert world.engine.refill == 4_000_000_000
    world.static(40, refill={"maxLinkPercent": 20, "maxBytesPerSecond": 1_000_000})
    await world.rounds(3)
    assert world.engine.refill == 1_000_000
    asked = len(world.engine.puts)
    await world.rounds(3)
    assert len(world.engine.puts) == asked
    assert not world.frozen


async def test_a_record_names_the_strategy_that_decided_though_another_was_ordered_meanwhile() -> None:
    world = World()
    world.static(50)
    await world.rounds(3)
    world.static(40)
    put = world.engine.put_split

    async def ordered_meanwhile(request: SplitRequest) -> SplitAnswer:
        world.engine.put_split = put  # type: ignore[method-assign] # only the first write is overtaken
        world.intend(strategy="HillClimb")
        return await put(request)

    world.engine.put_split = ordered_meanwhile  # type: ignore[method-assign] # a write during which an order comes
    await world.rounds()
    record = world.agent.decisions.after(0).decisions[-1]
    assert (record.strategy, record.reason, record.applied) == ("Static", "StaticTarget", True)
    await world.rounds()
    assert world.agent.decisions.after(0).decisions[-1].strategy == "HillClimb"
