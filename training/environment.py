"""The two faces of the dynamics for learning libraries: many instances as one stable-baselines3 VecEnv, one as a gymnasium Env.

Observations are the features of `policies.allocation.features`, normalised and cut as an exported model does it, so what PPO
learns is the network that agents run. An action of 1 asks for `MAX_STEP_PERCENT` points of usable beyond the smoothed anchor.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from policies.allocation.features import FEATURES
from training.curves import RowTables, row_tables
from training.dynamics import Instances
from training.normal import Normal
from training.worlds import Worlds, draw_worlds

OBSERVATIONS = spaces.Box(-Normal.MOST, Normal.MOST, shape=(len(FEATURES),), dtype=np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, shape=(1,), dtype=np.float32)


class ManyInstances(VecEnv):  # type: ignore[misc]  # torch's libraries are not there when types are checked
    """All instances in one call a step; keeps the range of every feature it has shown."""

    def __init__(self, instances: Instances, normal: Normal) -> None:
        super().__init__(len(instances), OBSERVATIONS, ACTIONS)
        self.instances, self.normal = instances, normal
        self.low = np.full(len(FEATURES), np.inf, dtype=np.float32)
        self.high = np.full(len(FEATURES), -np.inf, dtype=np.float32)
        self._actions = np.zeros(len(instances))

    def look(self) -> NDArray[np.float32]:
        """Return the normalised features of this moment, float32[n, 31]; once a step."""
        x = self.instances.features()
        np.minimum(self.low, x.min(axis=0), out=self.low)
        np.maximum(self.high, x.max(axis=0), out=self.high)
        return self.normal.of(x)

    def reset(self) -> NDArray[np.float32]:
        return self.look()

    def step_async(self, actions: NDArray[np.float32]) -> None:
        self._actions = actions[:, 0].astype(np.float64)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        outcome = self.instances.step(self._actions)
        return self.look(), outcome.reward.astype(np.float32), outcome.done, [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        """Nothing is held."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("instances share one simulation: set the attribute there")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("instances share one simulation: call the method there")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


@dataclass
class _Shared:
    tables: RowTables
    normal: Normal


class OneInstance(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):  # type: ignore[misc]  # as above
    """One instance in a newly drawn world each episode, for whoever wants to try another algorithm.

    Parameters
    ----------
    tables
        Row laws; those of the curriculum (some seconds) when absent.
    normal
        How features are normalised; not at all when absent.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (gymnasium's own declaration)
    observation_space = OBSERVATIONS
    action_space = ACTIONS

    def __init__(self, *, tables: RowTables | None = None, normal: Normal | None = None) -> None:
        self._shared = _Shared(tables or row_tables(), normal or Normal.none())
        self._instances: Instances | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        world: Worlds = draw_worlds(1, self._shared.tables, self.np_random)
        self._instances = Instances(world, self._shared.tables, self.np_random)
        return self._look(self._instances), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._instances is None:
            raise RuntimeError("reset the environment first")
        outcome = self._instances.step(np.asarray(action, dtype=np.float64).reshape(1))
        told = {"p99_ms": float(outcome.p99_ms[0]), "best_p99_ms": float(outcome.best_p99_ms[0])}
        return self._look(self._instances), float(outcome.reward[0]), False, bool(outcome.done[0]), told

    def _look(self, instances: Instances) -> NDArray[np.float32]:
        return np.asarray(self._shared.normal.of(instances.features())[0], dtype=np.float32)
