"""One instance: queueing, coupling of the caches, refill, pre-inference, versions, determinism."""

import pytest
from core_requests import LAW, MIB, config, rank, split, traffic, user

from contract.engine import InvalidateRequest, ItemPopularity, LimitsRequest, PreInferRequest, SplitStatus
from contract.samples import KIND_EMB, KIND_KV, unpack
from simulator.core.instance import GRInstanceCore
from simulator.core.lookups import Refused


def core(**changes: object) -> GRInstanceCore:
    return GRInstanceCore(config(**changes), seed=1)


def pre_infer(number: int, *, who: int = 1, tokens: int = 1000) -> PreInferRequest:
    return PreInferRequest(request_id=f"p{number}", user_key=user(who), model_version="1", history_tokens=tokens)


def test_requests_queue_in_arrival_order_behind_one_server() -> None:
    engine = core()
    first = engine.rank(rank(1, who=1), 10.0)
    second = engine.rank(rank(2, who=2), 11.0)
    third = engine.rank(rank(3, who=3), 1e6)
    assert first.queue_ms == 0.0
    assert second.queue_ms == pytest.approx(first.service_ms - 1.0)
    assert second.latency_ms == pytest.approx(second.queue_ms + second.service_ms)
    assert third.queue_ms == 0.0


def test_an_arrival_in_the_past_is_taken_as_simultaneous_with_the_last() -> None:
    engine = core()
    first = engine.rank(rank(1, who=1), 100.0)
    assert engine.rank(rank(2, who=2), 50.0).queue_ms == pytest.approx(first.service_ms)


def test_cached_tokens_are_not_looked_up_in_the_embedding_stage() -> None:
    engine = core()
    cold = engine.rank(rank(1, tokens=1000), 0.0)
    warm = engine.rank(rank(2, tokens=1010), 1000.0)
    assert (cold.kv_tokens_hit, cold.emb_rows_asked) == (0, 2 * 1100)
    assert (warm.kv_tokens_hit, warm.emb_rows_asked) == (1000, 2 * 110)
    assert warm.service_ms < cold.service_ms


def test_two_splits_given_the_same_request_draw_the_same_rows() -> None:
    small, large = core(emb_percent=10), core(emb_percent=90)
    for request, arrival in traffic(50):
        small.rank(request, arrival)
        large.rank(request, arrival)
    seen = [unpack(engine.samples.read(0)[0]) for engine in (small, large)]
    rows = [set(batch["key"][batch["kind_size"] >> 30 == KIND_EMB].tolist()) for batch in seen]
    more = rows[0] | rows[1]
    assert len(rows[0] & rows[1]) > 0.5 * len(more)


def test_the_same_calls_give_the_same_outcome() -> None:
    def outcome() -> object:
        engine = core()
        engine.warm()
        answers = [engine.rank(request, arrival) for request, arrival in traffic(200)]
        engine.put_split(split(engine, 1, 16 * MIB, 48 * MIB, refill=MIB), now_ms=4000.0)
        return answers, engine.observe(5000.0), engine.samples.read(0)

    assert outcome() == outcome()


def test_refill_loads_evicted_rows_back_under_its_cap() -> None:
    # given a warm EMB cache that gave 16 MiB away and gets them back, empty
    engine = core()
    engine.warm()
    engine.put_split(split(engine, 1, 16 * MIB, 32 * MIB), now_ms=0.0)
    engine.put_split(split(engine, 2, 32 * MIB, 32 * MIB, refill=2 * MIB), now_ms=0.0)
    backlog = engine.observe(0.0).split.refill_backlog_bytes
    assert backlog > 8 * MIB
    # when time passes in uneven steps, then no more than the cap has crossed the link
    for now in (1.0, 3.5, 40.0, 250.0, 1000.0, 2500.0):
        seen = engine.observe(now)
        assert seen.counters.bytes.refill <= 2 * MIB * now / 1000
        assert seen.split.refill_backlog_bytes == backlog - seen.counters.bytes.refill
    assert seen.counters.bytes.refill > 0.99 * 2 * MIB * 2.5 - 16 * 512
    assert engine.observe(1e6).split.settled


