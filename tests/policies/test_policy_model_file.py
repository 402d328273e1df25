"""The file of a trained allocator: what is written is read back, and whatever is not exactly right is refused by its reason."""

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import load, save

from policies.allocation.base import act
from policies.allocation.examples import example_model_arrays, example_model_header
from policies.allocation.model_file import (
    LEAST_SCALE,
    MAX_FILE_BYTES,
    SHAPES,
    ModelRefusal,
    ModelRefused,
    digest_of,
    read_model,
    write_model,
)


def _file(*, arrays=None, header=None) -> bytes:
    """A file with some of its parts replaced, written without the checks of `write_model`."""
    text = dict(json.loads(json.dumps(_header())), **(header or {}))
    return save({**example_model_arrays(seed=1), **(arrays or {})}, metadata={"grfleet": json.dumps(text)})


def _header():
    return {"format": 1, "featureSpec": "split-features-1", "maxStepPercent": 5.0}


def _refusal(data: bytes, **given) -> ModelRefusal:
    with pytest.raises(ModelRefused) as caught:
        read_model(data, **given)
    assert str(caught.value)
    return caught.value.reason


def test_a_written_model_is_read_back_to_the_bit_and_named_by_its_digest():
    arrays, header = example_model_arrays(seed=3), example_model_header()
    data = write_model(arrays, header)
    model = read_model(data, sha256=digest_of(data))
    assert model.sha256 == digest_of(data)
    assert model.header == header
    for name, array in arrays.items():
        np.testing.assert_array_equal(getattr(model, name), array)


def test_the_same_arrays_and_header_give_the_same_bytes():
    arrays = example_model_arrays(seed=3)
    turned = dict(reversed(arrays.items()))
    assert write_model(arrays, example_model_header()) == write_model(turned, example_model_header())


def test_the_arrays_of_a_model_cannot_be_written_to():
    model = read_model(write_model(example_model_arrays(seed=3), example_model_header()))
    with pytest.raises(ValueError, match="read-only"):
        model.w1[0, 0] = 1.0


def test_a_flipped_bit_anywhere_is_another_digest_and_refused():
    data = write_model(example_model_arrays(seed=3), example_model_header())
    digest = digest_of(data)
    for place in range(0, len(data), 997):
        bad = bytearray(data)
        bad[place] ^= 1
        assert _refusal(bytes(bad), sha256=digest) is ModelRefusal.DIGEST_MISMATCH


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64, 500, 20_000])
def test_a_file_cut_short_is_no_model(length):
    assert _refusal(write_model(example_model_arrays(seed=3), example_model_header())[:length]) is ModelRefusal.NOT_A_MODEL


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04" + bytes(64),
        pickle.dumps({"w1": [1.0]}),
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"{}",
        (6).to_bytes(8, "little") + b"[1, 2]",
        (500).to_bytes(8, "little") + b"[" * 500,
        save({"w1": np.zeros((2, 2), dtype=np.float32)}),
    ],
    ids=["zip", "pickle", "noise", "empty header", "a list", "deep", "other safetensors"],
)
def test_other_kinds_of_files_are_no_model_and_nothing_of_them_runs(data):
    assert _refusal(data) is ModelRefusal.NOT_A_MODEL


def test_what_is_too_large_is_refused_before_it_is_looked_at():
    assert _refusal(bytes(MAX_FILE_BYTES + 1)) is ModelRefusal.TOO_LARGE


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"format": 2}, ModelRefusal.UNKNOWN_FORMAT),
        ({"format": "1"}, ModelRefusal.UNKNOWN_FORMAT),
        ({"featureSpec": "split-features-2"}, ModelRefusal.UNKNOWN_FEATURES),
        ({"featureSpec": None}, ModelRefusal.UNKNOWN_FEATURES),
        ({"maxStepPercent": 0.0}, ModelRefusal.NOT_A_NUMBER),
        ({"maxStepPercent": float("nan")}, ModelRefusal.NOT_A_NUMBER),
        ({"maxStepPercent": "5"}, ModelRefusal.NOT_A_MODEL),
        ({"origin": "Elsewhere"}, ModelRefusal.NOT_A_MODEL),
        ({"scores": [{"name": "x"}]}, ModelRefusal.NOT_A_MODEL),
    ],
)
def test_a_header_that_this_release_does_not_know_is_refused(header, reason):
    assert _refusal(_file(header=header)) is reason


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_array_must_be_there_with_its_shape_type_and_finite_values(name):
    good = example_model_arrays(seed=1)
    assert _refusal(_file(arrays={name: good[name][..., None]})) is ModelRefusal.WRONG_SHAPE
    assert _refusal(_file(arrays={name: good[name].astype(np.float64)})) is ModelRefusal.WRONG_TYPE
    for value in (np.nan, np.inf, -np.inf):
        spoilt = good[name].copy()
        spoilt.flat[-1] = value
        assert _refusal(_file(arrays={name: spoilt})) is ModelRefusal.NOT_A_NUMBER


