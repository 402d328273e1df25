"""The full path for many instances says for each of them what the anchor says for one, and the guest stays where it may be."""

from dataclasses import replace

import numpy as np
import pytest

from policies.allocation.anchor import solve
from policies.allocation.base import act, clamp_points, out_of_distribution
from policies.allocation.examples import example_inputs, example_model
from policies.allocation.features import FEATURES, features
from policies.allocation.model_file import Origin
from policies.allocation.path import Figure, PathRows, evaluate
from policies.allocation.types import Bounds

GIB = 1 << 30
USABLE, GRANULE = 16 * GIB, 64 << 20


def _rows(n: int = 1, **figures: float) -> PathRows:
    """The example of policies.allocation.examples in n rows, each with another share in force, figures replaced by name."""
    i = example_inputs()
    emb, kv, costs = i.view.emb, i.view.kv, i.view.costs
    f = np.zeros((n, len(Figure)))
    f[:, Figure.USABLE_BYTES] = USABLE
    f[:, Figure.GRANULE_BYTES] = GRANULE
    f[:, Figure.CURRENT_EMB_BYTES] = [GRANULE * round((0.5 + 0.4 * k / max(n, 2)) * USABLE / GRANULE) for k in range(n)]
    f[:, Figure.MIN_EMB_PERCENT], f[:, Figure.MAX_EMB_PERCENT] = 5.0, 95.0
    f[:, Figure.CLAMP_PERCENT] = 10.0
    for name in costs.__struct_fields__[:-1]:
        f[:, Figure[name.upper()]] = getattr(costs, name)
    f[:, Figure.KV_SIZE_CV2] = kv.size_cv2
    f[:, Figure.SMOOTHED_EMB_BYTES] = np.nan
    f[:, Figure.EMB_VOLATILITY] = f[:, Figure.KV_VOLATILITY] = 0.01
    f[:, Figure.EMB_SAMPLES] = f[:, Figure.KV_SAMPLES] = 20_000.0
    f[:, Figure.OBSERVED_P99_MS] = 14.0
    f[:, Figure.UTILISATION] = f[:, Figure.UTILISATION_SLOW] = 0.6
    for name, value in figures.items():
        f[:, Figure[name.upper()]] = value
    return PathRows(
        np.tile(emb.capacity_bytes, (n, 1)),
        np.tile(emb.miss_ratio, (n, 1)),
        np.tile(kv.capacity_bytes, (n, 1)),
        np.tile(kv.miss_ratio, (n, 1)),
        f,
    )


def test_each_row_has_the_anchor_that_the_instance_alone_has():
    rows, i = _rows(7), example_inputs()
    found = evaluate(rows, None)
    for k in range(7):
        alone = solve(
            i.view.emb,
            i.view.kv,
            i.view.costs,
            usable_bytes=USABLE,
            granule_bytes=GRANULE,
            bounds=Bounds(),
            current_emb_bytes=int(rows.figures[k, Figure.CURRENT_EMB_BYTES]),
        )
        assert found.anchor_emb_bytes[k] == alone.target_emb_bytes
        assert found.anchor_p99_ms[k] == pytest.approx(alone.target_p99_ms, rel=1e-12)
        assert found.current_p99_ms[k] == pytest.approx(alone.current_p99_ms, rel=0.02)
    assert found.guest is None


@pytest.mark.parametrize(("low", "high"), [(5.0, 95.0), (0.0, 100.0), (30.0, 34.0), (50.0, 50.0)])
def test_the_anchor_keeps_to_the_bounds_however_narrow(low, high):
    found = evaluate(_rows(3, min_emb_percent=low, max_emb_percent=high), None)
    share = 100.0 * found.anchor_emb_bytes / USABLE
    assert (share >= low).all()
    assert (share <= high).all()


def test_the_smoothed_anchor_goes_its_share_of_the_way_and_starts_where_the_anchor_is():
    first = evaluate(_rows(), None)
    assert first.smoothed_emb_bytes == first.anchor_emb_bytes
    later = evaluate(_rows(smoothed_emb_bytes=2.0 * GIB, smoothing=0.25), None)
    np.testing.assert_allclose(later.smoothed_emb_bytes, 2.0 * GIB + 0.25 * (first.anchor_emb_bytes - 2.0 * GIB))


