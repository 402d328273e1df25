"""The file of a trained allocator: float32 arrays and a JSON header in the safetensors format, named by the digest of its bytes.

Nothing in it runs, and reading it needs no torch. A file that is not exactly what this release understands is refused with a
reason, so that whoever asked for it falls back to the anchor and can say why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from policies.allocation.features import FEATURE_SPEC, FEATURES

FORMAT = 1
MAX_FILE_BYTES = 256 * 1024
HIDDEN = 64
MOST_DEVIATIONS = 8.0
"""Normalised features are cut here before the network, to either side."""
LEAST_SCALE = 1e-4
"""Below this a feature, which is a float32 near 1, would be rounded to one end of the normalised range or the other."""
_LARGEST_SUM = 1e37  # float32 ends at 3.4e38; sums in any order stay below it
_LONGEST_MESSAGE = 600
_HEADER_KEY = "grfleet"
_INPUTS = len(FEATURES)
SHAPES: Mapping[str, tuple[int, ...]] = {
    "w1": (HIDDEN, _INPUTS),
    "b1": (HIDDEN,),
    "w2": (HIDDEN, HIDDEN),
    "b2": (HIDDEN,),
    "w3": (1, HIDDEN),
    "b3": (1,),
    "mean": (_INPUTS,),
    "scale": (_INPUTS,),
    "low": (_INPUTS,),
    "high": (_INPUTS,),
}
"""Every array of a model and its shape: three layers, how features are normalised, and the range of each seen in training."""


class ModelRefusal(StrEnum):
    """Why a file is not run; a closed list that conditions may show."""

    TOO_LARGE = "TooLarge"
    DIGEST_MISMATCH = "DigestMismatch"
    NOT_A_MODEL = "NotAModel"
    UNKNOWN_FORMAT = "UnknownFormat"
    UNKNOWN_FEATURES = "UnknownFeatures"
    WRONG_SHAPE = "WrongShape"
    WRONG_TYPE = "WrongType"
    NOT_A_NUMBER = "NotANumber"


class ModelRefused(ValueError):
    """The bytes are not a model that this release runs; `reason` is the kind of fault, the text says what to do."""

    def __init__(self, reason: ModelRefusal, message: str) -> None:
        plain = "".join(
            each if each.isprintable() else " " for each in message
        )  # it may quote the file, which is not to be trusted
        super().__init__(plain if len(plain) <= _LONGEST_MESSAGE else plain[: _LONGEST_MESSAGE - 3] + "...")
        self.reason = reason


class Origin(StrEnum):
    """What an answer of the network is counted from: the split in force, or the smoothed anchor."""

    SPLIT = "Split"
    ANCHOR = "Anchor"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One result of the model in evaluation."""

    name: str
    value: float
    unit: str = ""


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What stands beside the arrays.

    Attributes
    ----------
    format, feature_spec
        Version of this file format, and layout of the features; others are refused.
    max_step_percent
        Points of usable that an answer of 1 stands for.
    origin
        What the answer is counted from.
    refill_modes
        Modes that the model was trained under.
    training
        Command, seed, steps and versions that made it.
    scores
        Its results in evaluation.
    """

    format: int
    feature_spec: str
    max_step_percent: float
    origin: Origin = Origin.SPLIT
    refill_modes: tuple[str, ...] = ()
    training: dict[str, Any] = {}
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class TrainedModel:
    """A verified model; arrays are float32, read-only and shaped as in `SHAPES`."""

    sha256: str
    header: Header
    w1: NDArray[np.float32]
    b1: NDArray[np.float32]
    w2: NDArray[np.float32]
    b2: NDArray[np.float32]
    w3: NDArray[np.float32]
    b3: NDArray[np.float32]
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @property
    def feature_spec(self) -> str:
        return self.header.feature_spec

    @property
    def max_step_percent(self) -> float:
        """Points of usable that an answer of 1 stands for."""
        return self.header.max_step_percent

    @property
    def scores(self) -> Sequence[Score]:
        return self.header.scores


def digest_of(data: bytes) -> str:
    """SHA-256 of all bytes, as 64 lower-case hex digits: the name of a model."""
    return hashlib.sha256(data).hexdigest()


def write_model(arrays: Mapping[str, NDArray[np.float32]], header: Header) -> bytes:
    """Return the bytes of a model file; the same arrays and header give the same bytes.

    Raises
    ------
    ModelRefused
        If the result is nothing that `read_model` would take.
    """
    text = json.dumps(msgspec.to_builtins(header), sort_keys=True, separators=(",", ":"))
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    data = save(contiguous, metadata={_HEADER_KEY: text})
    read_model(data)
    return data


def read_model(data: bytes, *, sha256: str | None = None) -> TrainedModel:
    """Read and verify a model file.

    Parameters
    ----------
    sha256
        The digest that the bytes must have; None takes them as they are.

    Raises
    ------
    ModelRefused
        If size, digest, format, features, shape, type or a value is not as it must be.
    """
    if len(data) > MAX_FILE_BYTES:
        _refuse(ModelRefusal.TOO_LARGE, f"{len(data)} bytes; a model has at most {MAX_FILE_BYTES}")
    digest = digest_of(data)
    if sha256 is not None and digest != sha256:
        _refuse(ModelRefusal.DIGEST_MISMATCH, f"the bytes have sha256 {digest}, not {sha256}; fetch or push the file again")
    header = _header(data)
    try:
        arrays = load(data)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        _refuse(ModelRefusal.NOT_A_MODEL, f"not a readable safetensors file: {error}")
    _check_arrays(arrays)
    for array in arrays.values():
        array.flags.writeable = False
    return TrainedModel(sha256=digest, header=header, **arrays)


def _header(data: bytes) -> Header:
    """Read the JSON at the head of a safetensors file: eight bytes of length, then the text."""
    try:
        length = int.from_bytes(data[:8], "little")
        if not 2 <= length <= len(data) - 8:
            raise ValueError("no header of a safetensors file")
        text = json.loads(data[8 : 8 + length])["__metadata__"][_HEADER_KEY]
        raw = json.loads(text)
        version, spec = raw["format"], raw["featureSpec"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        _refuse(ModelRefusal.NOT_A_MODEL, f"not a model file of grfleet ({type(error).__name__}: {error})")
    if version != FORMAT:
        _refuse(
            ModelRefusal.UNKNOWN_FORMAT, f"format {version!r}; this release reads {FORMAT}: use the release that wrote the file"
        )
    if spec != FEATURE_SPEC:
        _refuse(ModelRefusal.UNKNOWN_FEATURES, f"features {spec!r}; this release computes {FEATURE_SPEC}: train a model for it")
    try:
        header = msgspec.convert(raw, Header)
    except msgspec.ValidationError as error:
        _refuse(ModelRefusal.NOT_A_MODEL, f"header: {error}")
    if not 0.0 < header.max_step_percent <= 100.0:
        _refuse(ModelRefusal.NOT_A_NUMBER, f"header: maxStepPercent is {header.max_step_percent}; it must lie in (0, 100]")
    return header


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    if set(arrays) != set(SHAPES):
        _refuse(ModelRefusal.WRONG_SHAPE, f"arrays {sorted(arrays)}; a model has exactly {sorted(SHAPES)}")
    for name, shape in SHAPES.items():
        array = arrays[name]
        if array.dtype != np.float32:
            _refuse(ModelRefusal.WRONG_TYPE, f"{name} is {array.dtype}, not float32")
        if array.shape != shape:
            _refuse(ModelRefusal.WRONG_SHAPE, f"{name} has shape {array.shape}, not {shape}")
        if not np.isfinite(array).all():
            _refuse(ModelRefusal.NOT_A_NUMBER, f"{name} holds a value that is not a finite number")
    if not (arrays["scale"] >= np.float32(LEAST_SCALE)).all():
        _refuse(ModelRefusal.NOT_A_NUMBER, f"scale holds a value below {LEAST_SCALE}, at which rounding would decide")
    if (arrays["low"] > arrays["high"]).any():
        _refuse(ModelRefusal.NOT_A_NUMBER, "low lies above high for some feature")
    for layer, largest in (("1", MOST_DEVIATIONS), ("2", 1.0), ("3", 1.0)):  # what its inputs can be, at most
        weights, biases = (np.abs(arrays[name + layer].astype(np.float64)) for name in ("w", "b"))
        if (largest * weights.sum(axis=1) + biases).max() > _LARGEST_SUM:
            _refuse(ModelRefusal.NOT_A_NUMBER, f"w{layer} and b{layer} are so large that the answer may not be a number")


def _refuse(reason: ModelRefusal, message: str) -> NoReturn:
    raise ModelRefused(reason, message)
