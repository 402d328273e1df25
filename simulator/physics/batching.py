"""Batching: a window opens with the first request of a length bucket and closes when it is over or the batch is full.

Requests of one batch have new tokens in the same bucket and are padded to its edge, as kernels with captured shapes need it. One
server takes batches in the order in which they became ready; while it is busy, batches keep filling.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simulator.physics.service import Work

#: New tokens (history without its cached part, and candidates) of the captured shapes of NVIDIA's HSTU benchmark.
HSTU_BUCKETS = (384, 512, 768, 1280, 2304, 4352)


@dataclass(frozen=True, kw_only=True)
class BatchRules:
    """How requests are put together.

    Parameters
    ----------
    window_ms : float
        Longest time that the first request of a batch waits for others; 0 serves each as it comes, if the server is free.
    max_requests : int
    bucket_edges_tokens : tuple of int
        Rising upper edges. Requests above the last one are batched together and padded to the longest of them.

    Raises
    ------
    ValueError
        For edges that do not rise, a negative window or no room for a request.
    """

    window_ms: float = 3.0
    max_requests: int = 8
    bucket_edges_tokens: tuple[int, ...] = HSTU_BUCKETS

    def __post_init__(self) -> None:
        edges = self.bucket_edges_tokens
        if not self.window_ms >= 0:
            raise ValueError(f"window_ms: {self.window_ms} must not be negative")
        if self.max_requests < 1:
            raise ValueError(f"max_requests: {self.max_requests} must be at least 1")
        if not edges or edges[0] < 1 or any(low >= high for low, high in itertools.pairwise(edges)):
            raise ValueError(f"bucket_edges_tokens: {edges} must be positive and rise")

    def bucket_of(self, new_tokens: int) -> int:
        """Index of the bucket; one more than there are edges means longer than all of them."""
        return bisect_left(self.bucket_edges_tokens, new_tokens)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One request at the door of the server."""

    request: int
    arrival_ms: float
    work: Work


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Requests that run together."""

    bucket: int
    ready_ms: float
    arrivals: tuple[Arrival, ...]
    padded_tokens: int

    @property
    def works(self) -> list[Work]:
        return [arrival.work for arrival in self.arrivals]

    @property
    def new_tokens(self) -> int:
        return sum(work.new_tokens for work in self.works)

    @property
    def padding_share(self) -> float:
        """Padded tokens that are no tokens, as a share of what is computed."""
        return 1.0 - self.new_tokens / self.padded_tokens if self.padded_tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """A batch with the times at which it ran."""

    batch: Batch
    start_ms: float
    finish_ms: float


class Batcher:
    """Open batches of one server, by bucket."""

    def __init__(self, rules: BatchRules) -> None:
        self.rules = rules
        self._waiting: dict[int, list[Arrival]] = {}

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def add(self, arrival: Arrival) -> None:
        """Let a request wait in its bucket; arrivals come in order of time."""
        self._waiting.setdefault(self.rules.bucket_of(arrival.work.new_tokens), []).append(arrival)

    def next_ready_ms(self) -> float | None:
        """Earliest time at which a batch may start; None when nobody waits."""
        return min((self._ready_ms(waiting) for waiting in self._waiting.values()), default=None)

    def take(self, now_ms: float) -> Batch | None:
        """Take the batch that has been ready longest, if one is ready at `now_ms`; equal times go to the shorter bucket."""
        ready = [(self._ready_ms(waiting), bucket) for bucket, waiting in self._waiting.items()]
        if not ready or min(ready)[0] > now_ms:
            return None
        since, bucket = min(ready)
        waiting = self._waiting[bucket]
        chosen, rest = waiting[: self.rules.max_requests], waiting[self.rules.max_requests :]
        if rest:
            self._waiting[bucket] = rest
        else:
            del self._waiting[bucket]
        edges = self.rules.bucket_edges_tokens
        longest = max(arrival.work.new_tokens for arrival in chosen)
        padded = len(chosen) * (edges[bucket] if bucket < len(edges) else longest)
        return Batch(bucket=bucket, ready_ms=since, arrivals=tuple(chosen), padded_tokens=padded)

    def _ready_ms(self, waiting: list[Arrival]) -> float:
        closes = waiting[0].arrival_ms + self.rules.window_ms
        full = len(waiting) >= self.rules.max_requests
        return min(closes, waiting[self.rules.max_requests - 1].arrival_ms) if full else closes


def serve(arrivals: Iterable[Arrival], *, rules: BatchRules, batch_ms: Callable[[Batch], float]) -> list[Served]:
    """Run all arrivals through one batching server.

    Parameters
    ----------
    arrivals : iterable of Arrival
        In order of time.
    rules : BatchRules
    batch_ms : callable
        Service time of a batch, for instance ``law.compute_ms(batch.works, padded_tokens=batch.padded_tokens)``.

    Raises
    ------
    ValueError
        When arrivals are out of order.
    """
    batcher, served, free_ms, last_ms = Batcher(rules), list[Served](), 0.0, 0.0
    for arrival in arrivals:
        if arrival.arrival_ms < last_ms:
            raise ValueError(f"request {arrival.request}: arrives at {arrival.arrival_ms} ms, after one at {last_ms} ms")
        last_ms = arrival.arrival_ms
        free_ms = _run(batcher, served, free_ms=free_ms, before_ms=last_ms, batch_ms=batch_ms)
        batcher.add(arrival)
    _run(batcher, served, free_ms=free_ms, before_ms=float("inf"), batch_ms=batch_ms)
    return served


def _run(
    batcher: Batcher, served: list[Served], *, free_ms: float, before_ms: float, batch_ms: Callable[[Batch], float]
) -> float:
    """Start every batch that can start before that time; return when the server is free again."""
    while (ready := batcher.next_ready_ms()) is not None and max(ready, free_ms) < before_ms:
        start = max(ready, free_ms)
        batch = batcher.take(start)
        assert batch is not None, "a batch is ready at its own ready time"
        free_ms = start + batch_ms(batch)
        served.append(Served(batch=batch, start_ms=start, finish_ms=free_ms))
    return free_ms
