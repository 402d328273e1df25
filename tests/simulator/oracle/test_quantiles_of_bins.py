"""Quantiles read off a histogram are those of the values in it to within a bin, those read off the largest values exact."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.oracle.lindley import BINS, SHIFT, bin_edges_ms, heap_size, lowest_bin, quantiles, tally, upper_quantile

LOWEST = lowest_bin(1.0)
BIN_WIDTH = 1 / 256


def counted(values: list[list[float]]) -> np.ndarray:
    out = np.zeros((2, 1, BINS), dtype=np.uint32)
    for half, latencies in enumerate(values):
        places = (np.array(latencies, dtype=np.float32).view(np.int32) >> SHIFT) - LOWEST
        np.add.at(out[half, 0], places, 1)
    return out


latencies = st.lists(st.floats(1.0, 60_000.0), max_size=150)


@settings(max_examples=200, deadline=None)
@given(latencies, latencies, st.sampled_from([50.0, 90.0, 99.0]))
def test_quantiles_of_halves_and_whole_are_those_of_numpy_to_within_a_bin(
    first: list[float], second: list[float], percent: float
) -> None:
    found = quantiles(counted([first, second]), 0, (len(first), len(second)), bin_edges_ms(LOWEST), percent)[:, 0]
    for value, values in zip(found, (first, second, first + second), strict=True):
        if values:
            assert abs(value / np.percentile(values, percent) - 1.0) <= BIN_WIDTH
        else:
            assert np.isnan(value)


def test_no_bin_is_wider_than_half_a_percent() -> None:
    edges = bin_edges_ms(LOWEST)
    assert edges[0] == 1.0
    assert np.all(edges[1:] / edges[:-1] <= 1.005)


@settings(max_examples=100, deadline=None)
@given(latencies, latencies, st.sampled_from([50.0, 90.0, 99.0]), st.integers(1, 40))
def test_the_largest_latencies_tell_the_same_quantiles_exactly(
    first: list[float], second: list[float], percent: float, block: int
) -> None:
    values = np.array(first + second, dtype=np.float32).reshape(-1, 1)
    half = np.repeat(np.array([0, 1], dtype=np.uint8), (len(first), len(second)))
    histogram = np.zeros((2, 3, BINS), dtype=np.uint32)
    heaps = np.zeros((2, 1, heap_size(len(values), percent)), dtype=np.float32)
    filled = np.zeros(2, dtype=np.int64)
    for start in range(0, len(values), block):
        tally(values[start : start + block], half[start : start + block], LOWEST, 1, histogram, heaps, filled)
    assert filled.tolist() == [len(first), len(second)]
    assert np.array_equal(histogram[:, 1:2], counted([first, second]))
    assert histogram[:, [0, 2]].sum() == 0
    found = upper_quantile(heaps, filled, percent)[:, 0]
    for value, part in zip(found, (first, second, first + second), strict=True):
        if part:
            assert abs(value / np.percentile(np.array(part, dtype=np.float32), percent) - 1.0) < 1e-6
        else:
            assert np.isnan(value)
