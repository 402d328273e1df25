"""Latency histogram of the engine contract: fixed logarithmic buckets, two percent wide, with an edge at the SLO.

Bucket k covers [anchor * 1.02**k, anchor * 1.02**(k+1)) milliseconds, where the anchor is the pool's `p99Ms`; so the share of
requests within the SLO is exact, and a quantile is known within two percent. Counts only grow; readers subtract snapshots.
"""

import math
from typing import Annotated

import msgspec

BUCKET_RATIO = 1.02
MIN_BUCKET = -600
MAX_BUCKET = 600
_LOG_RATIO = math.log(BUCKET_RATIO)


class LatencyHistogram(msgspec.Struct, frozen=True, rename="camel"):
    """Snapshot of a histogram: `counts[k]` requests fell into bucket k since the engine started."""

    anchor_ms: Annotated[float, msgspec.Meta(le=1e9)]
    counts: dict[Annotated[int, msgspec.Meta(ge=MIN_BUCKET, le=MAX_BUCKET)], Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]]


class LatencyRecorder:
    """Mutable side of the histogram, owned by the engine."""

    def __init__(self, *, anchor_ms: float) -> None:
        if not (anchor_ms > 0 and math.isfinite(anchor_ms)):
            raise ValueError(f"anchor_ms: {anchor_ms} is not a positive number of milliseconds")
        self.anchor_ms = anchor_ms
        self._counts: dict[int, int] = {}

    def record(self, latency_ms: float) -> None:
        """Count one request; a latency of zero or less lands in the lowest bucket."""
        bucket = bucket_of(latency_ms, anchor_ms=self.anchor_ms)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def snapshot(self) -> LatencyHistogram:
        return LatencyHistogram(anchor_ms=self.anchor_ms, counts=dict(self._counts))


def bucket_of(latency_ms: float, *, anchor_ms: float) -> int:
    """Return the bucket of a latency, clipped to [MIN_BUCKET, MAX_BUCKET]; NaN lands in the lowest, infinity in the highest."""
    if not latency_ms > 0:
        return MIN_BUCKET
    if math.isinf(latency_ms):
        return MAX_BUCKET
    ratio = latency_ms / anchor_ms
    bucket = math.floor(math.log(ratio) / _LOG_RATIO)
    if ratio < 1.0:  # the edge at the SLO is exact, however the logarithm was rounded
        bucket = min(bucket, -1)
    return max(MIN_BUCKET, min(MAX_BUCKET, bucket))
