"""Costs measured from work counters come out at the prices that made them."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocation.costs import CostMemory, CostPrior, WorkDelta, costs_of, link_prior, update_costs
from policies.allocation.types import Assumed


def second(
    rng: np.random.Generator, *, miss: float, ms_row: float = 0.0007, ms_token: float = 0.003, rows_again: float = 2.0
) -> WorkDelta:
    """One second of 200 requests: 1 000 tokens each (cv2 0.5), 500 rows of its own, 20 % of rows missed, base 1.5 ms."""
    tokens = rng.gamma(2.0, 500.0, 200)
    missed = tokens * (rng.random(200) < miss)
    rows = 500.0 + rows_again * missed
    service = 1.5 + 0.2 * rows * ms_row + missed * ms_token
    return WorkDelta(
        interval_ms=1000.0,
        requests=200.0,
        kv_tokens_asked=float(tokens.sum()),
        kv_tokens_missed=float(missed.sum()),
        emb_rows_asked=float(rows.sum()),
        emb_rows_missed=float(0.2 * rows.sum()),
        service_ms=float(service.sum()),
        service_squared_ms2=float((service**2).sum()),
        emb_miss_ms=float((0.2 * rows * ms_row).sum()),
        kv_miss_ms=float((missed * ms_token).sum()),
    )


def test_measured_costs_are_the_prices_of_the_engine() -> None:
    rng, memory = np.random.default_rng(1), CostMemory()
    for tick in range(120):
        memory = update_costs(memory, second(rng, miss=0.3 + 0.1 * math.sin(tick)))
    costs = costs_of(memory, kv_size_cv2=0.5, prior=CostPrior(emb_rows_per_kv_miss_token=1.0))
    assert costs is not None
    assert costs.ms_per_emb_miss_row == pytest.approx(0.0007)
    assert costs.ms_per_kv_miss_token == pytest.approx(0.003)
    assert costs.emb_rows_per_kv_miss_token == pytest.approx(2.0, rel=0.05)
    assert costs.emb_rows_per_request == pytest.approx(500.0, rel=0.1)
    assert costs.kv_tokens_per_request == pytest.approx(1000.0, rel=0.05)
    assert costs.base_service_ms == pytest.approx(1.5)
    assert costs.arrival_per_s == pytest.approx(200.0)
    assert costs.service_variance_ms2 < 1.0


def test_a_slower_link_shows_within_the_decay_time() -> None:
    rng, memory = np.random.default_rng(1), CostMemory()
    for _ in range(60):
        memory = update_costs(memory, second(rng, miss=0.3), decay_ms=5000.0)
    for _ in range(25):
        memory = update_costs(memory, second(rng, miss=0.3, ms_row=0.0014), decay_ms=5000.0)
    costs = costs_of(memory, kv_size_cv2=0.5, prior=CostPrior(emb_rows_per_kv_miss_token=1.0))
    assert costs is not None
    assert costs.ms_per_emb_miss_row == pytest.approx(0.0014, rel=0.02)


def test_without_a_prior_nothing_is_known_before_both_kinds_of_miss_were_seen_and_a_known_price_is_kept() -> None:
    rng = np.random.default_rng(1)
    assert costs_of(CostMemory(), kv_size_cv2=0.0, prior=CostPrior(emb_rows_per_kv_miss_token=1.0)) is None
    hits = second(rng, miss=0.0)
    assert costs_of(update_costs(CostMemory(), hits), kv_size_cv2=0.5, prior=CostPrior(emb_rows_per_kv_miss_token=1.0)) is None
    memory = update_costs(CostMemory(), second(rng, miss=0.3))
    for _ in range(600):
        memory = update_costs(memory, hits)
    costs = costs_of(memory, kv_size_cv2=0.5, prior=CostPrior(emb_rows_per_kv_miss_token=1.0))
    assert costs is not None
    assert costs.ms_per_kv_miss_token == pytest.approx(0.003)


LINK = link_prior(emb_row_bytes=512, kv_bytes_per_token=8192, link_bytes_per_second=2_000_000_000, emb_rows_per_kv_miss_token=1.0)


def test_a_cache_that_never_missed_has_the_price_of_its_bytes_over_the_link_and_the_costs_say_so() -> None:
    rng = np.random.default_rng(1)
    costs = costs_of(update_costs(CostMemory(), second(rng, miss=0.0)), kv_size_cv2=0.5, prior=LINK)
    assert costs is not None
    assert costs.assumed == (Assumed.KV_MISS_TOKEN,)
    assert costs.ms_per_kv_miss_token == pytest.approx(8192 / 2e6)
    assert costs.ms_per_emb_miss_row == pytest.approx(0.0007)


def test_the_first_measured_price_takes_over_from_the_prior_and_a_measured_zero_is_a_price() -> None:
    rng = np.random.default_rng(1)
    memory = update_costs(CostMemory(), second(rng, miss=0.0))
    for ms_token in (0.003, 0.0):
        costs = costs_of(update_costs(memory, second(rng, miss=0.3, ms_token=ms_token)), kv_size_cv2=0.5, prior=LINK)
        assert costs is not None
        assert costs.assumed == ()
        assert costs.ms_per_kv_miss_token == pytest.approx(ms_token)


def test_nothing_is_known_without_requests_whatever_the_prior() -> None:
    assert costs_of(CostMemory(), kv_size_cv2=0.0, prior=LINK) is None


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf])
def test_a_prior_that_is_no_price_is_refused(price: float) -> None:
    with pytest.raises(ValueError):
        CostPrior(emb_rows_per_kv_miss_token=1.0, ms_per_emb_miss_row=price)


def test_a_link_without_a_rate_gives_no_prior() -> None:
    with pytest.raises(ValueError):
        link_prior(emb_row_bytes=512, kv_bytes_per_token=8192, link_bytes_per_second=0, emb_rows_per_kv_miss_token=1.0)


@pytest.mark.parametrize("bad", [{"requests": -1.0}, {"emb_miss_ms": math.nan}, {"interval_ms": 0.0}])
def test_impossible_differences_are_left_out(bad: dict[str, float]) -> None:
    delta = msgspec.structs.replace(second(np.random.default_rng(1), miss=0.3), **bad)
    assert update_costs(CostMemory(), delta) == CostMemory()


_COUNTED = st.sampled_from([0.0, 1.0, 1e6, float(1 << 62)])
_MS = st.sampled_from([0.0, 1e-300, 50.0, 1e15])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            WorkDelta,
            interval_ms=st.sampled_from([1e-3, 1000.0, 1e12]),
            requests=_COUNTED,
            kv_tokens_asked=_COUNTED,
            kv_tokens_missed=_COUNTED,
            emb_rows_asked=_COUNTED,
            emb_rows_missed=_COUNTED,
            service_ms=_MS,
            service_squared_ms2=st.sampled_from([0.0, 1.0, 1e24]),
            emb_miss_ms=_MS,
            kv_miss_ms=_MS,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_counters_a_contract_can_carry_costs_are_numbers(windows: list[WorkDelta]) -> None:
    """A sum that were none would stay so: what is no number never fades."""
    memory, prior = CostMemory(), CostPrior(emb_rows_per_kv_miss_token=1.0, ms_per_emb_miss_row=1.0, ms_per_kv_miss_token=1.0)
    for work in windows:
        memory = update_costs(memory, work)
        costs = costs_of(memory, kv_size_cv2=0.5, prior=prior)
        if costs is not None:
            assert all(math.isfinite(value) for value in msgspec.structs.astuple(costs) if isinstance(value, float))
