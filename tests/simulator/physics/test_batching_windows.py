"""Batches: nobody is lost or served twice, nobody waits past the window while the server is free, padding reaches the edge."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.accelerator import load_accelerator
from simulator.physics.batching import HSTU_BUCKETS, Arrival, Batch, Batcher, BatchRules, Served, serve
from simulator.physics.model_shape import HSTU_PUBLISHED
from simulator.physics.service import ServiceLaw, Work

LAW = ServiceLaw(accelerator=load_accelerator("l20"), shape=HSTU_PUBLISHED)


def arrival(number: int, at_ms: float, new_tokens: int = 300) -> Arrival:
    return Arrival(request=number, arrival_ms=at_ms, work=Work(history_tokens=new_tokens))


def batch_ms(batch: Batch) -> float:
    return LAW.compute_ms(batch.works, padded_tokens=batch.padded_tokens)


@st.composite
def streams(draw: st.DrawFn) -> list[Arrival]:
    gaps = draw(st.lists(st.floats(0, 20), max_size=40))
    sizes = draw(st.lists(st.integers(1, 6000), min_size=len(gaps), max_size=len(gaps)))
    times = itertools.accumulate(gaps)
    return [arrival(number, at, size) for number, (at, size) in enumerate(zip(times, sizes, strict=True))]


rules = st.builds(BatchRules, window_ms=st.sampled_from([0.0, 1.0, 3.0, 10.0]), max_requests=st.integers(1, 8))


@settings(max_examples=150, deadline=None)
@given(streams(), rules)
def test_each_request_is_served_once_and_the_server_does_one_batch_at_a_time(stream: list[Arrival], rule: BatchRules) -> None:
    served = serve(stream, rules=rule, batch_ms=batch_ms)
    assert sorted(a.request for s in served for a in s.batch.arrivals) == [a.request for a in stream]
    for before, after in itertools.pairwise(served):
        assert after.start_ms >= before.finish_ms
    for one in served:
        assert 1 <= len(one.batch.arrivals) <= rule.max_requests
        assert one.finish_ms - one.start_ms == pytest.approx(batch_ms(one.batch))


@settings(max_examples=150, deadline=None)
@given(streams(), rules)
def test_nobody_waits_past_the_window_while_the_server_is_free(stream: list[Arrival], rule: BatchRules) -> None:
    served = serve(stream, rules=rule, batch_ms=batch_ms)
    free_ms = 0.0
    for one in served:
        first = min(a.arrival_ms for a in one.batch.arrivals)
        assert first <= one.batch.ready_ms <= first + rule.window_ms
        assert one.start_ms == max(one.batch.ready_ms, free_ms)
        assert all(a.arrival_ms <= one.start_ms for a in one.batch.arrivals)
        free_ms = one.finish_ms


@settings(max_examples=150, deadline=None)
@given(streams(), rules)
def test_a_batch_holds_one_bucket_and_is_padded_to_its_edge(stream: list[Arrival], rule: BatchRules) -> None:
    for one in serve(stream, rules=rule, batch_ms=batch_ms):
        batch = one.batch
        assert {rule.bucket_of(work.new_tokens) for work in batch.works} == {batch.bucket}
        assert batch.padded_tokens >= batch.new_tokens
        assert 0 <= batch.padding_share < 1
        if batch.bucket < len(HSTU_BUCKETS):
            assert batch.padded_tokens == HSTU_BUCKETS[batch.bucket] * len(batch.arrivals)


def starts(served: list[Served]) -> list[tuple[float, list[int]]]:
    return [(one.start_ms, [a.request for a in one.batch.arrivals]) for one in served]


def test_a_full_batch_leaves_before_its_window_ends() -> None:
    rule = BatchRules(window_ms=5, max_requests=2)
    assert starts(serve([arrival(0, 0), arrival(1, 1), arrival(2, 2)], rules=rule, batch_ms=lambda _: 1.0)) == [
        (1.0, [0, 1]),
        (7.0, [2]),
    ]


def test_batches_fill_while_the_server_is_busy() -> None:
    rule = BatchRules(window_ms=0, max_requests=8)
    stream = [arrival(0, 0), arrival(1, 2), arrival(2, 4), arrival(3, 6)]
    assert starts(serve(stream, rules=rule, batch_ms=lambda _: 10.0)) == [(0.0, [0]), (10.0, [1, 2, 3])]


def test_the_bucket_that_waited_longest_goes_first() -> None:
    rule = BatchRules(window_ms=1, max_requests=8)
    stream = [arrival(0, 0, 300), arrival(1, 2, 4000), arrival(2, 3, 300)]
    assert starts(serve(stream, rules=rule, batch_ms=lambda _: 100.0)) == [(1.0, [0]), (101.0, [1]), (201.0, [2])]


def test_requests_longer_than_every_bucket_are_padded_to_the_longest_of_them() -> None:
    batcher = Batcher(BatchRules(window_ms=0))
    for number, size in enumerate((5000, 6000)):
        batcher.add(arrival(number, 0, size))
    assert batcher.take(-1.0) is None
    batch = batcher.take(0.0)
    assert batch is not None
    assert batch.padded_tokens == 12_000
    assert len(batcher) == 0


def test_a_batch_of_eight_serves_far_more_than_eight_single_requests_at_short_queries() -> None:
    work = Work(history_tokens=4096, cached_tokens=3968, candidate_tokens=256)
    assert LAW.compute_ms([work] * 8) < 0.5 * 8 * LAW.compute_ms([work])


@pytest.mark.parametrize(
    "change", [{"window_ms": -1.0}, {"window_ms": float("nan")}, {"max_requests": 0}, {"bucket_edges_tokens": ()}]
)
def test_rules_that_cannot_work_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        BatchRules(**change)


@pytest.mark.parametrize("edges", [(2, 1), (1, 1), (0, 4)])
def test_edges_must_rise(edges: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rise"):
        BatchRules(bucket_edges_tokens=edges)


def test_time_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="request 1: arrives at 4"):
        serve([arrival(0, 5), arrival(1, 4)], rules=BatchRules(), batch_ms=lambda _: 1.0)
