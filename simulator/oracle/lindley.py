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
SHIFT = 15  # of 23 bits of fraction, 8 are kept
BLOCK = 512
HALVES = 2
RARE_ROWS = 0.25

# Rows of the sums that `advance` keeps, by split.
LATENCY, GOOD, BUSY, MISSED, FIXED, ASKED, KV_MISSED, KV_ASKED = range(8)
SUMS = 8


def lowest_bin(least_ms: float) -> int:
    """Return the number, over all positive floats, of the bin at the power of two below `least_ms`."""
    return int(np.float32(2.0 ** np.floor(np.log2(max(least_ms, 1e-6)))).view(np.int32)) >> SHIFT


def bin_edges_ms(lowest: int) -> NDArray[np.float64]:
    """Return the lower edges of all bins and the upper edge of the last, in ms."""
    return (np.arange(lowest, lowest + BINS + 1, dtype=np.int32) << SHIFT).view(np.float32).astype(np.float64)


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
    free: NDArray[np.float64],
    latency: NDArray[np.float32],
    sums: NDArray[np.float64],
) -> None:
    """Serve the requests span[0]..span[1]-1 at every split.

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
    latency : float32, shape (at least span[1] - span[0], splits)
        Filled.
    sums : float64, shape (SUMS, splits)
        Added to.
    """
    splits = len(free)
    total, good, busy, missed = np.zeros(splits), np.zeros(splits), np.zeros(splits), np.zeros(splits)
    service = np.empty(splits)
    changes = np.zeros((3, splits + 1))
    state_bytes = 0.0
    for now in range(span[0], span[1]):
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
            if begin < end:
                asked, number = rows[place, now], noise[now]
                drawn = (number * np.sqrt(asked), (number * number - 1.0) / 6.0, rare[now])
                _service(begin, end, fixed[place, now], asked, drawn, gather, ratio, deviation, service)
                _add_product(begin, end, asked, ratio, missed)
            begin = end
        waited = latency[now - span[0]]
        _wait(arrival[now], service, free, waited)
        _add(service, busy)
        _add_latency(waited, slo_ms, total, good)
        changes[2, found[0, now]] += kv_bytes[now]
        state_bytes += kv_bytes[now]
    sums[LATENCY] += total
    sums[GOOD] += good
    sums[BUSY] += busy
    sums[MISSED] += missed
    sums[KV_ASKED] += state_bytes
    for row in range(3):
        value = 0.0
        for split in range(splits):
            value += changes[row, split]
            sums[FIXED + row, split] += value


# The loops over splits touch few arrays each: only then does the compiler turn them into vector instructions.


@compiled
def _service(
    begin: int,
    end: int,
    fixed: float,
    asked: float,
    drawn: tuple[float, float, float],
    gather: tuple[float, float],
    ratio: NDArray[np.float64],
    deviation: NDArray[np.float64],
    service: NDArray[np.float64],
) -> None:
    """Set the service times of one request at neighbouring splits.

    Its misses are binomial quantiles to second order (Cornish and Fisher 1938), rounded; below a quarter of a row on average
    there is one or none, with the right mean.
    """
    scale, skew, chance = drawn
    gather_fixed, row_ms = gather
    for split in range(begin, end):
        mean = asked * ratio[split]
        missed = np.floor(mean + scale * deviation[split] + skew * (1.0 - 2.0 * ratio[split]) + 0.5)
        missed = missed if mean >= RARE_ROWS else (1.0 if chance < mean else 0.0)
        missed = missed if missed > 0.0 else 0.0
        missed = missed if missed < asked else asked
        service[split] = fixed + missed * row_ms + (gather_fixed if missed > 0.0 else 0.0)


