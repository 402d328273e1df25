"""What follows from the sizes of a model: bytes a user leaves behind and operations a token costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.physics.model_shape import GATED_DELTANET, HSTU_MTSERVE, HSTU_PUBLISHED, QWEN3_1_7B, Attention, ModelShape

KIB = 1024


@pytest.mark.parametrize(
    ("shape", "kib_per_token"),
    [(HSTU_PUBLISHED, 32), (HSTU_MTSERVE, 16), (QWEN3_1_7B, 112), (GATED_DELTANET, 0)],
)
def test_kv_of_known_models_takes_the_known_bytes_a_token(shape: ModelShape, kib_per_token: int) -> None:
    assert shape.kv_bytes_per_token == kib_per_token * KIB


def test_a_thousand_users_of_ten_thousand_tokens_take_the_160_gb_of_the_paper() -> None:
    # MTServe: HSTU, 1000 users of 10 k tokens, about 160 GB.
    assert 1000 * HSTU_MTSERVE.user_bytes(10_000) == pytest.approx(160e9, rel=0.03)


def test_linear_attention_keeps_one_size_for_every_history() -> None:
    assert GATED_DELTANET.user_bytes(10) == GATED_DELTANET.user_bytes(100_000) == GATED_DELTANET.state_bytes_per_user
    assert GATED_DELTANET.state_bytes_per_user == 18 * 16 * 128 * 128 * 4
    assert GATED_DELTANET.user_bytes(0) == 0
    assert GATED_DELTANET.layer_flops_per_pair == 0


def test_a_transition_record_would_be_64_times_smaller_than_a_state_head() -> None:
    # OneLA: 2 d + 2 numbers against d^2, d = 128.
    head, record = 128**2, 2 * 128 + 2
    assert head / record == pytest.approx(64, rel=0.01)


def test_hstu_projects_ten_d_squared_and_attends_four_d() -> None:
    assert HSTU_PUBLISHED.layer_flops_per_token == 10 * 1024**2
    assert HSTU_PUBLISHED.layer_flops_per_pair == 4 * 1024


def test_qwen_has_its_weights() -> None:
    # 1.7 billion parameters, embeddings tied: 2 operations a weight and token.
    assert QWEN3_1_7B.layers * QWEN3_1_7B.layer_flops_per_token / 2 + QWEN3_1_7B.output_flops / 2 == pytest.approx(
        1.72e9, rel=0.01
    )
    assert QWEN3_1_7B.weight_bytes == pytest.approx(3.44e9, rel=0.01)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(0, 50_000))
def test_grouped_heads_divide_the_bytes_and_nothing_else_grows_faster_than_the_history(group: int, kv: int, tokens: int) -> None:
    shape = ModelShape(attention=Attention.SOFTMAX, layers=4, width=512, heads=group * kv, kv_heads=kv, head_dim=64)
    full = ModelShape(attention=Attention.SOFTMAX, layers=4, width=512, heads=group * kv, head_dim=64)
    assert shape.kv_bytes_per_token * group == full.kv_bytes_per_token
    assert shape.user_bytes(tokens) == tokens * shape.kv_bytes_per_token


@pytest.mark.parametrize(
    ("field", "value"), [("layers", 0), ("width", -1), ("head_dim", 0), ("ffn_width", -1), ("kv_heads", 3), ("element_bytes", 0)]
)
def test_sizes_no_model_can_have_are_refused(field: str, value: int) -> None:
    sizes = {"layers": 2, "width": 64, "heads": 4, "head_dim": 16} | {field: value}
    with pytest.raises(ValueError, match=field):
        ModelShape(attention=Attention.SOFTMAX, **sizes)
