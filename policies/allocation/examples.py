"""One realistic set of decision inputs, the same on every machine: for benchmarks, documentation and tests.

An instance with 16 GiB to split, 200 requests/s, histories of about 1 000 tokens at 8 KiB, and rows of 512 bytes drawn from
a Zipf law. The curves are analytic (independent references, Che's approximation), so nothing has to be simulated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policies.allocation.features import FEATURE_SPEC
from policies.allocation.model_file import FORMAT, SHAPES, Header, Origin, Score, TrainedModel, read_model, write_model
from policies.allocation.types import (
    AllocationIntent,
    AllocationState,
    Costs,
    Curve,
    DecisionInputs,
    EstimatorView,
    Observation,
    SplitInForce,
)
from policies.measurement import Fresh

GIB = 1 << 30


def example_curve(
    *, alpha: float, keys: float, bytes_per_key: float, per_s: float, points: int = 97, size_cv2: float = 0.0
) -> Curve:
    """Return the LRU miss-ratio curve of a Zipf stream by Che's approximation.

    Parameters
    ----------
    alpha, keys
        Zipf exponent and number of keys.
    bytes_per_key
        Size of a key in the cache.
    per_s
        Accesses per second.
    points
        Points of the curve, log-spaced in reuse time between 1 ms and 10 000 s.
    size_cv2
        Squared coefficient of variation to stamp on the curve.
    """
    edges = np.unique(np.geomspace(1.0, keys + 1.0, 1500).astype(np.int64))
    rank = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    count = np.diff(edges)
    popularity = rank**-alpha
    popularity /= (popularity * count).sum()
    t_ms = np.concatenate(([0.0], np.geomspace(1.0, 1.0e7, points - 1)))
    absent = np.exp(-np.outer(t_ms, popularity * per_s / 1000.0))
    return pack_curve(
        capacity_bytes=((1.0 - absent) @ count) * bytes_per_key,
        miss_ratio=absent @ (popularity * count),
        size_cv2=size_cv2,
    )


def pack_curve(
    *,
    capacity_bytes: NDArray[np.float64],
    miss_ratio: NDArray[np.float64],
    samples: float = 20_000.0,
    age_ms: float = 50.0,
    window_ms: float = 600_000.0,
    volatility: float = 0.01,
    size_cv2: float = 0.0,
) -> Curve:
    """Return a curve from its points, trusted unless the figures say otherwise."""
    return Curve(
        packed_capacity_bytes=np.asarray(capacity_bytes, dtype="<f8").tobytes(),
        packed_miss_ratio=np.asarray(miss_ratio, dtype="<f8").tobytes(),
        samples=samples,
        age_ms=age_ms,
        window_ms=window_ms,
        volatility=volatility,
        size_cv2=size_cv2,
    )


def example_inputs(*, emb_alpha: float = 0.95, users: float = 20_000.0) -> DecisionInputs:
    """Return the arguments of one decision in the middle of a run; `decide(*astuple)` takes the hot path."""
    usable, half = 16 * GIB, 8 * GIB
    view = EstimatorView(
        emb=example_curve(alpha=emb_alpha, keys=1.0e8, bytes_per_key=512.0, per_s=400_000.0),
        kv=example_curve(alpha=0.6, keys=users, bytes_per_key=8192.0 * 1000, per_s=200.0, size_cv2=0.5),
        costs=Costs(
            ms_per_emb_miss_row=0.0007,
            ms_per_kv_miss_token=0.003,
            emb_rows_per_kv_miss_token=1.0,
            base_service_ms=1.0,
            service_variance_ms2=0.2,
            arrival_per_s=200.0,
            emb_rows_per_request=1500.0,
            kv_tokens_per_request=1000.0,
        ),
    )
    observation = Observation(
        interval_ms=100.0,
        usable_bytes=usable,
        granule_bytes=64 << 20,
        split=SplitInForce(
            start_id="example", revision=7, emb_bytes=half, kv_bytes=half, emb_used_bytes=half, kv_used_bytes=half
        ),
        requests=Fresh(20.0),
        kv_tokens_asked=Fresh(20_000.0),
        kv_tokens_hit=Fresh(9_000.0),
        emb_rows_asked=Fresh(41_000.0),
        emb_rows_hit=Fresh(30_000.0),
        demand_bytes=Fresh(5_632_000.0),
        p99_ms=Fresh(14.0),
        utilisation=Fresh(0.7),
    )
    state = AllocationState(
        start_id="example", decided_at_ms=59_900.0, target_emb_bytes=half, goal_emb_bytes=0.55 * usable, slew_credit_bytes=3.0e7
    )
    return DecisionInputs(observation=observation, view=view, intent=AllocationIntent(), state=state, now_ms=60_000.0)


def example_model_arrays(*, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of an untrained model: small random weights, and feature ranges that hold everything."""
    random = np.random.default_rng(seed)
    arrays = {name: (0.2 * random.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["mean"][:] = 0.0
    arrays["scale"][:] = 1.0
    arrays["low"][:] = -1.0e6
    arrays["high"][:] = 1.0e6
    return arrays


def example_model_header(*, max_step_percent: float = 5.0, origin: Origin = Origin.SPLIT) -> Header:
    """Return the header of an untrained model."""
    return Header(
        format=FORMAT,
        feature_spec=FEATURE_SPEC,
        max_step_percent=max_step_percent,
        origin=origin,
        refill_modes=("Lazy",),
        training={"seed": 0},
        scores=(Score(name="untrained", value=0.0),),
    )


def example_model(*, seed: int = 0, max_step_percent: float = 5.0, origin: Origin = Origin.SPLIT) -> TrainedModel:
    """Return an untrained model, read back from its file."""
    header = example_model_header(max_step_percent=max_step_percent, origin=origin)
    return read_model(write_model(example_model_arrays(seed=seed), header))
