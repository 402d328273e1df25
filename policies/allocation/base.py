"""The frozen base: a small network trained with PPO that says how far the split should stand from where it is counted from.

Two layers of 64 tanh, as stable-baselines3 trains them, on normalised features. It is a guest: it acts only on features inside
the ranges that training saw, and only inside a clamp around the anchor, which widens when the anchor's curves are restless.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policies.allocation.model_file import MOST_DEVIATIONS, TrainedModel

_WIDEN_PER_VOLATILITY = 40.0
_MOST_WIDENING = 4.0


def act(model: TrainedModel, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the network's answer for each row of features (float32[n, 31]): float64[n], -1..1."""
    z = np.clip((x - model.mean) / model.scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    hidden = np.tanh(z @ model.w1.T + model.b1)
    hidden = np.tanh(hidden @ model.w2.T + model.b2)
    answer = (hidden @ model.w3.T + model.b3)[:, 0].astype(np.float64)
    return np.asarray(np.clip(answer, -1.0, 1.0), dtype=np.float64)


def out_of_distribution(model: TrainedModel, x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return for each row the index of the first feature outside what training saw (or not a number), -1 for none."""
    outside = ~((x >= model.low) & (x <= model.high))
    return np.where(outside.any(axis=1), outside.argmax(axis=1), -1)


def widening(volatility: float) -> float:
    """How many times wider than on a steady stream the clamp is under this volatility; see `clamp_points`."""
    return min(1.0 + _WIDEN_PER_VOLATILITY * volatility, _MOST_WIDENING)


def clamp_points(clamp_percent: NDArray[np.float64], volatility: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far from the anchor the base may go, in points of usable to either side.

    Parameters
    ----------
    clamp_percent
        The policy's width on a steady stream.
    volatility
        Greater volatility of the two curves, in miss ratio. A clamp around an anchor that is itself noise imports the noise, so
        the width grows with it, up to four times.
    """
    times = np.minimum(1.0 + _WIDEN_PER_VOLATILITY * volatility, _MOST_WIDENING)
    return np.asarray(clamp_percent * times, dtype=np.float64)