def test_without_a_refill_rate_nothing_is_owed_and_demand_fills_the_room() -> None:
    engine = core()
    engine.warm()
    engine.put_split(split(engine, 1, 16 * MIB, 32 * MIB), now_ms=0.0)
    engine.put_split(split(engine, 2, 32 * MIB, 32 * MIB), now_ms=0.0)
    assert engine.observe(1.0).split.settled
    before = engine.emb.used_bytes
    for number in range(50):
        engine.rank(rank(number, who=number), 100.0 * number)
    assert engine.emb.used_bytes > before
    assert engine.observe(0.0).counters.bytes.refill == 0


def test_demand_gathers_are_slower_while_refill_takes_its_share_of_the_link() -> None:
    def emb_miss_ms(refill_share: float) -> float:
        engine = core()
        engine.warm(popularity=LAW)
        link = engine.config.service.link_bytes_per_second
        engine.put_split(split(engine, 1, 1 * MIB, 32 * MIB), now_ms=0.0)
        engine.put_split(split(engine, 2, 32 * MIB, 32 * MIB, refill=int(refill_share * link)), now_ms=0.0)
        engine.rank(rank(1), 0.0)
        return engine.observe(0.0).counters.work_ms.emb_miss - engine.config.service.gather_fixed_ms

    assert emb_miss_ms(0.5) == pytest.approx(2 * emb_miss_ms(0.0), rel=0.01)


def test_work_is_attributed_to_its_causes() -> None:
    engine = core()
    answer = engine.rank(rank(1, tokens=1000), 0.0)
    work = engine.observe(0.0).counters.work_ms
    candidates_only = engine.config.service.compute_ms(history=1000, candidates=100, cached=1000)
    assert work.service == pytest.approx(answer.service_ms)
    assert work.service_squared == pytest.approx(answer.service_ms**2)
    assert work.emb_miss + work.kv_miss + candidates_only == pytest.approx(work.service)


def test_every_user_and_one_row_in_n_is_reported_with_the_time() -> None:
    engine = core()
    engine.rank(rank(1, tokens=1000), 250.0)
    records = unpack(engine.samples.read(0)[0])
    kinds = records["kind_size"] >> 30
    assert (kinds == KIND_KV).sum() == 1
    assert int(records["kind_size"][kinds == KIND_KV][0] & 0x3FFF_FFFF) == 1000
    assert 50 < (kinds == KIND_EMB).sum() < 250
    assert set(records["time_us"].tolist()) == {250_000}


def test_a_prefix_computed_ahead_is_used_by_its_ranking_request() -> None:
    engine = core()
    assert engine.pre_infer(pre_infer(1), 0.0).accepted
    assert engine.observe(0.0).gauges.live_prefix_bytes > 0
    assert engine.rank(rank(2), 5000.0).kv_tokens_hit == 1000
    counters = engine.observe(5000.0).counters.pre_infer
    assert (counters.accepted, counters.used, counters.late) == (1, 1, 0)
    assert engine.pre_infer(pre_infer(3), 6000.0).resident


def test_a_ranking_request_that_overtakes_its_prefix_counts_as_late() -> None:
    engine = core()
    engine.pre_infer(pre_infer(1), 0.0)
    engine.rank(rank(2), 0.1)
    assert engine.observe(0.1).counters.pre_infer.late == 1


