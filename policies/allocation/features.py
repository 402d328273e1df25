"""The 31 figures that a trained allocator reads: where the split is, where the anchor wants it, and how steep the way is.

All are ratios, shares or logarithms of ratios, so that a model does not depend on the size of a pool or the speed of an
accelerator. Training and agents call the same function; a model names this layout and is refused under any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEATURE_SPEC = "split-features-1"

PROBE_OFFSETS = (-0.10, -0.05, 0.0, 0.05, 0.10)
"""Where the curves are probed, as shares of usable away from the split in force."""
HERE = PROBE_OFFSETS.index(0.0)
"""Place of the probe at the split in force."""

FEATURES = (
    "emb_share",
    "anchor_offset",
    "smoothed_anchor_offset",
    "anchor_gain",
    "emb_miss",
    "kv_miss",
    "emb_miss_fall",
    "kv_miss_rise",
    "log_p99_far_down",
    "log_p99_down",
    "log_p99_up",
    "log_p99_far_up",
    "ghost_ratio",
    "predicted_load",
    "measured_load",
    "load_trend",
    "time_share_base",
    "time_share_rows",
    "time_share_history",
    "log_rows",
    "log_tokens",
    "log_history_cv2",
    "log_service_cv2",
    "rows_asked_again",
    "emb_volatility",
    "kv_volatility",
    "log_samples",
    "p99_surprise",
    "refill_blocking",
    "backlog_share",
    "last_action",
)

_TINY_MS = 1e-9
_MOST_RATIO = 5.0  # logarithm of the greatest ratio of marginal gains that is told apart
_MOST_SURPRISE = 2.0  # logarithm, of measured over predicted P99 and of load over its usual level


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is known at one decision of n instances; every field is float64[n] unless it says otherwise.

    Attributes
    ----------
    emb_share, anchor_share, smoothed_anchor_share
        The split in force, the anchor of this moment, and its smoothed course; shares of usable, 0..1.
    anchor_p99_ms
        Predicted P99 at the anchor.
    probe_emb_miss, probe_kv_miss, probe_p99_ms
        float64[n, 5]: miss ratios and predicted P99 at `emb_share + PROBE_OFFSETS`, kept inside the bounds.
    ms_per_emb_miss_row, ..., kv_tokens_per_request
        As in `policies.allocation.types.Costs`.
    kv_size_cv2, emb_volatility, kv_volatility, emb_samples, kv_samples
        As in `policies.allocation.types.Curve`.
    observed_p99_ms
        Measured over the last interval; NaN where it is missing.
    utilisation, utilisation_slow
        Serving time over time: of the last interval, and what is usual.
    refill_blocking
        1 where refill blocks serving, else 0.
    backlog_share
        Bytes still to be refilled, as a share of usable.
    last_action
        What the model answered before, -1..1.
    """

    emb_share: NDArray[np.float64]
    anchor_share: NDArray[np.float64]
    smoothed_anchor_share: NDArray[np.float64]
    anchor_p99_ms: NDArray[np.float64]
    probe_emb_miss: NDArray[np.float64]
    probe_kv_miss: NDArray[np.float64]
    probe_p99_ms: NDArray[np.float64]
    ms_per_emb_miss_row: NDArray[np.float64]
    ms_per_kv_miss_token: NDArray[np.float64]
    emb_rows_per_kv_miss_token: NDArray[np.float64]
    base_service_ms: NDArray[np.float64]
    service_variance_ms2: NDArray[np.float64]
    arrival_per_s: NDArray[np.float64]
    emb_rows_per_request: NDArray[np.float64]
    kv_tokens_per_request: NDArray[np.float64]
    kv_size_cv2: NDArray[np.float64]
    emb_volatility: NDArray[np.float64]
    kv_volatility: NDArray[np.float64]
    emb_samples: NDArray[np.float64]
    kv_samples: NDArray[np.float64]
    observed_p99_ms: NDArray[np.float64]
    utilisation: NDArray[np.float64]
    utilisation_slow: NDArray[np.float64]
    refill_blocking: NDArray[np.float64]
    backlog_share: NDArray[np.float64]
    last_action: NDArray[np.float64]


