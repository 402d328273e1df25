"""The burst detector hears a burst in seconds, rarely cries wolf, and freezes only where moving blocks serving, for little."""

import itertools
import math

import numpy as np
import pytest

from policies.allocation.recovery import BurstWatch, Phase, Recovery, freezes, usual_utilisation, watch

RECOVERY = Recovery()


def _run(utilisations, *, dt_ms=1000.0, state=None, recovery=RECOVERY, start_ms=0.0):
    """The states after each interval."""
    states, state, now_ms = [], state or BurstWatch(), start_ms
    for utilisation in utilisations:
        now_ms += dt_ms
        state = watch(state, utilisation=float(utilisation), dt_ms=dt_ms, now_ms=now_ms, recovery=recovery)
        states.append(state)
    return states


def _load(random, seconds, *, per_s, load, cv2=1.0, dt_s=1.0):
    """Utilisation of each interval: Poisson arrivals whose service times have this mean load and squared variation."""
    n = random.poisson(per_s * dt_s, int(seconds / dt_s))
    mean_s = load / per_s
    shape = 1.0 / cv2
    return random.gamma(np.maximum(n, 1e-9) * shape, mean_s / shape) / dt_s


@pytest.mark.parametrize("per_s", [20.0, 200.0, 2000.0])
@pytest.mark.parametrize("dt_s", [0.1, 1.0])
def test_steady_load_rings_less_than_one_and_a_half_times_an_hour(per_s, dt_s):
    bursts, hours = 0, 4
    for seed in range(hours):
        states = _run(_load(np.random.default_rng(seed), 3600, per_s=per_s, load=0.6, dt_s=dt_s), dt_ms=1000.0 * dt_s)
        phases = [s.phase for s in states]
        bursts += sum(a is not Phase.BURST and b is Phase.BURST for a, b in itertools.pairwise(phases))
    assert bursts / hours <= 1.5


@pytest.mark.parametrize(("per_s", "factor", "within_s"), [(200.0, 1.5, 5), (2000.0, 1.3, 5), (20.0, 3.0, 6)])
def test_a_burst_is_heard_within_seconds(per_s, factor, within_s):
    for seed in range(20):
        random = np.random.default_rng(seed)
        calm = _load(random, 120, per_s=per_s, load=0.5)
        burst = _load(random, 30, per_s=factor * per_s, load=0.5 * factor)
        states = _run(np.concatenate((calm, burst)))
        heard = next((k for k, s in enumerate(states[120:]) if s.phase is Phase.BURST), math.inf)
        assert heard < within_s


def test_after_a_burst_the_split_counts_as_calm_only_after_the_calm_seconds():
    states = _run([0.5] * 60 + [1.0] * 20 + [0.5] * 60, recovery=Recovery(calm_seconds=20.0))
    phases = [s.phase for s in states]
    over = phases.index(Phase.RECOVERING)
    assert 80 <= over <= 88
    assert phases[over : over + 20] == [Phase.RECOVERING] * 20
    assert phases[over + 20] is Phase.CALM
    assert set(phases[over + 20 :]) == {Phase.CALM}


def test_what_is_usual_does_not_learn_from_a_burst_but_takes_a_lasting_one_for_the_new_level():
    states = _run([0.4] * 60 + [0.8] * 400)
    assert usual_utilisation(states[100]) == pytest.approx(0.4, rel=0.02)
    assert states[200].phase is Phase.BURST
    assert states[-1].phase is Phase.CALM
    assert usual_utilisation(states[-1]) == pytest.approx(0.8, rel=0.02)


def test_a_slow_rise_is_no_burst():
    states = _run(np.geomspace(0.3, 0.9, 1800))
    assert {s.phase for s in states} == {Phase.CALM}


def test_nothing_is_a_burst_before_anything_is_usual():
    assert {s.phase for s in _run([0.1, 0.9, 0.1, 0.9, 0.5, 0.9])} == {Phase.CALM}


@pytest.mark.parametrize("utilisation", [0.0, -1.0, math.nan, math.inf])
def test_an_interval_without_a_utilisation_changes_nothing(utilisation):
    (state,) = _run([0.5])
    assert watch(state, utilisation=utilisation, dt_ms=1000.0, now_ms=9000.0, recovery=RECOVERY) == state
    assert watch(state, utilisation=0.9, dt_ms=0.0, now_ms=9000.0, recovery=RECOVERY) == state


def test_the_percent_of_the_policy_is_the_least_excess_that_rings():
    for percent, rings in ((15.0, True), (60.0, False)):
        states = _run([0.5] * 60 + [0.7] * 10, recovery=Recovery(burst_percent=percent))
        assert (states[-1].phase is Phase.BURST) is rings


def _freezes(*, phase=Phase.BURST, blocking=True, wanted=True, now=12.0, goal=11.5, pays=False, lasts_ms=1000.0):
    return freezes(
        BurstWatch(phase=phase, since_ms=5000.0),
        recovery=Recovery(freeze_when_blocking=wanted),
        refill_blocking=blocking,
        current_p99_ms=now,
        least_p99_ms=goal,
        pays=pays,
        now_ms=5000.0 + lasts_ms,
    )


def test_only_a_burst_on_an_engine_whose_refill_blocks_freezes_and_only_where_the_policy_says_so():
    assert _freezes()
    assert not _freezes(phase=Phase.CALM)
    assert not _freezes(phase=Phase.RECOVERING)
    assert not _freezes(blocking=False)
    assert not _freezes(wanted=False)


def test_a_split_that_does_harm_is_never_frozen():
    assert not _freezes(now=20.0, goal=12.0)
    assert _freezes(now=12.1, goal=12.0)
    assert _freezes(now=None, goal=None)


def test_a_freeze_ends_when_going_to_the_best_split_pays_for_its_refill_or_when_the_curves_have_learnt_the_new_load():
    assert not _freezes(pays=True)
    assert _freezes(lasts_ms=59_000.0)
    assert not _freezes(lasts_ms=60_000.0)
