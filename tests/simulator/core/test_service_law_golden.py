"""The service law against NVIDIA's published L20 bars for an HSTU of 8 layers of width 1024 with 256 candidates at batch 8.

R = 77 TFLOP/s is fitted to these same bars, so this proves the shape of the law (one constant, five points), not the constant.
"""

import pytest

from simulator.core.physics import DEMO_ACCELERATOR, L20_HSTU, ServiceModel

PUBLISHED_MS = [
    # history, cached, milliseconds read off the chart
    (1024, 0, 14.0),
    (2048, 0, 30.2),
    (4096, 0, 71.5),
    (4096, 3072, 25.0),
    (4096, 3968, 9.2),
]


@pytest.mark.parametrize(("history", "cached", "measured_ms"), PUBLISHED_MS)
def test_l20_batch_8_lies_within_ten_percent_of_the_published_bar(history: int, cached: int, measured_ms: float) -> None:
    predicted = L20_HSTU.compute_ms(history=history, candidates=256, cached=cached, batch=8)
    assert predicted == pytest.approx(measured_ms, rel=0.10)


def test_kv_of_the_published_model_takes_32_kib_a_token() -> None:
    assert L20_HSTU.kv_bytes_per_token == 32 * 1024


def test_compute_splits_at_any_cached_prefix() -> None:
    # Computing a prefix and then the rest costs what computing everything at once costs.
    whole = L20_HSTU.flops(history=3000, candidates=100, cached=0)
    prefix = L20_HSTU.flops(history=1700, candidates=0, cached=0)
    rest = L20_HSTU.flops(history=3000, candidates=100, cached=1700)
    assert prefix + rest == pytest.approx(whole)


def test_more_cached_tokens_never_cost_more() -> None:
    times = [DEMO_ACCELERATOR.compute_ms(history=2000, candidates=256, cached=cached) for cached in range(0, 2001, 50)]
    assert times == sorted(times, reverse=True)


def test_gather_is_free_without_misses_and_slower_while_refill_takes_link() -> None:
    model: ServiceModel = DEMO_ACCELERATOR
    assert model.gather_ms(missed_rows=0, link_share_taken=0.5) == 0.0
    alone = model.gather_ms(missed_rows=1000) - model.gather_fixed_ms
    beside_refill = model.gather_ms(missed_rows=1000, link_share_taken=0.2) - model.gather_fixed_ms
    assert beside_refill == pytest.approx(alone / 0.8)
    assert alone == pytest.approx(1000 * 512 / (model.link_bytes_per_second * 0.55) * 1e3)