def test_above_slots_or_bytes_a_prefix_is_refused_with_the_reason() -> None:
    engine = core(pre_infer_slots=1)
    engine.pre_infer(pre_infer(1, who=1), 0.0)
    answer = engine.pre_infer(pre_infer(2, who=2), 0.0)
    assert not answer.accepted
    assert "slots" in answer.reason
    limits = LimitsRequest(revision=1, pre_infer_slots=8, pre_infer_bytes=9 * MIB)
    assert engine.put_limits(limits).status == SplitStatus.APPLIED
    assert "bytes" in engine.pre_infer(pre_infer(3, who=2), 0.0).reason
    assert engine.observe(0.0).counters.pre_infer.rejected == 2


def test_limits_follow_the_rules_of_revisions() -> None:
    engine = core()
    first = LimitsRequest(revision=1, pre_infer_slots=2, pre_infer_bytes=MIB)
    assert engine.put_limits(first).status == engine.put_limits(first).status == SplitStatus.APPLIED
    assert engine.put_limits(LimitsRequest(revision=0, pre_infer_slots=2, pre_infer_bytes=MIB)).status == SplitStatus.STALE
    assert engine.put_limits(LimitsRequest(revision=1, pre_infer_slots=3, pre_infer_bytes=MIB)).status == SplitStatus.CONFLICT
    assert engine.put_limits(LimitsRequest(revision=3, pre_infer_slots=2, pre_infer_bytes=MIB)).status == SplitStatus.CONFLICT
    tiers = engine.put_limits(LimitsRequest(revision=2, pre_infer_slots=2, pre_infer_bytes=MIB, host_bytes=1))
    assert tiers.status == SplitStatus.UNSUPPORTED
    assert tiers.reason.startswith("hostBytes: ")
    assert tiers.limits == first


def test_a_new_embedding_version_empties_both_caches_and_begins_an_epoch() -> None:
    engine = core()
    engine.warm()
    engine.rank(rank(1), 0.0)
    engine.advance(1000.0)
    assert engine.invalidate(InvalidateRequest(emb_version="1")).bytes == 0, "the version in force empties nothing"
    freed = engine.invalidate(InvalidateRequest(emb_version="2"))
    assert freed.bytes > 0
    assert engine.emb.used_bytes == engine.kv.used_bytes == 0
    assert (engine.epoch, engine.describe().model.emb_version) == (1, "2")


def test_a_new_model_version_drops_the_state_of_others_only() -> None:
    engine = core()
    engine.rank(rank(1, who=1), 0.0)
    engine.rank(rank(2, who=2, model_version="2"), 1000.0)
    engine.advance(2000.0)
    assert engine.invalidate(InvalidateRequest(model_version="2")).affected == 1
    assert (engine.epoch, engine.describe().model.version) == (0, "2")


def test_a_draining_instance_says_so_and_still_serves() -> None:
    engine = core()
    engine.rank(rank(1), 0.0)
    assert engine.drain().in_flight == 1
    assert not engine.ready().ready
    assert engine.ready().reasons == ["draining"]
    assert engine.rank(rank(2), 1.0).service_ms > 0
    assert engine.observe(1.0).draining


def test_a_drain_that_is_taken_back_leaves_a_ready_instance() -> None:
    engine = core()
    engine.drain()
    assert not engine.drain(draining=False).draining
    assert engine.ready().ready
    assert engine.observe(1.0).draining is False


def test_evicting_a_user_frees_its_bytes_but_not_while_in_service() -> None:
    engine = core()
    engine.rank(rank(1), 0.0)
    assert engine.evict([user(1)]).affected == 0
    engine.advance(1000.0)
    assert engine.evict([user(1), user(9)]).affected == 1
    assert engine.kv.used_bytes == 0


def test_prefetch_protects_resident_users_from_eviction() -> None:
    engine = core()
    for who in (1, 2, 3):
        engine.rank(rank(who, who=who), who * 1000.0)
    assert engine.prefetch([user(1), user(8)]).affected == 1
    assert engine.kv.keys_oldest_first()[-1] == (user(1), "1")


