"""Queues of one instance at all splits side by side: the same requests, the same random numbers, one latency histogram a split.

Lindley's recursion: a request starts when it has arrived and the one before is done. The misses of a request are a binomial
quantile at one number a request, the same at all splits, so that these differ by what they hold and by nothing else.
Bins are 1/256 of an octave wide, that is at most 0.4 %; their number is read off the bits of the latency.
"""

import math

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled
from simulator.oracle.costs import NOWHERE, PLACES

BINS = 4096
SHIFT = 44  # of 52 bits of fraction, 8 are kept
HALVES = 2
RARE_ROWS = 0.25

# Rows of the sums that `advance` keeps, by split.
LATENCY, GOOD, BUSY, MISSED, FIXED, ASKED, KV_MISSED, KV_ASKED = range(8)
SUMS = 8


def lowest_bin(least_ms: float) -> int:
    """Return the number, over all positive floats, of the bin at the power of two below `least_ms`."""
    return int(np.float64(2.0 ** np.floor(np.log2(max(least_ms, 1e-6)))).view(np.int64)) >> SHIFT


def bin_edges_ms(lowest: int) -> NDArray[np.float64]:
    """Return the lower edges of all bins and the upper edge of the last, in ms."""
    return (np.arange(lowest, lowest + BINS + 1, dtype=np.int64) << SHIFT).view(np.float64)