@pytest.mark.parametrize("origin", list(Origin))
def test_the_guest_never_leaves_the_clamp_around_the_smoothed_anchor_nor_the_bounds(origin):
    for seed in range(20):
        model = example_model(seed=seed, max_step_percent=60.0, origin=origin)
        rows = _rows(9)
        found = evaluate(rows, model)
        width = clamp_points(np.array([10.0]), np.array([0.01]))[0] * USABLE / 100.0
        assert (np.abs(found.guest.emb_bytes - found.smoothed_emb_bytes) <= width * (1 + 1e-12)).all()
        assert (found.guest.emb_bytes >= 0.05 * USABLE - 1).all()
        assert (found.guest.emb_bytes <= 0.95 * USABLE + 1).all()
        at = rows.figures[:, Figure.CURRENT_EMB_BYTES] if origin is Origin.SPLIT else found.smoothed_emb_bytes
        free = np.clip(at + found.guest.action * 0.60 * USABLE, 0.05 * USABLE, 0.95 * USABLE)
        np.testing.assert_array_equal(found.guest.clamped, np.abs(free - found.smoothed_emb_bytes) > width)
        np.testing.assert_allclose(found.guest.emb_bytes[~found.guest.clamped], free[~found.guest.clamped])


def test_a_clamp_of_zero_is_the_anchor():
    found = evaluate(_rows(4, clamp_percent=0.0), example_model(max_step_percent=60.0))
    np.testing.assert_allclose(found.guest.emb_bytes, found.smoothed_emb_bytes)


def test_the_clamp_widens_with_the_more_volatile_curve_and_only_so_far():
    clamp = np.full(4, 10.0)
    width = clamp_points(clamp, np.array([0.0, 0.01, 0.05, 9.0]))
    assert width[0] == 10.0
    assert (np.diff(width) > 0.0).all()
    assert width[3] == 40.0
    kv_only = evaluate(_rows(1, emb_volatility=0.0, kv_volatility=0.05), example_model(max_step_percent=60.0))
    emb_only = evaluate(_rows(1, emb_volatility=0.05, kv_volatility=0.0), example_model(max_step_percent=60.0))
    for found in (kv_only, emb_only):
        assert abs(found.guest.emb_bytes - found.smoothed_emb_bytes)[0] <= 0.3 * USABLE * (1 + 1e-12)


def test_the_predicted_p99_of_the_guest_is_that_of_its_split():
    model = example_model(seed=5, max_step_percent=8.0)
    found = evaluate(_rows(3), model)
    for k in range(3):
        again = evaluate(_rows(1, current_emb_bytes=found.guest.emb_bytes[k]), None)
        assert again.current_p99_ms[0] == pytest.approx(found.guest.p99_ms[k])
        again = evaluate(_rows(1, current_emb_bytes=found.smoothed_emb_bytes[k]), None)
        assert again.current_p99_ms[0] == pytest.approx(found.guest.smoothed_p99_ms[k])


def test_features_are_shares_and_ratios_so_that_a_pool_twice_the_size_looks_the_same():
    rows = _rows(3)
    double = replace(
        rows,
        emb_capacity_bytes=2.0 * rows.emb_capacity_bytes,
        kv_capacity_bytes=2.0 * rows.kv_capacity_bytes,
        figures=rows.figures.copy(),
    )
    for column in (Figure.USABLE_BYTES, Figure.GRANULE_BYTES, Figure.CURRENT_EMB_BYTES):
        double.figures[:, column] *= 2.0
    model = example_model()
    np.testing.assert_allclose(evaluate(rows, model).guest.features, evaluate(double, model).guest.features, rtol=1e-5, atol=1e-6)


def test_features_are_ratios_so_that_an_accelerator_twice_as_fast_looks_the_same():
    rows = _rows(3)
    fast = replace(rows, figures=rows.figures.copy())
    for column in (
        Figure.MS_PER_EMB_MISS_ROW,
        Figure.MS_PER_KV_MISS_TOKEN,
        Figure.BASE_SERVICE_MS,
        Figure.OBSERVED_P99_MS,
    ):
        fast.figures[:, column] /= 2.0
    fast.figures[:, Figure.SERVICE_VARIANCE_MS2] /= 4.0
    fast.figures[:, Figure.ARRIVAL_PER_S] *= 2.0
    model = example_model()
    np.testing.assert_allclose(evaluate(rows, model).guest.features, evaluate(fast, model).guest.features, rtol=1e-4, atol=1e-5)