def test_an_array_that_no_model_has_is_refused():
    assert _refusal(_file(arrays={"more": np.zeros(1, dtype=np.float32)})) is ModelRefusal.WRONG_SHAPE
    arrays = load(write_model(example_model_arrays(seed=1), example_model_header()))
    del arrays["b3"]
    assert _refusal(save(arrays, metadata={"grfleet": json.dumps(_header())})) is ModelRefusal.WRONG_SHAPE


@pytest.mark.parametrize("scale", [-1.0, -0.0, 0.0, 1e-45, 1e-38, 1e-5])
def test_a_scale_at_which_the_last_digit_of_a_feature_would_decide_is_refused(scale):
    scales = np.ones(SHAPES["scale"], dtype=np.float32)
    scales[3] = scale
    assert _refusal(_file(arrays={"scale": scales})) is ModelRefusal.NOT_A_NUMBER


def test_a_range_turned_round_is_refused():
    high = np.full(SHAPES["high"], -1e9, dtype=np.float32)
    assert _refusal(_file(arrays={"high": high})) is ModelRefusal.NOT_A_NUMBER


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2", "w3", "b3"])
@pytest.mark.parametrize("size", [3e38, 1e37])
def test_finite_weights_of_which_sums_may_be_no_numbers_are_refused(name, size):
    signs = np.where(np.arange(np.prod(SHAPES[name])) % 2, 1.0, -1.0).reshape(SHAPES[name])
    assert _refusal(_file(arrays={name: (1.01 * size * signs).astype(np.float32)})) is ModelRefusal.NOT_A_NUMBER


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_answers_with_numbers_on_all_features_that_are_numbers(seed):
    random = np.random.default_rng(seed)
    arrays = example_model_arrays(seed=seed)
    for array in arrays.values():
        some = random.random(array.shape) < 0.2
        array[some] *= 10.0 ** random.uniform(-40.0, 28.0, size=int(some.sum()))
    arrays["scale"] = np.maximum(np.abs(arrays["scale"]), np.float32(LEAST_SCALE))
    arrays["low"], arrays["high"] = -np.abs(arrays["low"]), np.abs(arrays["high"])
    model = read_model(_file(arrays=arrays))
    x = (random.standard_normal((50, len(arrays["mean"]))) * 10.0 ** random.uniform(-40.0, 38.0, size=(50, 1))).astype(np.float32)
    with np.errstate(over="ignore"):
        assert np.isfinite(act(model, x)).all()


def _with_tensor(name: str, **changes) -> bytes:
    """A file with one more array, of which the header says something that cannot be."""
    good = _file()
    end = 8 + int.from_bytes(good[:8], "little")
    header = json.loads(good[8:end])
    header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + good[end:]


@pytest.mark.parametrize(
    "data",
    [
        _file(header={"format": "\x1b[2J" * 1000}),
        _file(header={"featureSpec": "\ud800\u202e" * 1000}),
        _file(header={"refillModes": {"\x1b[2J": "\x07"}}),
        _file(arrays={"\x1b]0;owned\x07" * 1000: np.zeros(1, dtype=np.float32)}),
        _with_tensor("\x1b]0;owned\x07", data_offsets=[10**9, 10**9 + 4]),
        _with_tensor("w4", dtype="\x1b[2J\n" * 1000),
    ],
)
def test_a_refusal_is_one_line_that_steers_no_terminal_whatever_the_file_has_in_it(data):
    with pytest.raises(ModelRefused) as caught:
        read_model(data)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 600


def test_nothing_is_written_that_would_not_be_read():
    arrays = example_model_arrays(seed=1)
    arrays["w2"] = np.full(SHAPES["w2"], np.nan, dtype=np.float32)
    with pytest.raises(ModelRefused):
        write_model(arrays, example_model_header())
