"""Feeds what the engine sampled and counted to the estimators of the split policy.

Miss-ratio curves rest on hash-sampled accesses, costs on counter differences. The estimators outlive the engine: after a restart
its clock starts anew, so times are shifted to go on where they were, and what is known about the users stays known. Only another
sampling rate or another size of rows or tokens starts them over.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engine import Counters, Describe, Observe
from contract.samples import KIND_EMB, KIND_KV, MAX_BATCH_RECORDS
from dataplane.agent.observe import Reading
from dataplane.agent.ports import EnginePort
from policies.allocation.costs import COSTS_FORGET, CostMemory, CostPrior, WorkDelta, costs_of, link_prior, update_costs
from policies.allocation.estimator import ROWS_SPREAD, USERS_SPREAD, ReuseTimeEstimator
from policies.allocation.types import EstimatorView

TABLE_ENTRIES = 1 << 16
"""Keys whose last access is remembered, of users and of rows each."""
MAX_BATCHES = 4
"""Batches of samples that are read in one go, at most; what is left comes with the next."""
DEFAULT_MEMORY_MS = 60_000.0
"""Time constant with which old accesses are forgotten."""
FEED_MS = 900.0
"""Least time of the engine's clock between two windows of samples; less than a second, so that a round a second
always has one. Shorter memories have them more often."""
_FEEDS_PER_MEMORY = 12.0
PRIOR_ROWS_PER_TOKEN = 1.0
"""Rows that a missed token asks for again, until the measured slope takes over: one item a token is the common model."""


class Estimators:
    """Curves of both caches and the costs of their misses, on one clock that never goes back.

    Parameters
    ----------
    memory_ms : float
        Time constant with which old accesses are forgotten.
    """

    def __init__(self, *, memory_ms: float = DEFAULT_MEMORY_MS) -> None:
        self._memory_ms = memory_ms
        self._shape: tuple[int, int, int, int] | None = None
        self._users = self._rows = ReuseTimeEstimator(sample_rate=1.0, table_entries=8)
        self._costs = CostMemory()
        self._prior = CostPrior(emb_rows_per_kv_miss_token=PRIOR_ROWS_PER_TOKEN)
        self._described: Describe | None = None
        self._base: Observe | None = None
        self._view: EstimatorView | None = None
        self._feed_ms = min(FEED_MS, memory_ms / _FEEDS_PER_MEMORY)
        self._cursor: int | None = None
        self._shift_ms = 0.0
        self._now_ms = 0.0
        self.samples = 0
        self.lost = 0

    async def feed(self, engine: EnginePort, reading: Reading, *, waited_ms: float) -> None:
        """Read the samples of a window and take them in with the window's counters.

        Curves have a memory of many seconds, so rounds that follow each other faster than `FEED_MS` share one window.

        Parameters
        ----------
        waited_ms : float
            Time since the last reading on the agent's clock; stands for the gap when the engine's clock started anew.

        Raises
        ------
        Unreachable, ProtocolViolation
            As the engine port; nothing was taken in then.
        """
        if reading.standing:
            return
        base, now = self._base, reading.now
        if reading.previous is None or base is None or base.start_id != now.start_id:
            base = reading.previous  # no window reaches back over what is doubtful
        elif now.clock_ms - base.clock_ms < self._feed_ms:
            return
        records, lost = await self._read_samples(engine, restarted=reading.restarted)
        self._begin(reading, waited_ms=waited_ms)
        self._base, self._view = now, None
        if base is None:
            # Samples from before the window have no counters to be weighed against.
            for estimator in (self._users, self._rows):
                estimator.note_gap()
            return
        self.samples += len(records)
        self.lost += lost
        self._now_ms = now.clock_ms + self._shift_ms
        # The correction for unsampled hot keys compares sampled with asked bytes: what got lost must not count as asked.
        seen_share = len(records) / (len(records) + lost) if lost else 1.0
        new, old, describe = now.counters, base.counters, reading.describe
        words = _words(records)
        tokens = new.kv.tokens_asked - old.kv.tokens_asked
        rows = new.emb.rows_asked - old.emb.rows_asked
        for estimator, kind, unit_bytes, asked in (
            (self._users, KIND_KV, describe.kv_bytes_per_token, tokens),
            (self._rows, KIND_EMB, describe.emb_row_bytes, rows),
        ):
            estimator.ingest_records(
                words,
                kind=kind,
                unit_bytes=unit_bytes,
                shift_ms=self._shift_ms,
                asked_bytes=asked * unit_bytes * seen_share,
                now_ms=self._now_ms,
            )
        work = work_between(new, old, interval_ms=now.clock_ms - base.clock_ms)
        self._costs = update_costs(self._costs, work, decay_ms=self._memory_ms / COSTS_FORGET)

    def view(self) -> EstimatorView:
        """Return what the estimators know now."""
        if self._shape is None:
            return EstimatorView()
        if self._view is None:
            self._view = self._made()
        return self._view

    def _made(self) -> EstimatorView:
        emb, kv = self._rows.view(now_ms=self._now_ms), self._users.view(now_ms=self._now_ms)
        cv2 = kv.size_cv2 if kv is not None else 0.0
        return EstimatorView(emb=emb, kv=kv, costs=costs_of(self._costs, kv_size_cv2=cv2, prior=self._prior))

    async def _read_samples(self, engine: EnginePort, *, restarted: bool) -> tuple[NDArray[Any], int]:
        """Return the records since the last call and how many were lost; a full batch means that more are waiting."""
        if restarted:
            self._cursor = None
        first = self._cursor is None
        batches: list[NDArray[Any]] = []
        lost_in_all = 0
        for _ in range(MAX_BATCHES):
            batch, self._cursor, lost = await engine.samples(self._cursor or 0)
            batches.append(batch)
            lost_in_all += max(0, lost)
            if len(batch) < MAX_BATCH_RECORDS:
                break
        return (batches[0] if len(batches) == 1 else np.concatenate(batches)), 0 if first else lost_in_all

    def _begin(self, reading: Reading, *, waited_ms: float) -> None:
        """Go on after a restart of the engine: same knowledge, shifted clock; or start over when its units changed.

        A clock that fell without a restart is shifted too: until it is where it was, nothing would fade and no rate be right.
        """
        if reading.describe is not self._described:
            self._described, self._prior = reading.describe, _prior(reading.describe)
        shape = _shape(reading.describe)
        if shape != self._shape:
            self._shape = shape
            sampling = reading.describe.sampling
            self._users, self._rows = (
                ReuseTimeEstimator(
                    sample_rate=1.0 / one_in, ordinary_spread=spread, decay_ms=self._memory_ms, table_entries=TABLE_ENTRIES
                )
                for one_in, spread in ((sampling.users_one_in, USERS_SPREAD), (sampling.rows_one_in, ROWS_SPREAD))
            )
            self._costs = CostMemory()
            self._shift_ms = self._now_ms - reading.now.clock_ms
        elif reading.restarted or reading.now.clock_ms + self._shift_ms < self._now_ms:
            self._shift_ms = self._now_ms + max(waited_ms, 0.0) - reading.now.clock_ms


def _words(records: NDArray[Any]) -> NDArray[np.uint64]:
    """Records as three words each: kind, size and sequence (from the top bit down), key, time in microseconds."""
    return np.ascontiguousarray(records).view("<u8").reshape(-1, 3)


def work_between(now: Counters, before: Counters, *, interval_ms: float) -> WorkDelta:
    """Return the counter differences of one window of one engine process."""
    tokens_missed = [c.kv.tokens_asked - c.kv.tokens_hit_hbm for c in (now, before)]
    rows_missed = [c.emb.rows_asked - c.emb.rows_hit for c in (now, before)]
    return WorkDelta(
        interval_ms=interval_ms,
        requests=now.requests - before.requests,
        kv_tokens_asked=now.kv.tokens_asked - before.kv.tokens_asked,
        kv_tokens_missed=tokens_missed[0] - tokens_missed[1],
        emb_rows_asked=now.emb.rows_asked - before.emb.rows_asked,
        emb_rows_missed=rows_missed[0] - rows_missed[1],
        service_ms=now.work_ms.service - before.work_ms.service,
        service_squared_ms2=now.work_ms.service_squared - before.work_ms.service_squared,
        emb_miss_ms=now.work_ms.emb_miss - before.work_ms.emb_miss,
        kv_miss_ms=now.work_ms.kv_miss - before.work_ms.kv_miss,
    )


def _prior(describe: Describe) -> CostPrior:
    """What a miss is assumed to cost while the cache has never missed: its bytes over the described link."""
    return link_prior(
        emb_row_bytes=describe.emb_row_bytes,
        kv_bytes_per_token=describe.kv_bytes_per_token,
        link_bytes_per_second=describe.link_bytes_per_second,
        emb_rows_per_kv_miss_token=PRIOR_ROWS_PER_TOKEN,
    )


def _shape(describe: Describe) -> tuple[int, int, int, int]:
    sampling = describe.sampling
    return sampling.users_one_in, sampling.rows_one_in, describe.kv_bytes_per_token, describe.emb_row_bytes
