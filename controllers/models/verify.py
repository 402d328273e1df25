"""Whether the bytes that an AllocatorModel points at are the model that it promises. Pure; what a model is, the policy says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controllers.model_bytes import binary_of
from controllers.runtime.conditions import Condition
from controllers.runtime.resources import Object
from crds import AllocatorModelSpec
from crds.allocator_model import MAX_SCORES
from policies.allocation.model_file import ModelRefused, Score, read_model

_OTHERS = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 63
_LARGEST = 1e9
_DECIMALS = 6
_LONGEST_UNIT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found at the source.

    Attributes
    ----------
    data
        The bytes, if they were verified.
    size_bytes
        How many bytes there are; None where there are none.
    scores
        The scores of the file, as the API has them.
    """

    condition: Condition
    data: bytes | None = None
    size_bytes: int | None = None
    scores: tuple[dict[str, Any], ...] = ()


def verify(spec: AllocatorModelSpec, config_map: Object | None) -> Verdict:
    """Judge what the source has.

    Parameters
    ----------
    config_map
        The ConfigMap that the model names, None where there is none.
    """
    ref = spec.config_map_key_ref
    if config_map is None:
        return _refused("ConfigMapMissing", f"there is no ConfigMap {ref.name} in this namespace; create it with the bytes")
    data = binary_of(config_map, ref)
    if data is None:
        keys = ", ".join(sorted(config_map.get("binaryData") or ())[:5]) or "nothing"
        return _refused("KeyMissing", f"ConfigMap {ref.name} has no {ref.key} in its binaryData, which has {keys}")
    try:
        model = read_model(data, sha256=spec.sha256)
    except ModelRefused as error:
        return _refused(error.reason.value, str(error), size_bytes=len(data))
    if model.feature_spec != spec.feature_spec:
        why = f"the bytes are a model for {model.feature_spec}, and spec.featureSpec says {spec.feature_spec}"
        return _refused("OtherFeatures", why, size_bytes=len(data))
    size = f"{len(data)} bytes of ConfigMap {ref.name}"
    return Verdict(
        condition=Condition("Verified", "True", "Verified", f"{size} are the model with this digest"),
        data=data,
        size_bytes=len(data),
        scores=tuple(api_scores(model.scores)),
    )


def api_scores(scores: Iterable[Score]) -> list[dict[str, Any]]:
    """Scores as the API takes them: names as labels, each once, no more than it holds; what has no place there is left out."""
    found: dict[str, dict[str, Any]] = {}
    for score in scores:
        name = _OTHERS.sub("-", score.name.lower())[:_LONGEST_NAME].strip("-")
        fits = name and _fits_unit(score.unit) and math.isfinite(score.value) and abs(round(score.value, _DECIMALS)) < _LARGEST
        if fits and len(found) < MAX_SCORES:
            found.setdefault(name, {"name": name, "value": _decimal(score.value), "unit": score.unit})
    return list(found.values())


def _fits_unit(unit: str) -> bool:
    """Whether the API gives back what it was given: it has no halves of characters, and people are to read it."""
    return len(unit) <= _LONGEST_UNIT and unit.isprintable()


def _decimal(value: float) -> str:
    text = f"{value:.{_DECIMALS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _refused(reason: str, message: str, *, size_bytes: int | None = None) -> Verdict:
    return Verdict(condition=Condition("Verified", "False", reason, message), size_bytes=size_bytes)
