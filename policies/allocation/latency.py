"""Percentiles and SLO share from the sparse logarithmic histogram of the engine contract.

Bucket k covers [anchor * 1.02**k, anchor * 1.02**(k + 1)) ms. The anchor is the pool's P99 goal, so one edge lies exactly
there and the share within the goal is a plain count; quantiles are interpolated inside one bucket of two percent.
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.measurement import Fresh, Measurement, Missing

BUCKET_RATIO = 1.02


def delta(after: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int] | None:
    """Return what was counted between two snapshots, without empty buckets.

    Returns
    -------
    dict or None
        None if any bucket fell: the engine restarted in between, and the difference means nothing.
    """
    out = {k: more for k, count in after.items() if (more := count - before.get(k, 0))}
    gone = before.keys() - after.keys()
    if min(out.values(), default=0) < 0 or (gone and any(before[k] for k in gone)):
        return None
    return out


def count(counts: Mapping[int, int]) -> int:
    """Return the number of requests in the histogram."""
    return sum(counts.values())


def quantile(counts: Mapping[int, int], q: float, *, anchor_ms: float, age_ms: float = 0.0) -> Measurement:
    """Return the latency in ms below which the share `q` of requests lies.

    Parameters
    ----------
    counts
        Requests by bucket.
    q
        0..1.
    anchor_ms
        The pool's P99 goal, lower edge of bucket 0.
    age_ms
        Age to stamp on the result.

    Returns
    -------
    Measurement
        `Missing` for an empty histogram.

    Raises
    ------
    ValueError
        If `q` lies outside 0..1 or the anchor is not positive.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError("q must be in 0..1")
    if not anchor_ms > 0.0:
        raise ValueError("anchor_ms must be positive")
    total = count(counts)
    if total <= 0:
        return Missing()
    rank = q * total
    below = 0
    value = 0.0
    for k in sorted(counts):
        here = counts[k]
        if here <= 0:
            continue
        if below + here >= rank:
            low, high = anchor_ms * BUCKET_RATIO**k, anchor_ms * BUCKET_RATIO ** (k + 1)
            value = low + (high - low) * max(rank - below, 0.0) / here
            break
        below += here
    return Fresh(value=value, age_ms=age_ms)


def share_within_slo(counts: Mapping[int, int], *, age_ms: float = 0.0) -> Measurement:
    """Return the share (0..1) of requests faster than the anchor, exactly; `Missing` for an empty histogram."""
    total = count(counts)
    if total <= 0:
        return Missing()
    return Fresh(value=sum(n for k, n in counts.items() if k < 0) / total, age_ms=age_ms)
