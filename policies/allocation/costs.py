"""What a miss costs, measured: decayed sums of the engine's work counters and the ratios between them.

The engine splits its serving time by cause, so time per missed row and per missed token are plain ratios. How many rows a
missed token asks for again is the slope of rows asked over tokens missed between intervals, pulled towards a prior given by
the caller while the two hardly vary. Nothing here is a constant of the hardware: a slower link shows within the decay time.

A cache that has never missed has no measured price, and an unknown price is neither zero nor infinite: the caller's prior
stands in, and the result says so. Little hangs on it, because the curve of such a cache is flat around its size; once the
split has moved so far that it does miss, the measurement takes over.
"""

from __future__ import annotations

import math

import msgspec

from policies.allocation.types import Assumed, Costs

COSTS_FORGET = 6.0
"""Costs and demand are forgotten this many times faster than reuse: every request tells them, not a sample."""

_PRIOR_INTERVALS = 4.0  # weight of the prior slope, in intervals of ordinary variation


class CostPrior(msgspec.Struct, frozen=True, kw_only=True):
    """What to assume where nothing has been measured.

    Attributes
    ----------
    emb_rows_per_kv_miss_token
        Rows asked again per missed token as the model's description has it; the measured slope takes over from it.
    ms_per_emb_miss_row, ms_per_kv_miss_token
        Price of a miss while its cache has never missed; None where nothing is known, and then there are no costs at all.

    Raises
    ------
    ValueError
        If a price is not positive and finite, or the rows are negative or not finite.
    """

    emb_rows_per_kv_miss_token: float
    ms_per_emb_miss_row: float | None = None
    ms_per_kv_miss_token: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.emb_rows_per_kv_miss_token) and self.emb_rows_per_kv_miss_token >= 0.0):
            raise ValueError("emb_rows_per_kv_miss_token must be finite and not negative")
        for price in (self.ms_per_emb_miss_row, self.ms_per_kv_miss_token):
            if price is not None and not (math.isfinite(price) and price > 0.0):
                raise ValueError("an assumed price must be positive and finite")


def link_prior(
    *, emb_row_bytes: int, kv_bytes_per_token: int, link_bytes_per_second: int, emb_rows_per_kv_miss_token: float
) -> CostPrior:
    """Assume that a miss costs what it takes to bring the bytes over the host link.

    For rows this is the least it can be (random gathers are about half as fast). For attention state it stands for the
    calculation, which an engine prefers to a transfer only where it is of that order or cheaper.

    Raises
    ------
    ValueError
        If a size or the rate is not positive.
    """
    ms_per_byte = 1000.0 / link_bytes_per_second if link_bytes_per_second > 0 else math.nan
    return CostPrior(
        emb_rows_per_kv_miss_token=emb_rows_per_kv_miss_token,
        ms_per_emb_miss_row=emb_row_bytes * ms_per_byte,
        ms_per_kv_miss_token=kv_bytes_per_token * ms_per_byte,
    )


class WorkDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of the engine's counters over one interval of `interval_ms`."""

    interval_ms: float
    requests: float
    kv_tokens_asked: float
    kv_tokens_missed: float
    emb_rows_asked: float
    emb_rows_missed: float
    service_ms: float
    service_squared_ms2: float
    emb_miss_ms: float
    kv_miss_ms: float


class CostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Decayed sums over past intervals; start with `CostMemory()`."""

    elapsed_ms: float = 0.0
    requests: float = 0.0
    kv_tokens_asked: float = 0.0
    kv_tokens_missed: float = 0.0
    emb_rows_asked: float = 0.0
    emb_rows_missed: float = 0.0
    service_ms: float = 0.0
    service_squared_ms2: float = 0.0
    emb_miss_ms: float = 0.0
    kv_miss_ms: float = 0.0
    ms_per_row: float | None = None
    ms_per_token: float | None = None
    intervals: float = 0.0
    missed_per_request_sum: float = 0.0
    missed_per_request_square: float = 0.0
    rows_per_request_sum: float = 0.0
    rows_times_missed: float = 0.0


def update_costs(memory: CostMemory, delta: WorkDelta, *, decay_ms: float = 10_000.0) -> CostMemory:
    """Return the memory with one more interval; negative or non-finite deltas (a restarted engine) leave it unchanged."""
    figures = [getattr(delta, name) for name in WorkDelta.__struct_fields__]
    if not all(math.isfinite(x) and x >= 0.0 for x in figures) or delta.interval_ms == 0.0:
        return memory
    keep = math.exp(-delta.interval_ms / decay_ms)
    missed = delta.kv_tokens_missed / delta.requests if delta.requests else 0.0
    rows = delta.emb_rows_asked / delta.requests if delta.requests else 0.0
    seen = 1.0 if delta.requests else 0.0
    emb_rows_missed = memory.emb_rows_missed * keep + delta.emb_rows_missed
    emb_miss_ms = memory.emb_miss_ms * keep + delta.emb_miss_ms
    kv_tokens_missed = memory.kv_tokens_missed * keep + delta.kv_tokens_missed
    kv_miss_ms = memory.kv_miss_ms * keep + delta.kv_miss_ms
    return CostMemory(
        elapsed_ms=memory.elapsed_ms * keep + delta.interval_ms,
        requests=memory.requests * keep + delta.requests,
        kv_tokens_asked=memory.kv_tokens_asked * keep + delta.kv_tokens_asked,
        kv_tokens_missed=kv_tokens_missed,
        emb_rows_asked=memory.emb_rows_asked * keep + delta.emb_rows_asked,
        emb_rows_missed=emb_rows_missed,
        service_ms=memory.service_ms * keep + delta.service_ms,
        service_squared_ms2=memory.service_squared_ms2 * keep + delta.service_squared_ms2,
        emb_miss_ms=emb_miss_ms,
        kv_miss_ms=kv_miss_ms,
        # A cache that stops missing keeps its last measured price.
        ms_per_row=emb_miss_ms / emb_rows_missed if emb_rows_missed >= 1.0 else memory.ms_per_row,
        ms_per_token=kv_miss_ms / kv_tokens_missed if kv_tokens_missed >= 1.0 else memory.ms_per_token,
        intervals=memory.intervals * keep + seen,
        missed_per_request_sum=memory.missed_per_request_sum * keep + missed,
        missed_per_request_square=memory.missed_per_request_square * keep + missed * missed,
        rows_per_request_sum=memory.rows_per_request_sum * keep + rows,
        rows_times_missed=memory.rows_times_missed * keep + rows * missed,
    )


def costs_of(memory: CostMemory, *, kv_size_cv2: float, prior: CostPrior) -> Costs | None:
    """Return the costs, or None until a request has been seen and every price is measured or assumed.

    Parameters
    ----------
    kv_size_cv2
        Squared coefficient of variation of history length (`Curve.size_cv2` of the KV curve).
    prior
        What to assume of a cache that has never missed; `Costs.assumed` names what was. A measured price of zero stays zero.
    """
    row_ms = memory.ms_per_row if memory.ms_per_row is not None else prior.ms_per_emb_miss_row
    token_ms = memory.ms_per_token if memory.ms_per_token is not None else prior.ms_per_kv_miss_token
    if row_ms is None or token_ms is None or memory.requests < 1.0 or memory.elapsed_ms <= 0.0:
        return None
    assumed = [Assumed.EMB_MISS_ROW] if memory.ms_per_row is None else []
    assumed += [Assumed.KV_MISS_TOKEN] if memory.ms_per_token is None else []
    requests = memory.requests
    slope = _rows_per_missed_token(memory, prior.emb_rows_per_kv_miss_token)
    tokens = memory.kv_tokens_asked / requests
    missed = memory.kv_tokens_missed / requests
    mean = memory.service_ms / requests
    miss = missed / tokens if tokens > 0.0 else 0.0
    lost_ms = token_ms + slope * memory.emb_miss_ms / max(memory.emb_rows_asked, 1.0)
    explained = lost_ms * lost_ms * tokens * tokens * miss * max(1.0 + kv_size_cv2 - miss, 0.0)
    total = memory.service_squared_ms2 / requests - mean * mean
    return Costs(
        ms_per_emb_miss_row=row_ms,
        ms_per_kv_miss_token=token_ms,
        emb_rows_per_kv_miss_token=slope,
        base_service_ms=max(mean - (memory.emb_miss_ms + memory.kv_miss_ms) / requests, 0.0),
        service_variance_ms2=max(total - explained, 0.0),
        arrival_per_s=1000.0 * requests / memory.elapsed_ms,
        emb_rows_per_request=max(memory.emb_rows_asked / requests - slope * missed, 0.0),
        kv_tokens_per_request=tokens,
        assumed=tuple(assumed),
    )


def _rows_per_missed_token(memory: CostMemory, prior: float) -> float:
    """Ridge regression of rows asked on tokens missed, per request, between intervals."""
    n = memory.intervals
    if n < 2.0:
        return prior
    mean_missed = memory.missed_per_request_sum / n
    mean_rows = memory.rows_per_request_sum / n
    variance = max(memory.missed_per_request_square / n - mean_missed * mean_missed, 0.0)
    covariance = memory.rows_times_missed / n - mean_missed * mean_rows
    ridge = 0.01 * mean_missed * mean_missed * _PRIOR_INTERVALS / n
    if variance + ridge <= 0.0:
        return prior
    return max((covariance + ridge * prior) / (variance + ridge), 0.0)
