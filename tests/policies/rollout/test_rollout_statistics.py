"""How often a comparison is wrong: false alarms where nothing changed, and harm that is found, over seeded made-up fleets.

The noise is meant to be unkind: the P99 of a window of ten seconds wanders by a tenth and more, has heavy tails (Student's t
with five degrees of freedom), drifts (correlation 0.4 from window to window, in one row 0.7), differs from instance to instance,
is moved for all of them at once by the load, and is sometimes not heard at all.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from policies.rollout.comparison import change_of, group_series, noise_of
from policies.rollout.phases import Phase, Soak, next_phase
from policies.rollout.verdict import Evidence, Tolerance, judge

TRIALS = 120
TOLERANCE = Tolerance(p99_percent=10, allowed_bad_percent=1.0)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A pool on trial; `sd` is that of one instance's log P99 from window to window."""

    canaries: int = 1
    controls: int = 9
    sd: float = 0.1
    rho: float = 0.4
    before: int = 36
    after: int = 120

    def trial(self, rng: np.random.Generator, effect: float) -> tuple[Phase, int]:
        """Where a trial of a change with this effect on the log P99 ends, and after how many windows."""
        windows = self.before + self.after
        trying = self._wander(rng, self.canaries, windows)
        trying[:, self.before :] += effect
        waiting = self._wander(rng, self.controls, windows)
        if self.controls:
            common = 3.0 * self._wander(rng, 1, windows)
            trying, waiting = trying + common, waiting + common
        groups = []
        for group in (trying, waiting):
            group = group + rng.normal(0.0, 0.2, (group.shape[0], 1))
            group[rng.random(group.shape) < 0.05] = np.nan
            groups.append(group - np.nanmean(group[:, : self.before], axis=1, keepdims=True))
        difference = group_series(*groups)
        noise, phase, alone = noise_of(difference[: self.before]), Phase.CANARY, self.controls == 0
        for count in range(1, self.after + 1):
            change = change_of(noise, difference[self.before : self.before + count])
            verdict = judge(Evidence(p99=change, load=0.0, alone=alone), TOLERANCE)
            soak = Soak(seconds=10.0 * count, wanted_seconds=300.0, alone=alone)
            phase = next_phase(phase, soak=soak, verdict=verdict, measured=True)
            if phase in (Phase.COMPLETE, Phase.ROLLED_BACK):
                break
        return phase, count

    def _wander(self, rng: np.random.Generator, instances: int, windows: int) -> np.ndarray:
        steps = rng.standard_t(5, size=(instances, windows)) / math.sqrt(5.0 / 3.0)
        path = np.empty_like(steps)
        if instances:
            path[:, 0] = steps[:, 0]
        for at in range(1, windows):
            path[:, at] = self.rho * path[:, at - 1] + math.sqrt(1.0 - self.rho**2) * steps[:, at]
        return self.sd * path


FLEETS = {
    "1 of 10": Fleet(),
    "1 of 10, noisy": Fleet(sd=0.2),
    "1 of 10, drifting": Fleet(rho=0.7),
    "1 of 10, little known of before": Fleet(before=12),
    "1 of 3": Fleet(controls=2),
    "4 of 32": Fleet(canaries=4, controls=28),
    "1 alone": Fleet(controls=0),
}


def ends(name: str, effect_percent: float, seed: int) -> Counter[Phase]:
    """Where `TRIALS` trials end; printed, so that the run says how good the rule is."""
    rng = np.random.default_rng([seed, *name.encode()])
    found = [FLEETS[name].trial(rng, math.log1p(effect_percent / 100.0)) for _ in range(TRIALS)]
    counts = Counter(phase for phase, _ in found)
    told = ", ".join(f"{phase.value} {100.0 * count / TRIALS:.0f} %" for phase, count in counts.most_common())
    print(f"{name}, {effect_percent:+.0f} %: {told}; windows: {np.median([windows for _, windows in found]):.0f}")  # noqa: T201 - shown with -s
    return counts


@pytest.mark.parametrize("name", FLEETS)
def test_a_change_that_does_nothing_is_rarely_taken_back(name: str) -> None:
    counts = ends(name, 0.0, seed=1)
    assert counts[Phase.ROLLED_BACK] <= 0.05 * TRIALS


@pytest.mark.parametrize("name", FLEETS)
def test_harm_of_a_fifth_hardly_ever_passes(name: str) -> None:
    counts = ends(name, 20.0, seed=2)
    assert counts[Phase.COMPLETE] <= 0.02 * TRIALS


@pytest.mark.parametrize(("name", "share"), [("1 of 10", 0.85), ("4 of 32", 0.99), ("1 of 3", 0.75), ("1 alone", 0.85)])
def test_harm_of_a_fifth_is_taken_back(name: str, share: float) -> None:
    counts = ends(name, 20.0, seed=3)
    assert counts[Phase.ROLLED_BACK] >= share * TRIALS


@pytest.mark.parametrize("name", FLEETS)
def test_harm_of_a_half_is_taken_back_nearly_always(name: str) -> None:
    counts = ends(name, 50.0, seed=4)
    assert counts[Phase.ROLLED_BACK] >= 0.9 * TRIALS


@pytest.mark.parametrize(("name", "share"), [("1 of 10", 0.7), ("4 of 32", 0.95), ("1 alone", 0.7)])
def test_a_change_that_does_nothing_passes_mostly(name: str, share: float) -> None:
    counts = ends(name, 0.0, seed=5)
    assert counts[Phase.COMPLETE] >= share * TRIALS


def test_what_hits_all_instances_alike_is_no_harm() -> None:
    rng = np.random.default_rng(7)
    quiet = rng.normal(0.0, 0.05, (4, 60))
    busy = quiet.copy()
    busy[:, 30:] += 1.0  # the P99 of everybody nearly triples
    series = group_series(busy[:1], busy[1:])
    change = change_of(noise_of(series[:30]), series[30:])
    assert change is not None
    assert change.surely <= 0.0 <= change.surely_at_most


def test_gaps_are_gaps_and_not_zeros() -> None:
    series = np.array([1.0, np.nan, 1.1, 0.9, np.nan, 1.0, 1.05, 0.95])
    noise = noise_of(series)
    assert noise.windows == 6
    assert noise.sd < 0.1
    assert noise_of(np.full(9, np.nan)).windows == 0
    assert change_of(noise, np.full(9, np.nan)) is None


def test_a_window_counts_only_when_half_of_a_group_was_heard() -> None:
    canaries = np.array([[1.0, 1.0, np.nan], [3.0, np.nan, np.nan]])
    assert np.array_equal(group_series(canaries, np.zeros((0, 3))), [2.0, 1.0, np.nan], equal_nan=True)
    three = np.array([[1.0, np.nan], [np.nan, np.nan], [np.nan, 2.0]])
    assert np.isnan(group_series(three, np.zeros((0, 2)))).all()
