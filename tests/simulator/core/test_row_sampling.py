"""Rows of a request: the right law, the same for every engine, and only the sampled ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.engine import ItemPopularity
from contract.samples import is_sampled
from simulator.core.popularity import RowSampler, SamplerCache, sampled_row_keys, zipf_norm
from simulator.core.randomness import binomial, seed_of, uniforms

LAW = ItemPopularity(exponent=0.95, catalog_rows=200_000)


@pytest.mark.parametrize("exponent", [0.7, 0.95, 1.0, 1.05])
def test_the_tail_of_the_zipf_sum_agrees_with_adding_up(exponent: float) -> None:
    exact = float(np.sum(np.arange(1, 1_000_001, dtype=np.float64) ** -exponent))
    assert zipf_norm(exponent, 1_000_000) == pytest.approx(exact, rel=1e-9)


def test_exact_sampling_draws_every_access_with_zipf_frequencies() -> None:
    sampler = RowSampler(ItemPopularity(exponent=1.0, catalog_rows=1000), 1)
    rows = np.concatenate([sampler.draw(seed_of(f"r{i}"), rows=1000) for i in range(200)])
    assert len(rows) == 200_000
    share = np.bincount(rows, minlength=1000)[:5] / len(rows)
    expected = 1 / np.arange(1, 6) / zipf_norm(1.0, 1000)
    assert share == pytest.approx(expected, rel=0.05)


def test_the_number_of_sampled_rows_is_unbiased_and_binomial() -> None:
    sampler = RowSampler(LAW, 64)
    counts = np.array([len(sampler.draw(seed_of(f"r{i}"), rows=3000)) for i in range(4000)])
    mean = 3000 * sampler.share
    assert counts.mean() == pytest.approx(mean, rel=0.01)
    assert counts.var() == pytest.approx(mean * (1 - sampler.share), rel=0.1)


def test_sampled_rows_follow_their_share_of_the_law() -> None:
    sampler = RowSampler(LAW, 64)
    rows = np.concatenate([sampler.draw(seed_of(f"r{i}"), rows=20_000) for i in range(300)])
    frequency = np.bincount(rows, minlength=sampler.universe) / len(rows)
    expected = sampler.probabilities() / sampler.share
    top = np.argsort(-expected)[:5]
    assert frequency[top] == pytest.approx(expected[top], rel=0.1)


@given(rows=st.integers(0, 5000), skip=st.integers(0, 5000), name=st.text(max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_cached_prefix_strips_accesses_and_changes_no_other(rows: int, skip: int, name: str) -> None:
    sampler = RowSampler(ItemPopularity(exponent=0.9, catalog_rows=10_000), 16)
    seed = seed_of(name)
    whole = sampler.draw(seed, rows=rows).tolist()
    rest = sampler.draw(seed, rows=rows, skip=skip).tolist()
    assert rest == whole[len(whole) - len(rest) :]
    if skip == 0:
        assert rest == whole


def test_an_offset_moves_the_head_of_the_popularity_to_other_rows() -> None:
    plain = RowSampler(ItemPopularity(exponent=1.0, catalog_rows=100), 1)
    moved = RowSampler(ItemPopularity(exponent=1.0, catalog_rows=100, offset=30), 1)
    assert int(np.argmax(plain.probabilities())) == 0
    assert int(np.argmax(moved.probabilities())) == 30
    assert moved.share == pytest.approx(1.0)


def test_one_row_in_n_is_sampled_and_its_key_passes_the_contracts_rule() -> None:
    sampler = RowSampler(LAW, 64)
    indices = np.flatnonzero(sampler.probabilities())
    assert len(indices) == pytest.approx(200_000 / 64, rel=0.01)
    keys = sampled_row_keys(indices.astype(np.uint64), 64)
    assert len(np.unique(keys)) == len(keys)
    assert all(is_sampled(key, 64) for key in keys.tolist())
    thinned = sum(is_sampled(key, 256) for key in keys.tolist())
    assert thinned == pytest.approx(len(keys) / 4, rel=0.1)


@pytest.mark.parametrize("offset", [0, 1_000_003])
def test_bins_of_the_tail_hold_what_their_rows_hold_together(offset: int) -> None:
    popularity = ItemPopularity(exponent=0.9, catalog_rows=4_000_000, offset=offset)
    sampler = RowSampler(popularity, 16)
    probabilities = sampler.probabilities()
    assert probabilities.shape == (250_000,)
    assert sampler.share == pytest.approx(probabilities.sum())
    # Blocks by distance from the most popular one; ranks of a block are 16 times that.
    ordered = np.roll(probabilities, -(offset // 16))
    ranks = np.arange(100_000, 250_000) * 16.0 + 8
    assert ordered[100_000:] == pytest.approx(ranks**-0.9 / zipf_norm(0.9, 4_000_000), rel=0.011)
    rows = np.concatenate([sampler.draw(seed_of(f"r{i}"), rows=100_000) for i in range(100)])
    place = (rows - offset // 16) % 250_000
    for low, high in ((0, 65_536), (65_536, 100_000), (100_000, 250_000)):
        drawn = np.mean((place >= low) & (place < high))
        assert drawn == pytest.approx(ordered[low:high].sum() / sampler.share, rel=0.01)


def test_a_catalogue_whose_sample_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="catalogRows"):
        SamplerCache(1).get(ItemPopularity(exponent=1.0, catalog_rows=1 << 39))


def test_streams_are_pure_functions_of_the_seed_and_longer_ones_extend_shorter_ones() -> None:
    assert uniforms(7, 5).tolist() == uniforms(7, 2000)[:5].tolist()
    numbers = uniforms(99, 100_000)
    assert 0.0 <= numbers.min() <= numbers.max() < 1.0
    assert numbers.mean() == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize(
    ("trials", "probability"), [(3000, 0.15), (3000, 0.97), (500, 0.004), (40, 0.5), (10, 0.0), (10, 1.0), (0, 0.3)]
)
def test_drawn_misses_have_binomial_mean_and_variance(trials: int, probability: float) -> None:
    drawn = np.array([binomial(trials, probability, seed=seed_of(f"b{i}")) for i in range(6000)])
    mean, variance = trials * probability, trials * probability * (1 - probability)
    assert drawn.min() >= 0
    assert drawn.max() <= trials
    assert drawn.mean() == pytest.approx(mean, abs=5 * (variance / 6000) ** 0.5 + 1e-9)
    assert drawn.var() == pytest.approx(variance, rel=0.12, abs=1e-9)
