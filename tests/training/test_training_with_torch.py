"""Training itself, where torch is: sound environments, the export is the network, one seed is one file, also after a kill."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from training_worlds import tables, worlds

from policies.allocation.base import act
from policies.allocation.features import FEATURES
from policies.allocation.model_file import read_model

pytestmark = pytest.mark.train
for needed in ("torch", "stable_baselines3", "gymnasium"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: `make train-test` runs these tests where it is")

_HERE = str(Path(__file__).parent)
_SHORT_RUN = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from training_worlds import tables
from training import ppo
from training.export import model_bytes
from policies.allocation.model_file import digest_of
ppo.VALIDATION_WORLDS, ppo.VALIDATION_STEPS = 16, 10
folder, resume, kill_at = Path(sys.argv[2]), sys.argv[3] == "resume", int(sys.argv[4])
plan = ppo.Plan(steps=16 * 16 * 8, instances=16, rollout=16, batch=64, epochs=2, worlds=64, warm_start_rounds=1, validate_every=2)
def progress(done, total, note):
    if kill_at and done >= kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
made = ppo.train(plan, tables(), seed=3, folder=folder, resume=resume, progress=progress)
print(digest_of(model_bytes(made.network, made.normal, made.low, made.high)))
"""


def short_run(folder: Path, *, resume: bool = False, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", _SHORT_RUN, _HERE, str(folder), "resume" if resume else "anew", str(kill_at)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.timeout(900)  # three processes that each import torch
def test_the_same_seed_gives_the_same_digest_also_when_killed_on_the_way(tmp_path: Path) -> None:
    whole = short_run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    killed = short_run(tmp_path / "killed", kill_at=16 * 16 * 5)
    assert killed.returncode == -signal.SIGKILL
    resumed = short_run(tmp_path / "killed", resume=True)
    assert resumed.returncode == 0, resumed.stderr
    assert whole.stdout == resumed.stdout
    assert len(whole.stdout.strip()) == 64


def test_a_checkpoint_of_another_plan_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    from training import ppo

    plan = ppo.Plan(steps=64, instances=8, rollout=8, batch=32, epochs=1, worlds=32, warm_start_rounds=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "VALIDATION_WORLDS", 8)
        patch.setattr(ppo, "VALIDATION_STEPS", 3)
        ppo.train(plan, tables(), seed=1, folder=tmp_path)
        (tmp_path / "seed-1.checkpoint").rename(tmp_path / "seed-2.checkpoint")
        with pytest.raises(ValueError, match="another plan or seed"):
            ppo.train(plan, tables(), seed=2, folder=tmp_path, resume=True)
        good = (tmp_path / "seed-2.checkpoint").read_bytes()
        for damaged in (b"", b"\x80\x04K\x01.", good[:1000], good[:-1], good[-1000:]):
            (tmp_path / "seed-2.checkpoint").write_bytes(damaged)
            with pytest.raises(ValueError, match="no checkpoint, or a damaged one"):
                ppo.train(plan, tables(), seed=2, folder=tmp_path, resume=True)


def test_the_exported_network_answers_as_the_trained_one_does() -> None:
    import torch
    from stable_baselines3 import PPO

    from training.dynamics import Instances
    from training.environment import ManyInstances
    from training.export import model_bytes, network_of
    from training.normal import Normal

    instances = Instances(worlds(16), tables(), np.random.default_rng(0))
    normal = Normal.measured(instances, np.random.default_rng(1), steps=10)
    env = ManyInstances(instances, normal)
    kwargs = {"net_arch": [64, 64], "activation_fn": torch.nn.Tanh}
    ppo = PPO("MlpPolicy", env, n_steps=8, batch_size=32, policy_kwargs=kwargs, seed=0, device="cpu")
    with torch.no_grad():
        for weight in ppo.policy.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)  # fresh weights answer next to nothing
    ends = np.zeros(len(FEATURES), dtype=np.float32), np.ones(len(FEATURES), dtype=np.float32)
    model = read_model(model_bytes(network_of(ppo.policy.state_dict()), normal, *ends))
    rng = np.random.default_rng(2)
    seen = normal.mean + normal.scale * rng.normal(0.0, 4.0, (500, len(FEATURES)))
    x = np.concatenate((seen.astype(np.float32), instances.features()))
    expected, _ = ppo.predict(normal.of(x), deterministic=True)
    assert act(model, x) == pytest.approx(expected[:, 0], abs=1e-5)
    assert np.ptp(expected) > 0.5


def test_one_instance_is_a_sound_gymnasium_environment() -> None:
    from gymnasium.utils.env_checker import check_env as gymnasium_check
    from stable_baselines3.common.env_checker import check_env

    from training.dynamics import Instances
    from training.environment import OneInstance
    from training.normal import Normal

    instances = Instances(worlds(16), tables(), np.random.default_rng(0))
    env = OneInstance(tables=tables(), normal=Normal.measured(instances, np.random.default_rng(1), steps=10))
    check_env(env)
    gymnasium_check(env, skip_render_check=True)


def test_many_instances_keep_the_range_of_what_they_showed() -> None:
    from training.dynamics import Instances
    from training.environment import ManyInstances
    from training.normal import Normal

    env = ManyInstances(Instances(worlds(8), tables(), np.random.default_rng(0)), Normal.none())
    shown = [env.reset()]
    for _ in range(20):
        env.step_async(np.full((8, 1), 0.5, dtype=np.float32))
        x, rewards, dones, infos = env.step_wait()
        shown.append(x)
        assert (x.shape, rewards.shape, dones.shape, len(infos)) == ((8, len(FEATURES)), (8,), (8,), 8)
    x = np.concatenate(shown)
    assert (env.low <= x.min(axis=0) + 1e-6).all()
    assert (env.high >= x.max(axis=0) - 1e-6).all()
