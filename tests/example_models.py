"""Model files for tests: random weights, right in form, small steps."""

import json
from typing import Any

import numpy as np
from safetensors.numpy import save

from policies.allocation.features import FEATURE_SPEC
from policies.allocation.model_file import SHAPES


def model_bytes(
    seed: int = 0, *, scores: tuple[dict[str, Any], ...] = (), arrays: dict[str, Any] | None = None, **header: Any
) -> bytes:
    """The bytes of a model; `header` and `arrays` replace parts of it, also by what nobody may accept."""
    rng = np.random.default_rng(seed)
    parts = {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
    parts["scale"] = np.ones(SHAPES["scale"], np.float32)
    parts["low"] = np.full(SHAPES["low"], -1e9, np.float32)
    parts["high"] = np.full(SHAPES["high"], 1e9, np.float32)
    text = {"format": 1, "featureSpec": FEATURE_SPEC, "maxStepPercent": 5.0, "scores": list(scores), **header}
    return save({**parts, **(arrays or {})}, metadata={"grfleet": json.dumps(text, sort_keys=True)})