@compiled
def _add_product(begin: int, end: int, factor: float, values: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
    for split in range(begin, end):
        sums[split] += factor * values[split]


@compiled
def _wait(when: float, service: NDArray[np.float64], free: NDArray[np.float64], latency: NDArray[np.float32]) -> None:
    for split in range(len(free)):
        free_at = free[split]
        done = (free_at if free_at > when else when) + service[split]
        free[split] = done
        latency[split] = done - when


@compiled
def _add(values: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
    for split in range(len(values)):
        sums[split] += values[split]


@compiled
def _add_latency(latency: NDArray[np.float32], slo_ms: float, total: NDArray[np.float64], good: NDArray[np.float64]) -> None:
    for split in range(len(latency)):
        total[split] += latency[split]
        good[split] += 1.0 if latency[split] <= slo_ms else 0.0


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
def tally(
    latency: NDArray[np.float32],
    half: NDArray[np.uint8],
    lowest: int,
    offset: int,
    histogram: NDArray[np.uint32],
    heaps: NDArray[np.float32],
    filled: NDArray[np.int64],
) -> tuple[int, int]:
    """Count latencies, and keep the largest; returns the lowest bin used and one past the highest.

    Parameters
    ----------
    latency : float32, shape (requests, splits)
    half : uint8, shape (requests,)
    lowest, offset : int
        Number of the first bin; place of the first split in the histogram.
    histogram : uint32, shape (HALVES, all splits, BINS)
        Added to.
    heaps : float32, shape (HALVES, splits, most)
        The largest latencies so far, the smallest of them first; `most` must be above the rank that `upper_quantile` reads.
    filled : int64, shape (HALVES,)
        Requests seen so far; moved on.
    """
    bits = latency.view(np.int32)
    bottom, top = BINS, 0
    start = 0
    while start < len(half):
        part, stop = half[start], start + 1
        while stop < len(half) and half[stop] == part:
            stop += 1
        for split in range(latency.shape[1]):
            counts, heap = histogram[part, offset + split], heaps[part, split]
            least, most = _tally_run(latency[start:stop], bits[start:stop], split, lowest, counts, heap, filled[part])
            bottom, top = min(bottom, least), max(top, most)
        filled[part] += stop - start
        start = stop
    return bottom, top + 1


@compiled
def _tally_run(
    latency: NDArray[np.float32],
    bits: NDArray[np.int32],
    split: int,
    lowest: int,
    counts: NDArray[np.uint32],
    heap: NDArray[np.float32],
    seen: int,
) -> tuple[int, int]:
    """Count one split's latencies of a stretch of one half; returns the lowest and the highest bin used."""
    size = len(heap)
    bar = heap[0] if seen >= size else np.float32(-1.0)  # what a latency must exceed to be among the largest
    bottom, top = BINS - 1, 0
    for place in range(latency.shape[0]):
        found = min(max(int(bits[place, split] >> SHIFT) - lowest, 0), BINS - 1)
        counts[np.uint64(found)] += np.uint32(1)
        bottom = min(bottom, found)
        top = max(top, found)
        value = latency[place, split]
        if value > bar:
            if seen < size:
                _rise(heap, seen, value)
                seen += 1
            else:
                _sink(heap, value)
            if seen >= size:
                bar = heap[0]
    return bottom, top


@compiled
def _rise(heap: NDArray[np.float32], place: int, value: float) -> None:
    while place > 0 and heap[(place - 1) // 2] > value:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = value


@compiled
def _sink(heap: NDArray[np.float32], value: float) -> None:
    """Replace the smallest of a full heap."""
    size, place = len(heap), 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value


def heap_size(requests: int, percent: float) -> int:
    """Return how many of the largest latencies have to be known for a quantile of so many requests."""
    return int(max(requests - 1, 0) * (1.0 - percent / 100.0)) + 2


@compiled
def upper_quantile(heaps: NDArray[np.float32], filled: NDArray[np.int64], percent: float) -> NDArray[np.float64]:
    """Return a quantile of both halves and of all from their largest latencies, shape (HALVES + 1, splits); NaN of nothing.

    As `numpy.percentile`. `heaps` and `filled` are those of `tally`.
    """
    splits, most = heaps.shape[1], heaps.shape[2]
    kept = np.minimum(filled, most)
    out = np.full((HALVES + 1, splits), np.nan)
    number = np.array([filled[0], filled[1], filled[0] + filled[1]])
    for split in range(splits):
        first, second = np.sort(heaps[0, split, : kept[0]]), np.sort(heaps[1, split, : kept[1]])
        for part, values in enumerate((first, second, np.sort(np.concatenate((first, second))))):
            if len(values):
                position = (number[part] - 1) * (1.0 - percent / 100.0)
                rank = int(position)
                high = np.float64(values[len(values) - 1 - rank])
                low = np.float64(values[max(len(values) - 2 - rank, 0)])
                out[part, split] = high + (low - high) * (position - rank)
    return out
