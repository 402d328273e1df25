"""How features are normalised before the network: measured once, before training, then fixed, and part of the model file."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from policies.allocation.features import FEATURES
from policies.allocation.model_file import MOST_DEVIATIONS
from training.dynamics import Instances

_LEAST_SCALE = 1e-3


@dataclass(frozen=True)
class Normal:
    """Mean and scale of each feature, float32[31]."""

    MOST: ClassVar[float] = MOST_DEVIATIONS
    """Deviations at which features are cut, as agents do."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]

    @staticmethod
    def none() -> "Normal":
        """Features as they are."""
        return Normal(np.zeros(len(FEATURES), dtype=np.float32), np.ones(len(FEATURES), dtype=np.float32))

    @staticmethod
    def measured(instances: Instances, rng: np.random.Generator, *, steps: int = 120) -> "Normal":
        """Measure both while half of the instances follow the smoothed anchor and half wander."""
        seen = []
        heading = np.zeros(len(instances))
        follows = np.arange(len(instances)) % 2 == 0
        for _ in range(steps):
            seen.append(instances.features())
            heading = 0.9 * heading + 0.3 * rng.standard_normal(len(instances))
            instances.step(np.where(follows, 0.0, heading))
        x = np.concatenate(seen).astype(np.float64)
        return Normal(x.mean(axis=0).astype(np.float32), np.maximum(x.std(axis=0), _LEAST_SCALE).astype(np.float32))

    def of(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return normalised features, cut at `MOST` deviations."""
        return np.asarray(np.clip((x - self.mean) / self.scale, -self.MOST, self.MOST), dtype=np.float32)
