"""One pass over some instances of a fleet: caches first, for all splits at once, then the queues, chunk by chunk of windows.

The same generator runs in this process or in others (`parallel`): it needs its instances' columns and nothing else, and what it
yields does not depend on how instances are grouped.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.fleet.config import FleetConfig
from simulator.oracle import lindley
from simulator.oracle.costs import costs
from simulator.oracle.lindley import BINS, HALVES, SUMS
from simulator.oracle.stack import lru_hits, needed_bytes

CHUNK_BYTES = 12 << 20
BLOCKS_PER_WINDOW = 10
P99 = 99.0


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What all instances share: windows of time, and the bytes of both caches at each split (EMB share rising)."""

    start_ms: float
    window_ms: float
    windows: int
    emb_bytes: NDArray[np.int64]
    kv_bytes: NDArray[np.int64]

    @property
    def splits(self) -> int:
        return len(self.emb_bytes)

    @property
    def chunk(self) -> int:
        """Windows that are looked at together; bounds the memory of their histograms."""
        return max(1, CHUNK_BYTES // (HALVES * self.splits * BINS * 4))


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The requests of one instance, in order of arrival, and whom its KV cache holds before the first."""

    instance: int
    arrival_ms: NDArray[np.float64]
    user: NDArray[np.uint32]
    history: NDArray[np.int32]
    candidates: NDArray[np.int32]
    law: NDArray[np.uint8]
    noise: NDArray[np.float64]
    rare: NDArray[np.float64]
    warm_user: NDArray[np.uint32]
    warm_tokens: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A share of the fleet's instances, as it is handed to a process.

    Attributes
    ----------
    step_edges_ms : float64, shape (steps + 1,)
    miss : float64, shape (steps, laws, splits)
        Miss ratios of the EMB cache, alike on all instances.
    """

    config: FleetConfig
    grid: Grid
    rows_per_token: int
    lowest_bin: int
    middle_miss_ratio: float
    step_edges_ms: NDArray[np.float64]
    miss: NDArray[np.float64]
    requests: tuple[Requests, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One chunk of windows of one group.

    Attributes
    ----------
    instances : tuple of int
    first_window : int
    count : int64, shape (instances, windows)
    by_half : int64, shape (windows, HALVES)
        Requests of all instances of the group.
    p99_ms : float64, shape (HALVES + 1, instances, windows, splits)
        Of both halves of each window, and of the whole.
    sums : float64, shape (instances, windows, SUMS, splits)
    histogram : uint32, shape (windows, HALVES, splits, bins)
        Of all instances of the group, from bin `bottom` on.
    bottom : int
    oversized_splits : int
        Splits at which some user does not fit into the KV cache.
    """

    instances: tuple[int, ...]
    first_window: int
    count: NDArray[np.int64]
    by_half: NDArray[np.int64]
    p99_ms: NDArray[np.float64]
    sums: NDArray[np.float64]
    histogram: NDArray[np.uint32]
    bottom: int
    oversized_splits: int


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Neighbouring splits that one run of the queues covers: what requests find and cost there, and when each is free."""

    start: int
    stop: int
    replayed: bool
    found: NDArray[np.int32]
    fixed: NDArray[np.float64]
    rows: NDArray[np.float64]
    miss: NDArray[np.float64]
    spread: NDArray[np.float64]
    free: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance, prepared: its lanes, and where steps and windows begin."""

    requests: Requests
    lanes: tuple[Lane, ...]
    half: NDArray[np.uint8]
    step: NDArray[np.int32]
    written: NDArray[np.float64]
    bounds: NDArray[np.int64]


def parts(group: Group) -> Iterator[Part]:
    """Yield the chunks of windows of a group, in order of time."""
    grid = group.grid
    prepared = [prepare(group, requests) for requests in group.requests]
    for first in range(0, grid.windows, grid.chunk):
        yield _part(group, prepared, first, min(first + grid.chunk, grid.windows))


def prepare(group: Group, requests: Requests) -> Instance:
    """Look up every request of one instance in both caches at every split."""
    grid = group.grid
    bounds = np.searchsorted(requests.arrival_ms, grid.start_ms + grid.window_ms * np.arange(grid.windows + 1))
    bounds[-1] = len(requests.arrival_ms)
    block = np.floor((requests.arrival_ms - grid.start_ms) / (grid.window_ms / BLOCKS_PER_WINDOW))
    return Instance(
        requests=requests,
        lanes=tuple(lanes_of(group, requests)),
        half=(block.astype(np.int64) & 1).astype(np.uint8),
        step=steps_of(requests.arrival_ms, group.step_edges_ms),
        written=_bytes_of(group.config, requests.history.astype(np.int64)).astype(np.float64),
        bounds=bounds,
    )


def steps_of(arrival_ms: NDArray[np.float64], edges_ms: NDArray[np.float64]) -> NDArray[np.int32]:
    """Return in which step of time each request arrives; the last step takes what comes after it, too."""
    step = np.searchsorted(edges_ms, arrival_ms, side="right") - 1
    return np.clip(step, 0, len(edges_ms) - 2).astype(np.int32)


def lanes_of(group: Group, requests: Requests) -> Iterator[Lane]:
    """Yield all splits whose KV cache holds the largest user in one lane, and each of the rest in one of its own.

    Where the largest user does not fit, the KV cache is no stack any more and is replayed.
    """
    grid, config, warm = group.grid, group.config, len(requests.warm_user)
    tokens = np.concatenate((requests.warm_tokens, requests.history)).astype(np.int64)
    size = _bytes_of(config, tokens)
    names, user = np.unique(np.concatenate((requests.warm_user, requests.user)), return_inverse=True)
    user = user.reshape(-1).astype(np.int64)
    need, previous = needed_bytes(user, size, users=len(names))
    cached = np.where(previous >= 0, np.minimum(tokens[previous], tokens), 0)[warm:]
    need = need[warm:]
    fitting = int(np.count_nonzero(grid.kv_bytes >= size.max(initial=0)))
    if fitting:
        yield _lane(group, requests, slice(0, fitting), cached, _splits_with(grid.kv_bytes[:fitting], need), need, False)
    for split in range(fitting, grid.splits):
        hit = lru_hits(user, tokens, size, len(names), int(grid.kv_bytes[split]))[warm:]
        found = (hit > 0).astype(np.int32)
        yield _lane(group, requests, slice(split, split + 1), np.where(found, hit, cached), found, need, True)


def _lane(
    group: Group,
    requests: Requests,
    splits: slice,
    cached: NDArray[np.int64],
    in_hbm: NDArray[np.int32],
    need: NDArray[np.int64],
    replayed: bool,
) -> Lane:
    config, kv_bytes = group.config, group.grid.kv_bytes[splits]
    cost = costs(
        config,
        history=requests.history.astype(np.int64),
        candidates=requests.candidates.astype(np.int64),
        cached=cached,
        rows_per_token=group.rows_per_token,
        miss_ratio=group.middle_miss_ratio,
    )
    on_host = np.maximum(in_hbm, _splits_with(kv_bytes + config.host_bytes, need)) if config.host_bytes else in_hbm
    below = config.host_bytes + config.ssd_bytes
    anywhere = np.maximum(on_host, _splits_with(kv_bytes + below, need)) if config.ssd_bytes else on_host
    miss = np.ascontiguousarray(group.miss[:, :, splits])
    return Lane(
        start=splits.start,
        stop=splits.stop,
        replayed=replayed,
        found=np.stack((in_hbm, on_host, anywhere)),
        fixed=cost.fixed_ms,
        rows=cost.rows,
        miss=miss,
        spread=np.sqrt(miss * (1.0 - miss)),
        free=np.zeros(splits.stop - splits.start),
    )


def _splits_with(kv_bytes: NDArray[np.int64], need: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return for each request how many leading splits have the bytes that it needs; `kv_bytes` falls."""
    return np.searchsorted(-kv_bytes, -need, side="right").astype(np.int32)


def _bytes_of(config: FleetConfig, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-tokens // config.page_tokens) * config.page_bytes


def _part(group: Group, prepared: list[Instance], first: int, last: int) -> Part:
    grid = group.grid
    shape = (len(prepared), last - first)
    count = np.zeros(shape, dtype=np.int64)
    ones = np.zeros(last - first, dtype=np.int64)
    p99 = np.full((HALVES + 1, *shape, grid.splits), np.nan)
    sums = np.zeros((*shape, SUMS, grid.splits))
    histogram = np.zeros((last - first, HALVES, grid.splits, BINS), dtype=np.uint32)
    lowest, highest = BINS, 0
    for place, instance in enumerate(prepared):
        bounds = instance.bounds[first : last + 1]
        count[place] = np.diff(bounds)
        ones += np.diff(np.concatenate(([0], np.cumsum(instance.half, dtype=np.int64)))[bounds])
    # Window by window, so that one histogram at a time is in the machine's caches.
    for window in range(last - first):
        for place, instance in enumerate(prepared):
            for lane in instance.lanes:
                outcome = _run_lane(group, instance, lane, first + window, histogram[window])
                p99[:, place, window, lane.start : lane.stop] = outcome.p99_ms
                sums[place, window, :, lane.start : lane.stop] = outcome.sums
                lowest, highest = min(lowest, outcome.bottom), max(highest, outcome.top)
    lowest = min(lowest, highest)
    return Part(
        instances=tuple(instance.requests.instance for instance in prepared),
        first_window=first,
        count=count,
        by_half=np.stack((count.sum(axis=0) - ones, ones), axis=1),
        p99_ms=p99,
        sums=sums,
        histogram=histogram[..., lowest:highest],
        bottom=lowest,
        oversized_splits=max((sum(lane.replayed for lane in instance.lanes) for instance in prepared), default=0),
    )


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """One window of one lane: P99 of halves and whole, sums, and the bins used."""

    p99_ms: NDArray[np.float64]
    sums: NDArray[np.float64]
    bottom: int
    top: int


def _run_lane(group: Group, instance: Instance, lane: Lane, window: int, histogram: NDArray[np.uint32]) -> _Outcome:
    """Run one lane through one window; `histogram` of shape (HALVES, splits, BINS) is added to."""
    requests, service = instance.requests, group.config.service
    gather = (service.gather_fixed_ms, service.row_bytes / (service.link_bytes_per_second * service.gather_efficiency) * 1e3)
    begin, end = int(instance.bounds[window]), int(instance.bounds[window + 1])
    sums = np.zeros((SUMS, lane.stop - lane.start))
    filled = np.zeros(HALVES, dtype=np.int64)
    heaps = np.zeros((HALVES, lane.stop - lane.start, lindley.heap_size(end - begin, P99)), dtype=np.float32)
    latency = np.empty((min(lindley.BLOCK, end - begin), lane.stop - lane.start), dtype=np.float32)
    lowest, highest = BINS, 0
    for block in range(begin, end, lindley.BLOCK):
        span = (block, min(block + lindley.BLOCK, end))
        lindley.advance(
            requests.arrival_ms,
            instance.step,
            requests.law,
            lane.found,
            lane.fixed,
            lane.rows,
            instance.written,
            requests.noise,
            requests.rare,
            span,
            lane.miss,
            lane.spread,
            gather,
            group.config.slo_ms,
            lane.free,
            latency,
            sums,
        )
        half = instance.half[span[0] : span[1]]
        bottom, top = lindley.tally(latency[: len(half)], half, group.lowest_bin, lane.start, histogram, heaps, filled)
        lowest, highest = min(lowest, bottom), max(highest, top)
    return _Outcome(p99_ms=lindley.upper_quantile(heaps, filled, P99), sums=sums, bottom=lowest, top=highest)