def features(s: Situation) -> NDArray[np.float32]:
    """Return the features of each instance, float32[n, 31], in the order of `FEATURES`.

    A figure that is not a number makes its features not a number; `base.out_of_distribution` then names the first of them.
    The one exception is a missing measured P99, which is no surprise: 0.
    """
    emb_miss, kv_miss, p99 = s.probe_emb_miss, s.probe_kv_miss, s.probe_p99_ms
    here = np.maximum(p99[:, HERE], _TINY_MS)
    steps = np.log(np.maximum(p99, _TINY_MS) / here[:, None])
    row_ms = s.ms_per_emb_miss_row * emb_miss[:, HERE]
    rows_ms = s.emb_rows_per_request * row_ms
    again = s.emb_rows_per_kv_miss_token * s.kv_tokens_per_request * kv_miss[:, HERE]  # rows asked again because of KV misses
    history_ms = s.kv_tokens_per_request * s.ms_per_kv_miss_token * kv_miss[:, HERE] + again * row_ms
    service_ms = np.maximum(s.base_service_ms + rows_ms + history_ms, _TINY_MS)
    emb_fall = np.maximum(emb_miss[:, HERE] - emb_miss[:, HERE + 1], 0.0)
    kv_rise = np.maximum(kv_miss[:, HERE + 1] - kv_miss[:, HERE], 0.0)
    emb_gain_ms = (s.emb_rows_per_request + again) * s.ms_per_emb_miss_row * emb_fall
    token_ms = s.ms_per_kv_miss_token + s.emb_rows_per_kv_miss_token * row_ms
    kv_loss_ms = s.kv_tokens_per_request * token_ms * kv_rise
    floor_ms = 1e-6 * service_ms  # below it, neither side has anything to gain
    with np.errstate(invalid="ignore", divide="ignore"):
        surprise = np.where(np.isnan(s.observed_p99_ms), 0.0, np.log(np.maximum(s.observed_p99_ms, _TINY_MS) / here))
    columns = (
        s.emb_share,
        s.anchor_share - s.emb_share,
        s.smoothed_anchor_share - s.emb_share,
        np.log(here / np.maximum(s.anchor_p99_ms, _TINY_MS)),
        emb_miss[:, HERE],
        kv_miss[:, HERE],
        emb_fall,
        kv_rise,
        steps[:, 0],
        steps[:, 1],
        steps[:, 3],
        steps[:, 4],
        np.clip(np.log((emb_gain_ms + floor_ms) / (kv_loss_ms + floor_ms)), -_MOST_RATIO, _MOST_RATIO),
        s.arrival_per_s * service_ms / 1000.0,
        s.utilisation,
        np.clip(np.log(np.maximum(s.utilisation, 1e-6) / np.maximum(s.utilisation_slow, 1e-6)), -_MOST_SURPRISE, _MOST_SURPRISE),
        s.base_service_ms / service_ms,
        rows_ms / service_ms,
        history_ms / service_ms,
        np.log10(1.0 + s.emb_rows_per_request),
        np.log10(1.0 + s.kv_tokens_per_request),
        np.log1p(s.kv_size_cv2),
        np.log1p(s.service_variance_ms2 / (service_ms * service_ms)),
        again / np.maximum(s.emb_rows_per_request + again, _TINY_MS),
        s.emb_volatility,
        s.kv_volatility,
        np.log10(1.0 + np.minimum(s.emb_samples, s.kv_samples)),
        np.clip(surprise, -_MOST_SURPRISE, _MOST_SURPRISE),
        s.refill_blocking,
        s.backlog_share,
        s.last_action,
    )
    return np.stack(columns, axis=1).astype(np.float32)
