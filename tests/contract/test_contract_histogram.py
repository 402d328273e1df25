"""Buckets: an exact edge at the SLO, two percent wide, every latency in one of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.histogram import BUCKET_RATIO, MAX_BUCKET, MIN_BUCKET, LatencyRecorder, bucket_of

ANCHORS = st.floats(0.01, 1e5)
LATENCIES = st.floats(1e-3, 1e7)


@given(latency=LATENCIES, anchor=ANCHORS)
def test_a_latency_lies_within_the_edges_of_its_bucket(latency: float, anchor: float) -> None:
    bucket = bucket_of(latency, anchor_ms=anchor)
    if MIN_BUCKET < bucket < MAX_BUCKET:
        low = anchor * BUCKET_RATIO**bucket
        assert low * (1 - 1e-9) <= latency <= low * BUCKET_RATIO * (1 + 1e-9)


@given(anchor=ANCHORS, latency=LATENCIES)
def test_the_slo_is_an_exact_edge(anchor: float, latency: float) -> None:
    assert bucket_of(anchor, anchor_ms=anchor) == 0
    assert bucket_of(math.nextafter(anchor, 0.0), anchor_ms=anchor) == -1
    assert (bucket_of(latency, anchor_ms=anchor) >= 0) == (latency >= anchor)


@given(one=LATENCIES, other=LATENCIES, anchor=ANCHORS)
def test_a_larger_latency_never_lies_in_a_lower_bucket(one: float, other: float, anchor: float) -> None:
    low, high = sorted((one, other))
    assert bucket_of(low, anchor_ms=anchor) <= bucket_of(high, anchor_ms=anchor)


@pytest.mark.parametrize("latency", [0.0, -1.0, math.nan, 1e-300])
def test_nonsense_lands_in_the_lowest_bucket(latency: float) -> None:
    assert bucket_of(latency, anchor_ms=100.0) == MIN_BUCKET


@pytest.mark.parametrize("latency", [1e300, math.inf])
def test_an_endless_latency_lands_in_the_highest_bucket(latency: float) -> None:
    assert bucket_of(latency, anchor_ms=100.0) == MAX_BUCKET


@given(latencies=st.lists(LATENCIES, max_size=50))
def test_counts_add_up_and_snapshots_do_not_change_afterwards(latencies: list[float]) -> None:
    recorder = LatencyRecorder(anchor_ms=50.0)
    before = recorder.snapshot()
    for latency in latencies:
        recorder.record(latency)
    assert before.counts == {}
    counts = recorder.snapshot().counts
    assert sum(counts.values()) == len(latencies)
    assert sum(count for bucket, count in counts.items() if bucket < 0) == sum(latency < 50.0 for latency in latencies)


@pytest.mark.parametrize("anchor", [0.0, -1.0, math.inf, math.nan])
def test_an_anchor_that_is_no_latency_is_refused(anchor: float) -> None:
    with pytest.raises(ValueError, match="anchor_ms"):
        LatencyRecorder(anchor_ms=anchor)