@compiled
def chance_above(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the chance that a standard normal number is above each value."""
    out = np.empty(len(values))
    for place in range(len(values)):
        out[place] = math.erfc(values[place] / math.sqrt(2.0)) / 2.0
    return out


@compiled
def advance(
    arrival: NDArray[np.float64],
    half: NDArray[np.uint8],
    step: NDArray[np.int32],
    law: NDArray[np.uint8],
    found: NDArray[np.int32],
    fixed: NDArray[np.float64],
    rows: NDArray[np.float64],
    kv_bytes: NDArray[np.float64],
    noise: NDArray[np.float64],
    rare: NDArray[np.float64],
    span: tuple[int, int],
    miss: NDArray[np.float64],
    spread: NDArray[np.float64],
    gather: tuple[float, float],
    slo_ms: float,
    lowest: int,
    free: NDArray[np.float64],
    histogram: NDArray[np.uint32],
    sums: NDArray[np.float64],
) -> tuple[int, int]:
    """Serve the requests span[0]..span[1]-1 at every split; returns the lowest bin used and one past the highest.

    Parameters
    ----------
    found : int32, shape (PLACES - 1, requests)
        Number of leading splits (EMB share rising) at which the user's state is in HBM, in HBM or on the host, anywhere.
    fixed, rows : float64, shape (PLACES, requests)
        As `Costs`.
    kv_bytes : float64, shape (requests,)
        State of the user, which a miss writes into the KV cache.
    noise, rare : float64, shape (requests,)
        Standard normal numbers, and the chance that such a number is above each.
    miss, spread : float64, shape (steps, laws, splits)
        Chance p that a look-up misses, and sqrt(p (1 - p)).
    gather : (float, float)
        Fixed milliseconds of a gather, and milliseconds of each row.
    free : float64, shape (splits,)
        When the server of each split is free; moved on.
    histogram : uint32, shape (HALVES, splits, BINS)
        Added to.
    sums : float64, shape (SUMS, splits)
        Added to.
    """
    splits = len(free)
    latency = np.empty(splits)
    bits = latency.view(np.int64)
    total, good, busy, missed_rows = np.zeros(splits), np.zeros(splits), np.zeros(splits), np.zeros(splits)
    changes = np.zeros((3, splits + 1))
    bottom, top = BINS, 0
    state_bytes = 0.0
    for now in range(span[0], span[1]):
        when = arrival[now]
        ratio, deviation = miss[step[now], law[now]], spread[step[now], law[now]]
        begin = 0
        for place in range(PLACES):
            end = found[place, now] if place < NOWHERE else splits
            if place:
                changes[0, begin] += fixed[place, now] - fixed[place - 1, now]
                changes[1, begin] += rows[place, now] - rows[place - 1, now]
            else:
                changes[0, 0] += fixed[0, now]
                changes[1, 0] += rows[0, now]
            asked = rows[place, now]
            _serve(
                begin,
                end,
                when,
                fixed[place, now],
                asked,
                (noise[now] * np.sqrt(asked), (noise[now] * noise[now] - 1.0) / 6.0, rare[now]),
                ratio,
                deviation,
                gather,
                slo_ms,
                free,
                latency,
                total,
                good,
                busy,
                missed_rows,
            )
            begin = end
        changes[2, found[0, now]] += kv_bytes[now]
        state_bytes += kv_bytes[now]
        counts = histogram[half[now]]
        for split in range(splits):
            place = (bits[split] >> SHIFT) - lowest
            place = min(max(place, 0), BINS - 1)
            counts[split, place] += np.uint32(1)
            bottom = min(bottom, place)
            top = max(top, place + 1)
    sums[LATENCY] += total
    sums[GOOD] += good
    sums[BUSY] += busy
    sums[MISSED] += missed_rows
    sums[KV_ASKED] += state_bytes
    for row in range(3):
        value = 0.0
        for split in range(splits):
            value += changes[row, split]
            sums[FIXED + row, split] += value
    return bottom, top


@compiled
def _serve(
    begin: int,
    end: int,
    when: float,
    fixed: float,
    asked: float,
    noise: tuple[float, float, float],
    ratio: NDArray[np.float64],
    deviation: NDArray[np.float64],
    gather: tuple[float, float],
    slo_ms: float,
    free: NDArray[np.float64],
    latency: NDArray[np.float64],
    total: NDArray[np.float64],
    good: NDArray[np.float64],
    busy: NDArray[np.float64],
    missed_rows: NDArray[np.float64],
) -> None:
    """Serve one request at neighbouring splits.

    Its misses are binomial quantiles to second order (Cornish and Fisher 1938), rounded; below a quarter of a row on average
    there is one or none, with the right mean.
    """
    scale, skew, chance = noise
    gather_fixed, row_ms = gather
    for split in range(begin, end):
        mean = asked * ratio[split]
        missed = np.floor(mean + scale * deviation[split] + skew * (1.0 - 2.0 * ratio[split]) + 0.5)
        missed = missed if mean >= RARE_ROWS else (1.0 if chance < mean else 0.0)
        missed = missed if missed > 0.0 else 0.0
        missed = missed if missed < asked else asked
        service = fixed + missed * row_ms + (gather_fixed if missed > 0.0 else 0.0)
        free_at = free[split]
        done = (free_at if free_at > when else when) + service
        free[split] = done
        waited = done - when
        latency[split] = waited
        total[split] += waited
        good[split] += 1.0 if waited <= slo_ms else 0.0
        busy[split] += service
        missed_rows[split] += missed


@compiled
def quantiles(
    histogram: NDArray[np.uint32], bottom: int, counts: tuple[int, int], edges: NDArray[np.float64], percent: float
) -> NDArray[np.float64]:
    """Return a quantile of both halves and of all, shape (HALVES + 1, splits); NaN of nothing.

    Between the two nearest requests as `numpy.percentile` does it, each placed within its bin by its rank there.

    Parameters
    ----------
    histogram : uint32, shape (HALVES, splits, bins)
        From bin `bottom` on.
    counts : (int, int)
        Requests in each half, at every split.
    """
    splits, bins = histogram.shape[1], histogram.shape[2]
    out = np.full((HALVES + 1, splits), np.nan)
    number = np.array([counts[0], counts[1], counts[0] + counts[1]])
    # Counted from the top: the request just above the quantile, and the share of the way to the one below.
    upper = np.zeros(HALVES + 1, dtype=np.int64)
    share = np.zeros(HALVES + 1)
    for part in range(HALVES + 1):
        position = max(number[part] - 1, 0) * (1.0 - percent / 100.0)
        upper[part] = int(position)
        share[part] = position - upper[part]
    for split in range(splits):
        seen, here = np.zeros(HALVES + 1, dtype=np.int64), np.zeros(HALVES + 1, dtype=np.int64)
        left = np.count_nonzero(number)
        place = bins - 1
        while left > 0 and place >= 0:
            first, second = np.int64(histogram[0, split, place]), np.int64(histogram[1, split, place])
            if first or second:
                here[0], here[1], here[2] = first, second, first + second
                low, high = edges[bottom + place], edges[bottom + place + 1]
                for part in range(HALVES + 1):
                    rank = upper[part] - seen[part]
                    if 0 <= rank < here[part]:
                        out[part, split] = high - (high - low) * (rank + 0.5) / here[part]
                        left -= upper[part] + 1 >= number[part]
                    if 0 <= rank + 1 < here[part]:
                        value = high - (high - low) * (rank + 1.5) / here[part]
                        out[part, split] += (value - out[part, split]) * share[part]
                        left -= 1
                    seen[part] += here[part]
            place -= 1
    return out


@compiled
def pour(source: NDArray[np.uint32], target: NDArray[np.uint32], offset: int, bottom: int, top: int) -> None:
    """Add the bins bottom..top-1 of `source` to `target`, whose splits begin at `offset`, and empty them."""
    for half in range(source.shape[0]):
        for split in range(source.shape[1]):
            for place in range(bottom, top):
                target[half, offset + split, place] += source[half, split, place]
                source[half, split, place] = 0
