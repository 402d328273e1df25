"""How far the miss-ratio curves of the estimator are from exact LRU, on real streams and on Zipf rows.

Exact means every access through an LRU cache, at eight capacities from half a percent to 80 percent of all that the stream
holds. The real streams are the users of the public conversation trace, whose state grows from visit to visit, and its blocks; of
both the last 40 percent of time and the keys that first come then, on which nothing was chosen. "mean" is the mean error over the
capacities: median, least and greatest over hash samples that have nothing in common. "max" is the worst single point of all. The
baseline of the same run is the correction for hot keys alone (SHARDS-adj), on the same samples. "Exact LRU of the sample" keeps
every sampled access, so it shows how much of the error lies in the sample and not in how it is used.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.report import Result, publish, single, summarise
from contract.samples import sampling_of
from dataplane.agent.estimate import TABLE_ENTRIES
from policies.allocation.estimator import ROWS_SPREAD, USERS_SPREAD, ReuseTimeEstimator, mix64, sample_mask
from simulator.tiers.visits import visits_of_events
from simulator.traces import load_mooncake, user_events
from simulator.workloads.parts import Part, own_requests

TRACE = Path(__file__).resolve().parent.parent / "traces" / "mooncake_conversation.jsonl"
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
MEAN_GOAL, MAX_GOAL = 0.02, 0.05
BYTES_GOAL = 4 << 20
INGEST_GOAL_NS = 400.0
TICK_MS = 3000.0
BATCH = 2000
HOT_KEYS_ONLY = 0.0


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Accesses in order of time."""

    keys: NDArray[np.int64]
    t_ms: NDArray[np.float64]
    sizes: NDArray[np.float64]

    @cached_property
    def distinct(self) -> int:
        return len(np.unique(self.keys))

    @cached_property
    def exact(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Capacities, and the miss ratio by bytes at each."""
        last = dict(zip(self.keys.tolist(), self.sizes.tolist(), strict=True))
        capacities = np.array([share * sum(last.values()) for share in SHARES])
        return capacities, np.array([self._missed(capacity) for capacity in capacities])

    def _missed(self, capacity: float) -> float:
        """A state that is found counts as found, all of it, though it has grown since."""
        cache: OrderedDict[int, float] = OrderedDict()
        used = missed = 0.0
        for key, size in zip(self.keys.tolist(), self.sizes.tolist(), strict=True):
            held = cache.pop(key, 0.0)
            missed += 0.0 if held else size
            cache[key] = size
            used += size - held
            while used > capacity:
                used -= cache.popitem(last=False)[1]
        return missed / float(self.sizes.sum())

    def errors(self, *, one_in: int, sample: int, spread: float) -> NDArray[np.float64]:
        """Distance from the exact miss ratio at each capacity; `sample` picks one of many independent samples of the keys."""
        hashed = self._hashed(sample)
        estimator = ReuseTimeEstimator(sample_rate=1.0 / one_in, ordinary_spread=spread, decay_ms=math.inf)
        for start in range(0, len(hashed), BATCH):
            part = slice(start, start + BATCH)
            mask = sample_mask(hashed[part], 1.0 / one_in)
            estimator.ingest(
                hashed[part][mask],
                self.t_ms[part][mask],
                self.sizes[part][mask],
                asked_bytes=float(self.sizes[part].sum()),
                now_ms=float(self.t_ms[part][-1]),
            )
        capacities, exact = self.exact
        return np.abs(estimator.curve(capacities) - exact)

    def errors_of_whole_sample(self, *, one_in: int, sample: int, lack_hits: bool) -> NDArray[np.float64]:
        """The same for an LRU cache of a size in proportion that sees the sampled accesses only, and forgets nothing of them.

        It knows how deep each sampled state lay, where the estimator knows how long ago it was asked for and in which bin.
        With `lack_hits` what the sample lacks counts as found at once (SHARDS-adj), else as the sample itself.
        """
        mask = sample_mask(self._hashed(sample), 1.0 / one_in)
        seen = Stream(keys=self.keys[mask], t_ms=self.t_ms[mask], sizes=self.sizes[mask])
        capacities, exact = self.exact
        found = np.array([seen._missed(capacity / one_in) for capacity in capacities])
        if lack_hits:
            found = np.clip(found * one_in * seen.sizes.sum() / self.sizes.sum(), 0.0, 1.0)
        return np.asarray(np.abs(found - exact), dtype=np.float64)

    def _hashed(self, sample: int) -> NDArray[np.uint64]:
        return mix64(mix64(self.keys.astype(np.uint64)) ^ mix64(np.full(1, sample, dtype=np.uint64)))


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    samples = range(seed, seed + (3 if quick else 12))
    users, blocks = held_out_users(), held_out_blocks()
    chosen = sampling_of(users.distinct)
    results = [
        *_compared(f"users, one in {chosen} as their number asks for", users, chosen, samples, USERS_SPREAD),
        *_compared("users, one in 2", users, 2, samples, USERS_SPREAD),
        *_compared("users, one in 16", users, 16, samples, USERS_SPREAD),
        *_whole_sample("users, one in 16", users, samples, lack_hits=False),
        *_compared("blocks, one in 16", blocks, 16, samples, ROWS_SPREAD),
        *_whole_sample("blocks, one in 16", blocks, samples, lack_hits=False),
    ]
    for alpha in (0.9,) if quick else (0.7, 0.9, 1.05):
        name, rows = f"Zipf {alpha} rows, one in 16", zipf_rows(alpha, seed=seed)
        results += _compared(name, rows, 16, samples, ROWS_SPREAD) + _whole_sample(name, rows, samples, lack_hits=True)
    results += [*_costs(quick=quick, seed=seed)]
    publish("estimator", results, seed=seed, quick=quick, as_json=as_json, notes=__doc__ or "")


def _compared(name: str, stream: Stream, one_in: int, samples: Sequence[int], spread: float) -> list[Result]:
    """Mean and greatest error over samples; with all keys there is but one sample."""
    few = samples if one_in > 1 else samples[:1]

    def errors(law: float) -> NDArray[np.float64]:
        return np.array([stream.errors(one_in=one_in, sample=sample, spread=law) for sample in few])

    found, before = errors(spread), errors(HOT_KEYS_ONLY)
    return [
        summarise(f"{name}: mean", found.mean(axis=1).tolist(), unit="miss ratio", baseline=float(before.mean()), goal=MEAN_GOAL),
        single(f"{name}: max", float(found.max()), "miss ratio", baseline=float(before.max()), goal=MAX_GOAL),
    ]


def _whole_sample(name: str, stream: Stream, samples: Sequence[int], *, lack_hits: bool) -> list[Result]:
    """What the very same samples give to somebody who keeps every access of them; `lack_hits` as suits the stream better."""
    found = np.array([stream.errors_of_whole_sample(one_in=16, sample=sample, lack_hits=lack_hits) for sample in samples])
    return [
        summarise(f"{name}, exact LRU of the sample: mean", found.mean(axis=1).tolist(), unit="miss ratio"),
        single(f"{name}, exact LRU of the sample: max", float(found.max()), "miss ratio"),
    ]


def _costs(*, quick: bool, seed: int) -> list[Result]:
    """Bytes of one instance's two estimators, and processor time an access, at 500 sampled rows a batch."""
    estimators = [ReuseTimeEstimator(sample_rate=1 / 16, table_entries=TABLE_ENTRIES) for _ in range(2)]
    held = sum(estimator.memory_bytes for estimator in estimators)
    rng = np.random.default_rng(seed)
    ranks = np.cumsum(np.arange(1, 200_001) ** -0.9)
    batches = 200 if quick else 1000
    keys = [mix64(np.searchsorted(ranks / ranks[-1], rng.random(500)).astype(np.uint64)) for _ in range(batches)]
    times = [np.sort(rng.random(500)) * 100.0 + 100.0 * number for number in range(batches)]
    rounds: list[float] = []
    for _ in range(3):
        estimator = ReuseTimeEstimator(sample_rate=1 / 16, table_entries=TABLE_ENTRIES)
        started_ns = time.process_time_ns()
        for number in range(batches):
            estimator.ingest(keys[number], times[number], 512.0, asked_bytes=4.1e6, now_ms=100.0 * (number + 1))
        rounds.append((time.process_time_ns() - started_ns) / (500.0 * batches))
    return [
        single("both estimators of an instance", float(held), "bytes", goal=BYTES_GOAL),
        summarise("taking in a sampled access", rounds, unit="ns", goal=INGEST_GOAL_NS),
    ]


def held_out_users() -> Stream:
    """Visits of users, weighted by the tokens of their state."""
    visits = visits_of_events(user_events(load_mooncake(TRACE)), bytes_per_token=1)
    times = visits.time_ms.astype(np.float64)
    own, _ = own_requests(times, visits.user.astype(np.int64), Part.TEST)
    return Stream(keys=visits.user[own].astype(np.int64), t_ms=_spread(times)[own], sizes=visits.state_bytes[own].astype(float))


def held_out_blocks() -> Stream:
    """Accesses to blocks of one size, which stand for rows."""
    records = load_mooncake(TRACE)
    keys = np.array([block for record in records for block in record.blocks], dtype=np.int64)
    times = _spread(np.array([record.time_ms for record in records for _ in record.blocks]))
    own, _ = own_requests(times, keys, Part.TEST)
    return Stream(keys=keys[own], t_ms=times[own], sizes=np.ones(int(own.sum())))


def zipf_rows(alpha: float, *, seed: int, rows: int = 1_000_000, accesses: int = 300_000, per_s: float = 5000.0) -> Stream:
    """Independent draws from a Zipf law."""
    rng = np.random.default_rng([seed, round(alpha * 100)])
    weight = np.arange(1, rows + 1) ** -alpha
    drawn = rng.permutation(rows)[rng.choice(rows, size=accesses, p=weight / weight.sum())]
    times = np.cumsum(rng.exponential(1000.0 / per_s, size=accesses))
    return Stream(keys=drawn.astype(np.int64), t_ms=times, sizes=np.ones(accesses))


def _spread(ticks_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread what shares a tick of the trace evenly over it, in order."""
    _, first, count = np.unique(ticks_ms, return_index=True, return_counts=True)
    place = np.arange(len(ticks_ms)) - np.repeat(first, count)
    return np.asarray(ticks_ms + TICK_MS * place / np.repeat(count, count), dtype=np.float64)
