"""Percentiles and SLO share from the sparse log histogram."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.allocation.latency import BUCKET_RATIO, count, delta, quantile, share_within_slo
from policies.measurement import Fresh, Missing

ANCHOR = 25.0


def histogram(latencies: list[float]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for latency in latencies:
        k = math.floor(math.log(latency / ANCHOR) / math.log(BUCKET_RATIO))
        counts[k] = counts.get(k, 0) + 1
    return counts


@given(st.lists(st.floats(0.1, 500.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_known_within_one_bucket(latencies: list[float], q: float) -> None:
    value = quantile(histogram(latencies), q, anchor_ms=ANCHOR)
    assert isinstance(value, Fresh)
    exact = float(np.quantile(latencies, q, method="inverted_cdf"))
    assert exact / BUCKET_RATIO * 0.999 <= value.value <= exact * BUCKET_RATIO * 1.001


def test_the_share_within_the_slo_is_exact_because_an_edge_lies_on_it() -> None:
    counts = histogram([24.99, 10.0, 1.0]) | {0: 1}
    assert share_within_slo(counts) == Fresh(value=0.75)


def test_an_empty_histogram_has_no_percentile_rather_than_zero() -> None:
    assert quantile({}, 0.99, anchor_ms=ANCHOR) == Missing()
    assert quantile({3: 0}, 0.99, anchor_ms=ANCHOR) == Missing()
    assert share_within_slo({}) == Missing()


def test_the_difference_of_two_snapshots_holds_what_was_counted_in_between() -> None:
    assert delta({1: 5, 2: 2, 9: 1}, {1: 3, 2: 2}) == {1: 2, 9: 1}
    assert count({1: 2, 9: 1}) == 3


@pytest.mark.parametrize("after", [{1: 2}, {}, {2: 9}])
def test_counts_that_fell_mean_a_restart_and_give_no_difference(after: dict[int, int]) -> None:
    assert delta(after, {1: 3}) is None


@pytest.mark.parametrize(("q", "anchor"), [(1.5, 25.0), (-0.1, 25.0), (0.5, 0.0)])
def test_a_quantile_outside_zero_to_one_or_a_bad_anchor_is_refused(q: float, anchor: float) -> None:
    with pytest.raises(ValueError):
        quantile({0: 1}, q, anchor_ms=anchor)