def test_gauges_count_waiting_and_running_requests() -> None:
    engine = core()
    for number in range(3):
        engine.rank(rank(number, who=number), 0.0)
    gauges = engine.observe(0.0).gauges
    assert (gauges.queue, gauges.in_flight) == (2, 3)
    gauges = engine.observe(1e5).gauges
    assert (gauges.queue, gauges.in_flight) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens": 1 << 24}, "historyTokens"),
        ({"item_popularity": ItemPopularity(exponent=1.0, catalog_rows=1 << 40)}, "catalogRows"),
    ],
)
def test_what_would_exhaust_memory_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    engine = core()
    with pytest.raises(Refused, match=field):
        engine.rank(rank(1, **changes), 0.0)
    assert engine.observe(0.0).counters.requests == 0


def test_a_history_of_nothing_is_served() -> None:
    answer = core().rank(rank(1, tokens=0), 0.0)
    assert (answer.kv_tokens_hit, answer.emb_rows_asked) == (0, 200)


def test_an_invalidation_that_names_nothing_is_refused_and_empties_nothing() -> None:
    engine = core()
    engine.rank(rank(1), 0.0)
    engine.advance(1000.0)
    used = engine.kv.used_bytes
    with pytest.raises(Refused, match="modelVersion, embVersion or everything"):
        engine.invalidate(InvalidateRequest())
    assert (engine.kv.used_bytes, engine.epoch) == (used, 0)
    assert used > 0
    assert engine.invalidate(InvalidateRequest(everything=True)).affected == 1
    assert (engine.kv.used_bytes, engine.epoch) == (0, 1)


@pytest.mark.parametrize("percent", [None, 0, 50, 100])
def test_a_request_that_hits_enough_does_not_wait_for_the_rows_it_misses(percent: int | None) -> None:
    engine, waits = core(load_behind_percent=percent), core()
    engine.warm()
    waits.warm()
    for number in range(20):
        mine, other = (each.rank(rank(number, who=number), 500.0 * number) for each in (engine, waits))
        assert mine.emb_rows_missed == other.emb_rows_missed > 0
        hit = 1.0 - mine.emb_rows_missed / mine.emb_rows_asked
        behind = percent is not None and hit >= percent / 100
        assert (mine.service_ms < other.service_ms) == behind
    told = engine.observe(1e5).counters
    missed = told.emb.rows_asked - told.emb.rows_hit
    assert told.emb.rows_defaulted == {None: 0, 0: missed, 100: 0}.get(percent, told.emb.rows_defaulted)
    assert told.bytes.demand == waits.observe(1e5).counters.bytes.demand, "the rows are loaded all the same"


@pytest.mark.parametrize("blocks", [True, False])
def test_where_refill_blocks_serving_no_request_begins_before_it_is_over(blocks: bool) -> None:
    # given a grown EMB cache that is owed more than a second of refill
    engine = core(refill_blocks_serving=blocks)
    engine.warm()
    engine.put_split(split(engine, 1, 28 * MIB, 32 * MIB), now_ms=0.0)
    engine.put_split(split(engine, 2, 32 * MIB, 32 * MIB, refill=2 * MIB), now_ms=0.0)
    assert engine.describe().refill_blocks_serving is blocks
    over_ms = 1000.0 * engine.observe(0.0).split.refill_backlog_bytes / (2 * MIB)
    assert over_ms > 1000.0
    # when requests come meanwhile and after it, then the first wait for its end and the others in line
    first, second = engine.rank(rank(1, who=1), 100.0), engine.rank(rank(2, who=2), 400.0)
    late = engine.rank(rank(3, who=3), 10_000.0)
    if blocks:
        assert first.queue_ms == pytest.approx(over_ms - 100.0, abs=60.0)  # the rows it misses are owed no more
        assert second.queue_ms == pytest.approx(first.queue_ms + first.service_ms - 300.0)
    else:
        assert first.queue_ms == second.queue_ms == 0.0
    assert late.queue_ms == 0.0
    assert engine.observe(10_000.0).split.refill_backlog_bytes == 0
