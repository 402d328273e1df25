"""What the service law promises: more tokens never cost less, a cached prefix never costs more, no floor is undercut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.accelerator import known_accelerators, load_accelerator
from simulator.physics.coefficients import service_coefficients
from simulator.physics.model_shape import GATED_DELTANET, HSTU_PUBLISHED, QWEN3_1_7B
from simulator.physics.service import ServiceLaw, Work

LAWS = [
    ServiceLaw(accelerator=load_accelerator(name), shape=shape)
    for name in known_accelerators()
    for shape in (HSTU_PUBLISHED, QWEN3_1_7B, GATED_DELTANET)
]
laws = st.sampled_from(LAWS)
tokens = st.integers(0, 20_000)


@st.composite
def works(draw: st.DrawFn) -> Work:
    history = draw(tokens)
    return Work(history_tokens=history, cached_tokens=draw(st.integers(0, history)), candidate_tokens=draw(st.integers(0, 1000)))


batches = st.lists(works(), max_size=8)


@settings(max_examples=200, deadline=None)
@given(laws, works(), st.integers(0, 500), st.integers(0, 500))
def test_more_history_or_candidates_never_cost_less(law: ServiceLaw, work: Work, history: int, candidates: int) -> None:
    longer = Work(
        history_tokens=work.history_tokens + history,
        cached_tokens=work.cached_tokens,
        candidate_tokens=work.candidate_tokens + candidates,
    )
    assert law.compute_ms([longer]) >= law.compute_ms([work])


@settings(max_examples=200, deadline=None)
@given(laws, works(), st.integers(0, 500))
def test_more_cached_tokens_never_cost_more(law: ServiceLaw, work: Work, more: int) -> None:
    cached = min(work.history_tokens, work.cached_tokens + more)
    better = Work(history_tokens=work.history_tokens, cached_tokens=cached, candidate_tokens=work.candidate_tokens)
    assert law.compute_ms([better]) <= law.compute_ms([work]) + 1e-9
    assert law.recompute_ms(work, available_tokens=cached) >= -1e-9


@settings(max_examples=200, deadline=None)
@given(laws, batches)
def test_no_batch_is_faster_than_any_floor(law: ServiceLaw, batch: list[Work]) -> None:
    took = law.compute_ms(batch)
    if not any(work.new_tokens for work in batch):
        assert took == 0
        return
    rate = law.accelerator.flops_per_second
    for floor in (
        law.launch_ms,
        law.memory_ms(batch),
        law.occupancy_floor_flops(batch) / rate * 1e3,
        law.flops(batch).total / law.accelerator.peak_flops_per_second * 1e3,
    ):
        assert took >= floor * (1 - 1e-12)


@settings(max_examples=200, deadline=None)
@given(laws, batches, batches)
def test_a_batch_never_costs_more_than_its_parts_one_after_the_other(law: ServiceLaw, one: list[Work], two: list[Work]) -> None:
    assert law.compute_ms(one + two) <= (law.compute_ms(one) + law.compute_ms(two)) * (1 + 1e-12)
    assert law.compute_ms(one + two) >= max(law.compute_ms(one), law.compute_ms(two)) * (1 - 1e-12)


@settings(max_examples=200, deadline=None)
@given(laws, st.integers(1, 20_000), st.data())
def test_operations_split_at_any_cached_prefix(law: ServiceLaw, history: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, history))
    whole = law.flops([Work(history_tokens=history, candidate_tokens=100)])
    prefix = law.flops([Work(history_tokens=cut)])
    rest = law.flops([Work(history_tokens=history, cached_tokens=cut, candidate_tokens=100)])
    assert prefix.attention + rest.attention == pytest.approx(whole.attention)
    outputs = law.shape.output_flops if cut else 0
    assert prefix.projection + rest.projection - outputs == pytest.approx(whole.projection)


@settings(max_examples=100, deadline=None)
@given(laws, batches, st.integers(0, 5000))
def test_padding_costs_projections_and_never_gains(law: ServiceLaw, batch: list[Work], padding: int) -> None:
    real = sum(work.new_tokens for work in batch)
    padded = law.flops(batch, padded_tokens=real + padding)
    bare = law.flops(batch)
    assert padded.attention == bare.attention
    assert padded.projection - bare.projection == pytest.approx(law.shape.layers * law.shape.layer_flops_per_token * padding)
    assert law.compute_ms(batch, padded_tokens=real + padding) >= law.compute_ms(batch)


def test_padding_that_would_drop_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="below the 100 tokens"):
        LAWS[0].flops([Work(history_tokens=100)], padded_tokens=99)


@pytest.mark.parametrize(("history", "cached", "candidates"), [(10, 11, 0), (10, -1, 0), (-1, 0, 0), (10, 0, -1)])
def test_impossible_work_is_refused(history: int, cached: int, candidates: int) -> None:
    with pytest.raises(ValueError, match="tokens"):
        Work(history_tokens=history, cached_tokens=cached, candidate_tokens=candidates)


@pytest.mark.parametrize("name", known_accelerators())
def test_a_beam_decode_grows_with_beams_context_batch_and_passes(name: str) -> None:
    law = ServiceLaw(accelerator=load_accelerator(name), shape=QWEN3_1_7B)
    start = law.decode_ms(context_tokens=1000, beams=128)
    assert start >= 2 * law.accelerator.decode_pass_ms
    assert law.decode_ms(context_tokens=1000, beams=256) > start
    assert law.decode_ms(context_tokens=2000, beams=128) > start
    assert law.decode_ms(context_tokens=1000, beams=128, batch=2) > start
    assert law.decode_ms(context_tokens=1000, beams=128, passes=3) > start


def test_only_a_decoder_decodes() -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        ServiceLaw(accelerator=load_accelerator("h100"), shape=HSTU_PUBLISHED).decode_ms(context_tokens=10, beams=1)


def test_linear_attention_costs_the_same_for_any_cached_history() -> None:
    law = ServiceLaw(accelerator=load_accelerator("h100"), shape=GATED_DELTANET)
    times = [law.compute_ms([Work(history_tokens=n + 64, cached_tokens=n, candidate_tokens=256)]) for n in (100, 1000, 100_000)]
    assert max(times) == min(times)


@settings(max_examples=200, deadline=None)
@given(laws, st.lists(works(), min_size=1, max_size=20))
def test_the_coefficients_say_of_each_request_what_the_law_says(law: ServiceLaw, requests: list[Work]) -> None:
    took = service_coefficients(law).request_ms(
        history=[work.history_tokens for work in requests],
        cached=[work.cached_tokens for work in requests],
        candidates=[work.candidate_tokens for work in requests],
    )
    assert took == pytest.approx([law.compute_ms([work]) for work in requests], rel=1e-12)
