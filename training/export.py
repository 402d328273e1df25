"""From a trained network to the file that agents run: six arrays, how features are normalised, and the ranges that it knows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.allocation.features import FEATURE_SPEC
from policies.allocation.model_file import FORMAT, Header, Origin, Score, write_model
from training.dynamics import MAX_STEP_PERCENT
from training.normal import Normal
from training.worlds import Refill

_LAYERS = {
    "w1": "mlp_extractor.policy_net.0.weight",
    "b1": "mlp_extractor.policy_net.0.bias",
    "w2": "mlp_extractor.policy_net.2.weight",
    "b2": "mlp_extractor.policy_net.2.bias",
    "w3": "action_net.weight",
    "b3": "action_net.bias",
}
RANGE_MARGIN = 0.02
"""Share of a feature's range by which the range that the model accepts is wider than the range that training saw."""

Arrays = dict[str, NDArray[np.float32]]


def network_of(weights: Mapping[str, Any]) -> Arrays:
    """Return the six arrays of the policy network from the state dict of a stable-baselines3 policy."""
    return {name: np.array(weights[key].detach().cpu().numpy(), dtype=np.float32) for name, key in _LAYERS.items()}


def model_bytes(
    network: Arrays,
    normal: Normal,
    low: NDArray[np.float32],
    high: NDArray[np.float32],
    *,
    training: Mapping[str, Any] | None = None,
    scores: tuple[Score, ...] = (),
) -> bytes:
    """Return the model file: network, normalisation, ranges with their margin, and the header."""
    margin = np.maximum(RANGE_MARGIN * (high - low), 1e-6).astype(np.float32)
    header = Header(
        format=FORMAT,
        feature_spec=FEATURE_SPEC,
        max_step_percent=MAX_STEP_PERCENT,
        origin=Origin.ANCHOR,
        refill_modes=tuple(mode.name.lower() for mode in Refill),
        training=dict(training or {}),
        scores=scores,
    )
    arrays = network | {"mean": normal.mean, "scale": normal.scale, "low": low - margin, "high": high + margin}
    return write_model(arrays, header)
