"""Quantiles read off a histogram are those of the values in it, to within a bin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.oracle.lindley import BINS, SHIFT, bin_edges_ms, lowest_bin, pour, quantiles

LOWEST = lowest_bin(1.0)
BIN_WIDTH = 1 / 256


def counted(values: list[list[float]]) -> np.ndarray:
    out = np.zeros((2, 1, BINS), dtype=np.uint32)
    for half, latencies in enumerate(values):
        places = (np.array(latencies, dtype=np.float64).view(np.int64) >> SHIFT) - LOWEST
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


def test_pouring_moves_all_counts_and_empties_the_source() -> None:
    source, target = counted([[1.0, 2.0, 2.0], [50.0]]), np.zeros((2, 3, BINS), dtype=np.uint32)
    pour(source, target, 1, 0, BINS)
    assert source.sum() == 0
    assert target[:, 1].sum(axis=1).tolist() == [3, 1]
    assert target[:, [0, 2]].sum() == 0