def _feature(name: str, **figures: float) -> float:
    return float(evaluate(_rows(1, **figures), example_model()).guest.features[0, FEATURES.index(name)])


def test_a_missing_p99_is_no_surprise_and_a_high_one_is():
    assert _feature("p99_surprise", observed_p99_ms=np.nan) == 0.0
    assert _feature("p99_surprise", observed_p99_ms=1.0e5) == 2.0
    assert _feature("p99_surprise", observed_p99_ms=1.0e-5) == -2.0


def test_each_figure_reaches_its_feature():
    assert _feature("load_trend", utilisation=0.8, utilisation_slow=0.4) == pytest.approx(np.log(2.0), rel=1e-6)
    assert _feature("measured_load", utilisation=0.8) == pytest.approx(0.8)
    assert _feature("backlog_share", backlog_bytes=0.25 * USABLE) == 0.25
    assert _feature("refill_blocking", refill_blocking=1.0) == 1.0
    assert _feature("last_action", last_action=-0.5) == -0.5
    assert _feature("log_samples", emb_samples=999.0, kv_samples=5000.0) == pytest.approx(3.0)
    assert _feature("kv_volatility", kv_volatility=0.125) == 0.125
    assert _feature("emb_volatility", emb_volatility=0.25) == 0.25
    assert _feature("log_history_cv2", kv_size_cv2=np.e - 1.0) == pytest.approx(1.0)
    shares = [_feature(f"time_share_{part}") for part in ("base", "rows", "history")]
    assert sum(shares) == pytest.approx(1.0, rel=1e-6)


def test_the_features_say_which_way_is_down():
    low, high = (evaluate(_rows(1, current_emb_bytes=share * USABLE), example_model()) for share in (0.1, 0.9))
    for found, name in ((low, "log_p99_up"), (high, "log_p99_down")):
        assert found.guest.features[0, FEATURES.index(name)] < 0.0
        assert found.guest.features[0, FEATURES.index("anchor_gain")] > 0.0
    assert low.guest.features[0, FEATURES.index("ghost_ratio")] > high.guest.features[0, FEATURES.index("ghost_ratio")]


def test_a_feature_outside_its_range_or_not_a_number_is_named():
    model = example_model()
    x = evaluate(_rows(4), model).guest.features.copy()
    assert (out_of_distribution(model, x) == -1).all()
    x[1, 7] = 2.0e6
    x[2, 3] = np.nan
    x[3, 30], x[3, 0] = -2.0e6, np.inf
    np.testing.assert_array_equal(out_of_distribution(model, x), [-1, 7, 3, 0])


def test_a_figure_that_is_not_a_number_makes_the_row_an_outlier_and_no_other():
    rows = _rows(3)
    for column in set(Figure) - {Figure.SMOOTHED_EMB_BYTES, Figure.SMOOTHING, Figure.OBSERVED_P99_MS, Figure.CLAMP_PERCENT}:
        if column <= Figure.MAX_EMB_PERCENT:
            continue  # sizes and bounds are integers checked before
        spoilt = replace(rows, figures=rows.figures.copy())
        spoilt.figures[1, column] = np.nan
        outlier = evaluate(spoilt, example_model()).guest.outlier
        assert outlier[1] >= 0, column
        assert outlier[0] == outlier[2] == -1


def test_the_network_is_two_layers_of_tanh_on_normalised_features_cut_to_one():
    model = example_model(seed=2)
    x = evaluate(_rows(5), model).guest.features
    z = np.clip((x.astype(np.float64) - model.mean) / model.scale, -8.0, 8.0)
    hidden = np.tanh(np.tanh(z @ model.w1.T.astype(np.float64) + model.b1) @ model.w2.T.astype(np.float64) + model.b2)
    np.testing.assert_allclose(act(model, x), np.clip((hidden @ model.w3.T + model.b3)[:, 0], -1.0, 1.0), atol=1e-5)


def test_features_of_a_situation_come_in_the_declared_order_and_type():
    x = evaluate(_rows(2), example_model()).guest.features
    assert x.shape == (2, len(FEATURES)) == (2, 31)
    assert x.dtype == np.float32
    assert features.__doc__
