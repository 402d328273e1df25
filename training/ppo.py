"""PPO by stable-baselines3 over many instances at once: one seed, validation, early stop, checkpoints that survive a kill.

A checkpoint is written between two rollouts and holds everything that changes: weights, optimiser, instances, random numbers. So
a run that was killed and resumed ends with the same bytes as one that was not. One torch thread: with two, digests differ and
time is lost.
"""

import io
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from policies.allocation.model_file import TrainedModel, read_model
from training.controllers import free
from training.curves import RowTables
from training.dynamics import MAX_STEP_PERCENT, Instances
from training.environment import ManyInstances
from training.evaluation import play
from training.export import Arrays, model_bytes, network_of
from training.files import make_folder, replace_file
from training.normal import Normal
from training.worlds import Worlds, draw_worlds

POOL_WORLDS = 8192
VALIDATION_WORLDS = 256
VALIDATION_STEPS = 120
VALIDATION_SEED = 9001
_CHECKPOINT_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Numbers of one training run; the same plan and seed give the same model on the same machine type and versions."""

    steps: int = 1_200_000
    instances: int = 256
    rollout: int = 64
    batch: int = 4096
    epochs: int = 5
    learning_rate: float = 1.2e-3
    gamma: float = 0.9
    gae_lambda: float = 0.9
    log_std: float = -2.0
    worlds: int = POOL_WORLDS
    warm_start_rounds: int = 0
    validate_every: int = 10
    patience: int = 8


@dataclass(frozen=True)
class Trained:
    """Best network of one seed."""

    seed: int
    network: Arrays
    normal: Normal
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    validation_reward: float
    steps: int
    best_steps: int

    def model(self) -> TrainedModel:
        """Return the network as agents would read it, with a header that says nothing."""
        return read_model(model_bytes(self.network, self.normal, self.low, self.high))


Progress = Callable[[int, int, str], None]


def train(
    plan: Plan,
    tables: RowTables,
    *,
    seed: int,
    folder: Path,
    resume: bool = False,
    progress: Progress = lambda steps, total, note: None,
    log_formats: tuple[str, ...] = ("csv",),
) -> Trained:
    """Train one seed.

    Parameters
    ----------
    folder
        For checkpoint and logs; made if missing.
    resume
        Go on from the checkpoint of the same plan and seed, if there is one.
    progress
        Called now and then with steps done, steps in all and a word about the state.
    log_formats
        Formats of the stable-baselines3 logger ("tensorboard" needs that package).

    Raises
    ------
    ValueError
        If the checkpoint belongs to another plan or seed, or is damaged.
    OSError
        If the folder cannot be written to.
    """
    make_folder(folder)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    pool = draw_worlds(plan.worlds, tables, np.random.default_rng([seed, 11]))
    first = draw_worlds(plan.instances, tables, np.random.default_rng([seed, 12]))
    normal = Normal.measured(
        Instances(first.take(np.arange(len(first))), tables, np.random.default_rng([seed, 13])), np.random.default_rng([seed, 14])
    )
    instances = Instances(first, tables, np.random.default_rng([seed, 15]), pool=pool)
    instances.stagger()
    env = ManyInstances(instances, normal)
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=lambda left: plan.learning_rate * max(left, 0.02),
        n_steps=plan.rollout,
        batch_size=plan.batch,
        n_epochs=plan.epochs,
        gamma=plan.gamma,
        gae_lambda=plan.gae_lambda,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh, "log_std_init": plan.log_std},
        seed=seed,
        device="cpu",
    )
    model.set_logger(configure(str(folder / f"seed-{seed}-log"), list(log_formats)))
    watch = _Watch(plan, seed, env, tables, folder / f"seed-{seed}.checkpoint", progress)
    if resume and watch.path.exists():
        watch.resume(model)
    else:
        _warm_start(model, env, plan, progress)
    left = plan.steps - model.num_timesteps
    if left > 0 and not watch.ended:
        model.learn(left, callback=watch, reset_num_timesteps=False)
        if not watch.ended:
            watch.look_back(model)
        watch.ended = True
        watch.write(model)
    return watch.result()


def _warm_start(model: PPO, env: ManyInstances, plan: Plan, progress: Progress) -> None:
    """Teach the network how far from the smoothed anchor the best split is, which only the simulation knows."""
    optimiser = torch.optim.Adam(model.policy.parameters(), lr=1e-3)
    for round_ in range(plan.warm_start_rounds):
        progress(0, plan.steps, f"warm start {round_ + 1}/{plan.warm_start_rounds}")
        seen, wanted = [], []
        x = env.look()
        for _ in range(plan.rollout * 2):
            offset = env.instances.best_share() - env.instances.smoothed
            seen.append(x)
            wanted.append(np.clip(offset * 100.0 / MAX_STEP_PERCENT, -1.0, 1.0))
            action, _ = model.predict(x, deterministic=round_ > 0)
            env.step_async(action if round_ > 0 else np.asarray(action + wanted[-1][:, None], dtype=np.float32))
            x, *_ = env.step_wait()
        inputs = torch.from_numpy(np.concatenate(seen))
        targets = torch.from_numpy(np.concatenate(wanted).astype(np.float32))
        for _ in range(6):
            for chunk in torch.randperm(len(inputs)).split(2048):
                mean = model.policy.get_distribution(inputs[chunk]).distribution.mean[:, 0]
                loss = torch.nn.functional.smooth_l1_loss(mean, targets[chunk], beta=0.2)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()


class _Watch(BaseCallback):  # type: ignore[misc]  # torch's libraries are not there when types are checked
    """Looks at the network between rollouts: validates, keeps the best, stops early, writes the checkpoint."""

    def __init__(self, plan: Plan, seed: int, env: ManyInstances, tables: RowTables, path: Path, progress: Progress) -> None:
        super().__init__()
        self.plan, self.seed, self.env, self.tables, self.path, self.progress = plan, seed, env, tables, path, progress
        self.validation: Worlds = draw_worlds(VALIDATION_WORLDS, tables, np.random.default_rng(VALIDATION_SEED))
        self.rollouts = 0
        self.best: Arrays = {}
        self.best_reward = -np.inf
        self.best_steps = 0
        self.looks_without_gain = 0
        self.ended = False
        self._just_resumed = False

    def _on_rollout_start(self) -> None:
        if self.rollouts % self.plan.validate_every == 0 and not self._just_resumed:
            self.look_back(self.model)
            self.write(self.model)
        self._just_resumed = False
        self.progress(self.num_timesteps, self.plan.steps, f"validation {self.best_reward:.4f}")
        self.rollouts += 1

    def _on_step(self) -> bool:
        return not self.ended

    def look_back(self, model: Any) -> None:
        """Validate the network as an exported model runs it; stop when it has not become better for long."""
        network = network_of(model.policy.state_dict())
        trained = read_model(model_bytes(network, self.env.normal, *self._ranges()))
        scores = play(self.validation, self.tables, free(trained), seed=VALIDATION_SEED, steps=VALIDATION_STEPS, start_up=0)
        reward = float(scores.reward.mean())
        model.logger.record("validation/reward", reward)
        model.logger.record("validation/moved", float(scores.moved.mean()))
        if reward > self.best_reward + 1e-5:
            self.best, self.best_reward, self.best_steps = network, reward, model.num_timesteps
            self.looks_without_gain = 0
        else:
            self.looks_without_gain += 1
            self.ended = self.looks_without_gain >= self.plan.patience

    def result(self) -> Trained:
        return Trained(
            self.seed, self.best, self.env.normal, *self._ranges(), self.best_reward, self.num_timesteps, self.best_steps
        )

    def _ranges(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        seen = np.isfinite(self.env.low)
        return np.where(seen, self.env.low, 0.0).astype(np.float32), np.where(seen, self.env.high, 0.0).astype(np.float32)

    def write(self, model: Any) -> None:
        """Write the checkpoint; a kill leaves the old one or this one."""
        parameters = model.get_parameters()
        plain: dict[str, Any] = {
            "format": _CHECKPOINT_FORMAT,
            "plan": asdict(self.plan),
            "seed": self.seed,
            "steps": model.num_timesteps,
            "updates": model._n_updates,
            "rollouts": self.rollouts,
            "best_reward": self.best_reward,
            "best_steps": self.best_steps,
            "looks_without_gain": self.looks_without_gain,
            "ended": self.ended,
            "instances_rng": self.env.instances.rng.bit_generator.state,
        }
        _, keys, at, has_gauss, gauss = np.random.get_state(legacy=True)
        arrays = {f"instances.{name}": value for name, value in self.env.instances.state().items()}
        arrays |= {f"best.{name}": value for name, value in self.best.items()}
        arrays |= {"low": self.env.low, "high": self.env.high, "shuffle": np.asarray(keys).astype(np.int64)}
        if model._last_obs is not None:
            arrays |= {"observation": model._last_obs, "starts": model._last_episode_starts}
        plain["shuffle_at"] = [int(at), int(has_gauss), float(gauss)]
        whole = {
            "plain": json.dumps(plain),
            "arrays": {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()},
            "policy": parameters["policy"],
            "optimiser": parameters["policy.optimizer"],
            "torch_rng": torch.get_rng_state(),
        }
        made = io.BytesIO()
        torch.save(whole, made)
        replace_file(self.path, made.getvalue())

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            whole = torch.load(self.path, weights_only=True)
            plain = json.loads(whole["plain"])
            _ = plain["format"], plain["plan"], plain["seed"]
        except (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path} is no checkpoint, or a damaged one: remove it and start anew") from error
        return whole, plain

    def resume(self, model: PPO) -> None:
        """Take everything back from the checkpoint."""
        whole, plain = self._read()
        if (plain["format"], plain["plan"], plain["seed"]) != (_CHECKPOINT_FORMAT, asdict(self.plan), self.seed):
            raise ValueError(f"{self.path} belongs to another plan or seed: choose another folder or start anew")
        arrays = {name: value.numpy() for name, value in whole["arrays"].items()}
        prefix = "instances."
        self.env.instances.restore({n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)})
        self.env.instances.rng.bit_generator.state = plain["instances_rng"]
        self.env.low, self.env.high = arrays["low"].copy(), arrays["high"].copy()
        self.best = {n.removeprefix("best."): v for n, v in arrays.items() if n.startswith("best.")}
        self.best_reward, self.best_steps = plain["best_reward"], plain["best_steps"]
        self.looks_without_gain, self.ended = plain["looks_without_gain"], plain["ended"]
        self.rollouts = plain["rollouts"]
        self._just_resumed = True
        model.policy.load_state_dict(whole["policy"])
        model.policy.optimizer.load_state_dict(whole["optimiser"])
        model.num_timesteps = self.num_timesteps = plain["steps"]
        model._n_updates = plain["updates"]
        if "observation" in arrays:
            model._last_obs, model._last_episode_starts = arrays["observation"].copy(), arrays["starts"].copy()
        torch.set_rng_state(whole["torch_rng"])
        at, gauss, value = plain["shuffle_at"]
        np.random.set_state(("MT19937", arrays["shuffle"].astype(np.uint32), at, gauss, value))
