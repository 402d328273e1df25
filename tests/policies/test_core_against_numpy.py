"""The compiled path gives what the numpy reference gives: same anchor, same features, same answer, same refusal."""

import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from policies.allocation import core
from policies.allocation.estimator import ReuseTimeEstimator
from policies.allocation.examples import GIB, pack_curve
from policies.allocation.features import FEATURE_SPEC, FEATURES
from policies.allocation.model_file import SHAPES, Header, Origin, TrainedModel, read_model, write_model
from policies.allocation.path import Figure, PathRows, evaluate, evaluate_numpy, evaluate_one

pytestmark = pytest.mark.skipif(not core.available(), reason=f"no compiled core: {core.why_not()}")

T = TypeVar("T")
GRANULE = 64 << 20
NAMES = ("anchor_emb_bytes", "anchor_p99_ms", "smoothed_emb_bytes", "current_p99_ms")
DECLINED = core.Outcome(*[math.nan] * len(core.Outcome._fields))
GUEST_NAMES = ("action", "emb_bytes", "p99_ms", "smoothed_p99_ms")


def random_model(seed: int, origin: Origin = Origin.SPLIT, *, ranges: float = 1e6) -> TrainedModel:
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(0.0, 0.4, size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["scale"] = np.abs(arrays["scale"]) + np.float32(0.05)
    arrays["low"] = np.full(len(FEATURES), -ranges, dtype=np.float32)
    arrays["high"] = np.full(len(FEATURES), ranges, dtype=np.float32)
    header = Header(format=1, feature_spec=FEATURE_SPEC, max_step_percent=12.5, origin=origin)
    return read_model(write_model(arrays, header))


MODELS = {
    "none": None,
    "from the split": random_model(1),
    "from the anchor": random_model(2, Origin.ANCHOR),
    "that knows little": random_model(3, ranges=0.7),
}


def curve(rng: np.random.Generator, kind: str, points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A miss-ratio curve with `points` points: of a cache that works, or one of the ways in which a curve can be degenerate."""
    capacity = np.cumsum(rng.exponential(1.0, points) * 10.0 ** rng.uniform(-3.0, 0.5)) * 16 * GIB / points
    miss = np.sort(rng.random(points))[::-1].copy()
    match kind:
        case "all miss":
            miss[:] = 1.0
        case "all hit":
            miss[:] = 0.0
        case "no capacity":
            capacity[:] = 0.0
        case "steps":
            capacity = np.repeat(capacity[::3], 3)[:points]
        case "flat":
            miss[:] = miss[0]
        case "endless":
            capacity[-1] = math.inf
        case "hole":
            miss[points // 2] = math.nan
        case "not rising":
            capacity = capacity[::-1].copy()
        case "no number":
            capacity[points // 2] = math.nan
        case "up and down":
            miss = rng.random(points)
    return capacity, miss


HEALTHY = ("working", "all miss", "all hit", "no capacity", "steps", "flat", "endless")
BROKEN = ("hole", "not rising", "no number", "up and down")


@st.composite
def path_rows(draw: st.DrawFn, *, kinds: tuple[str, ...] = HEALTHY, holes: bool = False) -> PathRows:
    """One to three instances in states that may happen, and some that should not."""
    n = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    points = [draw(st.sampled_from((1, 2, 3, 30, 97, 250))) for _ in range(2)]
    curves = [[curve(rng, draw(st.sampled_from(kinds)), p) for _ in range(n)] for p in points]
    figures = np.empty((n, len(Figure)))
    for row in figures:
        granule = draw(st.sampled_from((1, 4096, GRANULE, 256 << 20)))
        granules = draw(st.one_of(st.integers(2, 4), st.integers(5, 300), st.integers(2, 1 << 20)))
        usable = granule * granules + draw(st.integers(0, granule - 1))
        low = draw(st.sampled_from((0.0, 0.5, 5.0, 33.3, 50.0)))
        high = max(low, draw(st.sampled_from((low, low + 0.2, 50.0, 66.6, 95.0, 100.0))))
        row[:] = (
            usable,
            granule,
            draw(st.integers(0, granules)) * granule if draw(st.booleans()) else draw(st.integers(0, usable)),
            low,
            high,
            draw(st.sampled_from((0.0, 5.0, 10.0))),
            draw(st.floats(0.0, 0.01)),
            draw(st.floats(0.0, 0.03)),
            draw(st.floats(0.0, 4.0)),
            draw(st.floats(0.0, 10.0)),
            draw(st.floats(0.0, 4.0)),
            draw(st.sampled_from((0.0, 1.0, 200.0, 1000.0, 1e5))),  # from no load to far beyond saturation
            draw(st.floats(0.0, 20_000.0)),
            draw(st.floats(0.0, 20_000.0)),
            draw(st.floats(0.0, 3.0)),
            draw(st.one_of(st.just(math.nan), st.floats(0.0, float(usable)))),
            draw(st.floats(0.0, 1.0)),
            draw(st.floats(0.0, 0.5)),
            draw(st.floats(0.0, 0.5)),
            draw(st.floats(0.0, 1e6)),
            draw(st.floats(0.0, 1e6)),
            draw(st.one_of(st.just(math.nan), st.floats(0.0, 1e4))),
            draw(st.floats(0.0, 2.0)),
            draw(st.floats(0.0, 2.0)),
            draw(st.sampled_from((0.0, 1.0))),
            draw(st.integers(0, usable)),
            draw(st.floats(-1.0, 1.0)),
        )
        if holes:
            for place in draw(st.lists(st.integers(0, len(Figure) - 1), min_size=1, max_size=3)):
                row[place] = draw(st.sampled_from((math.nan, math.inf, -math.inf, -1.0, 0.5)))
    stacked = [np.array([pair[part] for pair in side]) for side in curves for part in (0, 1)]
    return PathRows(*stacked, figures)


def outcome(call: Callable[[], T]) -> T | type[BaseException]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return call()
        except (ValueError, OverflowError, IndexError) as refusal:
            return type(refusal)


def assert_same(rows: PathRows, model: TrainedModel | None) -> None:
    compiled, reference = outcome(lambda: evaluate(rows, model)), outcome(lambda: evaluate_numpy(rows, model))
    if isinstance(reference, type) or isinstance(compiled, type):
        assert compiled is reference
        return
    usable = rows.figures[:, Figure.USABLE_BYTES]

    def alike(mine: NDArray[Any], theirs: NDArray[Any], name: str, unit: NDArray[np.float64] | float = 1.0) -> None:
        np.testing.assert_allclose(mine / unit, theirs / unit, rtol=1e-5, atol=1e-5, err_msg=name)

    np.testing.assert_array_equal(compiled.anchor_emb_bytes, reference.anchor_emb_bytes)
    for name in NAMES:
        alike(getattr(compiled, name), getattr(reference, name), name, usable if name.endswith("bytes") else 1.0)
    assert (compiled.guest is None) == (reference.guest is None)
    if compiled.guest is None or reference.guest is None:
        return
    alike(compiled.guest.features, reference.guest.features, "features")
    np.testing.assert_array_equal(compiled.guest.outlier, reference.guest.outlier)
    for name in GUEST_NAMES:
        alike(getattr(compiled.guest, name), getattr(reference.guest, name), name, usable if name.endswith("bytes") else 1.0)
    assert compiled.guest.clamped.dtype == np.bool_


@settings(max_examples=300, deadline=None)
@given(rows=path_rows(), model=st.sampled_from(sorted(MODELS)))
def test_in_any_state_the_compiled_path_answers_as_numpy_does(rows: PathRows, model: str) -> None:
    made = core.evaluate(*(getattr(rows, name) for name in PathRows.__slots__), MODELS[model])
    assert made is not None, "the core must not decline what is well-formed"
    assert_same(rows, MODELS[model])


@settings(max_examples=300, deadline=None)
@given(rows=path_rows(kinds=HEALTHY + BROKEN, holes=True), model=st.sampled_from(sorted(MODELS)))
def test_figures_and_curves_that_are_no_numbers_are_answered_or_refused_alike(rows: PathRows, model: str) -> None:
    assert_same(rows, MODELS[model])


@settings(max_examples=100, deadline=None)
@given(rows=path_rows(kinds=HEALTHY + BROKEN, holes=True), model=st.sampled_from(sorted(MODELS)))
def test_one_instance_is_answered_or_refused_as_a_row_among_many(rows: PathRows, model: str) -> None:
    parts = (getattr(rows, name)[0] for name in PathRows.__slots__[:4])
    emb, kv = (pack_curve(capacity_bytes=capacity, miss_ratio=miss) for capacity, miss in zip(parts, parts, strict=False))
    first = PathRows(*(getattr(rows, name)[:1] for name in PathRows.__slots__))
    alone = outcome(lambda: evaluate_one(emb, kv, rows.figures[0].tolist(), MODELS[model]))
    among = outcome(lambda: evaluate(first, MODELS[model]))
    if isinstance(among, type) or isinstance(alone, type):
        assert alone is among
        return
    expected = [getattr(among, name) for name in NAMES]
    if among.guest is not None:
        guest = among.guest
        expected += [guest.outlier, guest.action, guest.emb_bytes, guest.clamped, guest.p99_ms, guest.smoothed_p99_ms]
    np.testing.assert_array_equal(alone[: len(expected)], [column[0] for column in expected])
    assert np.isnan(alone[len(expected) :]).all()


def test_nothing_is_read_beyond_its_end() -> None:
    good = pack_curve(capacity_bytes=np.array([0.0, 1e9]), miss_ratio=np.array([1.0, 0.1]))
    for wrong in (good.packed_miss_ratio[:8], good.packed_miss_ratio[:15], b"", good.packed_miss_ratio * 2):
        with pytest.raises(ValueError, match="as many miss ratios as capacities"):
            replace(good, packed_miss_ratio=wrong)
    figures = [16.0 * GIB, GRANULE, 8.0 * GIB, 5.0, 95.0] + [0.5] * (len(Figure) - 5)
    one = core.bind(lambda emb, kv, figures, model: DECLINED)
    assert one(good, good, figures, None) is not DECLINED
    assert one(good, good, figures[:-1], None) is DECLINED
    assert one(good, good, [*figures, 1.0], None) is DECLINED
    assert one(good, good, [math.nan, *figures[1:]], None) is DECLINED


def test_threads_with_models_of_their_own_do_not_disturb_each_other() -> None:
    curve = pack_curve(capacity_bytes=np.linspace(0.0, 32e9, 97), miss_ratio=np.linspace(1.0, 0.05, 97))
    figures = [16.0 * GIB, GRANULE, 8.0 * GIB, 5.0, 95.0] + [0.3] * (len(Figure) - 5)
    expected = {name: evaluate_one(curve, curve, figures, model) for name, model in MODELS.items()}

    def ask(turn: int) -> bool:
        name = sorted(MODELS)[turn % len(MODELS)]
        made = [evaluate_one(curve, curve, figures, MODELS[name]) for _ in range(50)]
        return all(np.array_equal(each, expected[name], equal_nan=True) for each in made)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(64)))


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, (1 << 30) - 1), st.integers(0, 40), st.integers(0, 3000)), max_size=60
    ),
    in_order=st.booleans(),
    pause_ms=st.floats(0.0, 5000.0),
)
def test_sample_records_are_taken_in_by_the_core_as_by_numpy(
    records: list[tuple[int, int, int, int]], in_order: bool, pause_ms: float
) -> None:
    compiled, reference = (ReuseTimeEstimator(sample_rate=0.5, decay_ms=900.0, table_entries=32) for _ in range(2))
    reference._compiled = lambda *_: None
    now_ms = 0.0
    for _ in range(3):
        stamps = [1000.0 * now_ms + 1000 * late for *_, late in records]
        rows = zip(records, sorted(stamps) if in_order else stamps, strict=True)
        words = [(kind << 62 | size << 32 | 77, mix(key), int(at)) for (kind, size, key, _), at in rows]
        packed = np.array(words, dtype=np.uint64).reshape(-1, 3)
        now_ms += 1500.0 + pause_ms  # some records are from the future
        for estimator in (compiled, reference):
            for kind in (0, 1):
                estimator.ingest_records(
                    packed, kind=kind, unit_bytes=512.0, shift_ms=3.0, asked_bytes=1e6 * len(words), now_ms=now_ms
                )
        pair = [estimator.view(now_ms=now_ms) for estimator in (compiled, reference)]
        assert (pair[0] is None) == (pair[1] is None)
        if pair[0] is not None and pair[1] is not None:
            np.testing.assert_allclose(pair[0].capacity_bytes, pair[1].capacity_bytes, rtol=1e-9)
            np.testing.assert_allclose(pair[0].miss_ratio, pair[1].miss_ratio, rtol=1e-9, atol=1e-9)
            assert [pair[0].samples, pair[0].age_ms, pair[0].window_ms, pair[0].size_cv2] == pytest.approx(
                [pair[1].samples, pair[1].age_ms, pair[1].window_ms, pair[1].size_cv2]
            )


def mix(key: int) -> int:
    return (key * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
