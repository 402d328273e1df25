"""Dynamics and reward: limits hold, seeds decide everything, the best split is the best, and noise can be seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_worlds import honest, tables, worlds

from policies.allocation.anchor import CostColumns, predict_p99_ms
from policies.allocation.features import FEATURES
from policies.allocation.recovery import BLOCKING_PERCENT_PER_SECOND
from training.curves import at
from training.dynamics import HIGHEST, LOWEST, MOVE_COST, Instances, compressed
from training.worlds import STEPS, Refill, Regime


def rolled(seed: int, actions: np.random.Generator, *, steps: int = 30) -> tuple[np.ndarray, np.ndarray]:
    instances = Instances(worlds(12), tables(), np.random.default_rng(seed))
    seen, rewards = [], []
    for _ in range(steps):
        seen.append(instances.features())
        rewards.append(instances.step(actions.uniform(-1, 1, 12)).reward)
    return np.array(seen), np.array(rewards)


def test_the_same_seed_and_actions_bring_the_same_course() -> None:
    one, other = (rolled(5, np.random.default_rng(1)) for _ in range(2))
    assert (one[0] == other[0]).all()
    assert (one[1] == other[1]).all()


def test_two_policies_see_the_same_traffic_and_the_same_errors() -> None:
    runs = []
    for action in (-1.0, 1.0):
        instances = Instances(worlds(12), tables(), np.random.default_rng(5), pool=worlds(40, seed=2))
        instances.stagger()
        arrivals = []
        for _ in range(60):
            situation = instances.situation()
            instances.step(np.full(12, action))
            arrivals.append(np.concatenate((situation.arrival_per_s, instances.at_s, instances.worlds.usable_bytes)))
        runs.append(np.array(arrivals))
    assert (runs[0] == runs[1]).all()


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_splits_stay_inside_bounds_and_slew_and_contents_inside_limits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    instances = Instances(worlds(8, seed=seed % 3), tables(), rng)
    for _ in range(15):
        instances.situation()
        before = instances.share
        outcome = instances.step(rng.uniform(-1.5, 1.5, 8))
        assert (np.abs(instances.share - before) <= instances.worlds.slew + 1e-12).all()
        assert (instances.share >= LOWEST - 1e-9).all()
        assert (instances.share <= HIGHEST + 1e-9).all()
        assert (instances.content[:, 0] <= instances.share + 1e-9).all()
        assert (instances.content[:, 1] <= 1.0 - instances.share + 1e-9).all()
        assert np.isfinite(outcome.reward).all()
        assert (outcome.p99_ms > 0.0).all()


def test_a_move_shorter_than_the_deadband_is_not_begun() -> None:
    some = worlds(6, deadband=0.02, slew=0.02, first_share=0.5, refill=int(Refill.LAZY))
    instances = Instances(some, tables(), np.random.default_rng(0))
    instances.step_towards(np.full(6, 0.515))
    assert (instances.share == 0.5).all()
    instances.step_towards(np.full(6, 0.53))
    assert instances.share == pytest.approx(np.full(6, 0.52))
    instances.step_towards(np.full(6, 0.53))  # a move once begun is finished
    assert instances.share == pytest.approx(np.full(6, 0.53))


def test_the_best_split_is_what_trying_all_finds() -> None:
    instances = Instances(honest(20, Regime.STEADY), tables(), np.random.default_rng(0))
    best = instances.best_share()
    now = instances._moment()
    splits = np.broadcast_to(np.linspace(0.05, 0.95, 181), (20, 181))
    columns = CostColumns(*(now.costs[:, place, None] for place in range(8)))
    emb, kv = at(now.emb_held, now.emb, splits), at(now.kv_held, now.kv, 1.0 - splits)
    p99 = predict_p99_ms(emb, kv, costs=columns, kv_size_cv2=now.costs[:, 8, None])
    there = np.array([np.interp(share, splits[0], row) for share, row in zip(best, p99, strict=True)])
    assert (there <= p99.min(axis=1) * 1.03).all()  # it tries every second point


def test_with_right_estimates_of_even_traffic_the_anchor_is_the_truth() -> None:
    instances = Instances(honest(40, Regime.STEADY, slew=1.0, deadband=0.0), tables(), np.random.default_rng(0))
    for _ in range(STEPS - 1):
        outcome = instances.step_towards(instances.situation().anchor_share)
    regret = np.log(outcome.p99_ms / outcome.best_p99_ms)
    assert np.median(regret) < 0.005


def test_standing_at_the_best_split_earns_more_than_standing_off_it() -> None:
    some = honest(40, Regime.STEADY, slew=1.0, deadband=0.0)
    earned = []
    for off in (0.0, 0.25, -0.25):
        instances = Instances(some, tables(), np.random.default_rng(0))
        goal = np.clip(instances.best_share() + off, LOWEST, HIGHEST)
        rewards = []
        for second in range(120):
            instances.situation()
            reward = instances.step_towards(goal).reward
            if second > 60:
                rewards.append(reward.mean())
        earned.append(np.mean(rewards))
    assert earned[0] > max(earned[1:])


def test_a_move_costs_its_way_and_standing_still_nothing_beside_the_regret() -> None:
    some = honest(10, Regime.STEADY, slew=1.0, deadband=0.0)
    still, moved = (Instances(some, tables(), np.random.default_rng(0)) for _ in range(2))
    rest = still.step_towards(still.share.copy())
    way = 0.002  # no more than engines go in a second whose refill blocks
    there = moved.step_towards(moved.share + np.where(moved.share > 0.5, -way, way))
    assert (rest.moved == 0.0).all()
    assert there.moved == pytest.approx(np.full(10, way))
    for outcome, cost in ((rest, 0.0), (there, MOVE_COST * way)):
        regret = np.log(outcome.p99_ms / outcome.best_p99_ms)
        assert outcome.reward == pytest.approx(-compressed(regret) - cost)


def test_a_blocking_refill_stops_serving_when_the_cache_grows_and_only_then() -> None:
    some = honest(30, Regime.STEADY, slew=1.0, deadband=0.0, first_share=0.4)
    lazy, blocking = (
        Instances(some.with_value(refill=int(mode)), tables(), np.random.default_rng(0))
        for mode in (Refill.LAZY, Refill.BLOCKING)
    )
    standing = [each.step_towards(np.full(30, 0.4)).p99_ms for each in (lazy, blocking)]
    assert standing[0] == pytest.approx(standing[1])
    few = 0.4 + BLOCKING_PERCENT_PER_SECOND / 100.0
    growing = [each.step_towards(np.full(30, few)).p99_ms for each in (lazy, blocking)]
    assert (growing[1] > growing[0]).sum() >= 5  # the others hold all rows that were ever asked for, or stand still too shortly


def test_where_refill_blocks_the_split_moves_as_slowly_as_agents_move_it() -> None:
    some = honest(30, Regime.STEADY, slew=0.04, deadband=0.0, refill=int(Refill.BLOCKING), first_share=0.5)
    instances = Instances(some, tables(), np.random.default_rng(0))
    instances.step_towards(np.full(30, 0.7))
    assert instances.share == pytest.approx(np.full(30, 0.5 + BLOCKING_PERCENT_PER_SECOND / 100.0))


def test_a_throttled_refill_fills_sooner_than_misses_alone() -> None:
    some = honest(30, Regime.STEADY, slew=1.0, deadband=0.0, first_share=0.3)
    held = []
    for mode in (Refill.LAZY, Refill.THROTTLED):
        instances = Instances(some.with_value(refill=int(mode)), tables(), np.random.default_rng(0))
        for _ in range(3):
            instances.step_towards(np.full(30, 0.6))
        held.append(instances.content[:, 0])
    assert (held[1] >= held[0] - 1e-9).all()
    assert held[1].mean() > held[0].mean()


def test_noise_of_the_estimate_shows_in_the_volatility_of_the_curves() -> None:
    shown = []
    for noise in (0.0, 0.1, 0.4, 0.8):
        some = worlds(30, Regime.STEADY, noise=noise, volatility_scale=1.0)
        instances = Instances(some, tables(), np.random.default_rng(0))
        means = []
        for _ in range(30):
            situation = instances.situation()
            instances.step(np.zeros(30))
            means.append(np.maximum(situation.emb_volatility, situation.kv_volatility).mean())
        shown.append(np.mean(means))
    assert shown == sorted(shown)
    assert shown[3] > 3.0 * shown[1] * 0.8


def test_features_are_finite_and_those_with_bounds_keep_them() -> None:
    instances = Instances(worlds(60, seed=9), tables(), np.random.default_rng(0), pool=worlds(60, seed=10))
    bounds = {"emb_share": (0, 1), "emb_miss": (0, 1), "kv_miss": (0, 1), "ghost_ratio": (-5, 5), "p99_surprise": (-2, 2)}
    bounds |= {"refill_blocking": (0, 1), "last_action": (-1, 1), "measured_load": (0, 1.02)}
    rng = np.random.default_rng(2)
    for _ in range(40):
        x = instances.features()
        assert x.shape == (60, len(FEATURES))
        assert np.isfinite(x).all()
        for name, (low, high) in bounds.items():
            column = x[:, FEATURES.index(name)]
            assert (column >= low - 1e-6).all(), name
            assert (column <= high + 1e-6).all(), name
        instances.step(rng.uniform(-1, 1, 60))


def test_what_is_restored_goes_on_as_if_nothing_had_been() -> None:
    pool = worlds(40, seed=2)
    first = Instances(worlds(12), tables(), np.random.default_rng(5), pool=pool)
    first.stagger()
    for _ in range(40):
        first.features()
        first.step(np.full(12, 0.3))
    other = Instances(worlds(12, seed=7), tables(), np.random.default_rng(6), pool=pool)
    other.restore(first.state())
    other.rng.bit_generator.state = first.rng.bit_generator.state
    for _ in range(40):
        assert (first.features() == other.features()).all()
        assert (first.step(np.full(12, -0.2)).reward == other.step(np.full(12, -0.2)).reward).all()
