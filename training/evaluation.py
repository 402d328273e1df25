"""Scores of controllers on worlds that training never drew, all on the same courses: regret in P99 against the best split.

Regret is the mean logarithm of true P99 over the least that any split reaches in the long run, as percent; it never becomes
zero, also for the truth, because caches need time to fill. The first seconds of a course, in which everybody leaves a random
split, do not count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.allocation.types import Step
from training.controllers import Controller, fixed
from training.curves import Floats, RowTables
from training.dynamics import MOVE_COST, Instances, compressed
from training.worlds import STEPS, Refill, Regime, Worlds, draw_worlds

START_UP = 60
"""Seconds left out: at two points a second the split has come from 50 to anywhere by then, and the caches have followed."""
HELD_OUT_LOAD = (0.35, 0.75)
BURSTS = (Regime.FLASH_CROWD, Regime.HOT_ROWS, Regime.LONG_HISTORIES, Regime.CATALOGUE_CHURN)
REGIMES: Mapping[str, tuple[Regime, ...]] = {"Steady": (Regime.STEADY,), "Trend": (Regime.TREND,), "Burst": BURSTS}
NOISE_LEVELS = (0.08, 0.2, 0.4, 0.8)
NOISE_LASTS_S = 5.0
DEFAULT_DEADBAND, DEFAULT_SLEW = Step().deadband_percent / 100.0, Step().max_percent_per_second / 100.0
"""Guards of a policy that says nothing else, as shares of usable and of usable a second."""


@dataclass(frozen=True)
class Scores:
    """What a controller reached on n courses; float64[n] each.

    Attributes
    ----------
    regret
        Mean logarithm of P99 over the best.
    p99_ms
        Geometric mean of the P99 of each second.
    distance
        Mean distance from the best split, as a share of usable.
    moved
        Share of usable moved, in all.
    reward
        Mean reward a second, as in training.
    """

    regret: Floats
    p99_ms: Floats
    distance: Floats
    moved: Floats
    reward: Floats


def play(
    worlds: Worlds, tables: RowTables, controller: Controller, *, seed: int, steps: int = STEPS - 1, start_up: int = START_UP
) -> Scores:
    """Run the controller through the courses; the same seed brings the same traffic and errors to every controller."""
    instances = Instances(worlds.take(np.arange(len(worlds))), tables, np.random.default_rng(seed))
    logs: list[Floats] = []
    p99: list[Floats] = []
    distance: list[Floats] = []
    moved: list[Floats] = []
    for second in range(steps):
        outcome = controller(instances, instances.situation())
        if second >= start_up:
            logs.append(np.log(outcome.p99_ms / outcome.best_p99_ms))
            p99.append(np.log(outcome.p99_ms))
            distance.append(np.abs(instances.share - outcome.best_share))
            moved.append(outcome.moved)
    regret = np.array(logs)
    return Scores(
        regret=regret.mean(axis=0),
        p99_ms=np.exp(np.mean(p99, axis=0)),
        distance=np.mean(distance, axis=0),
        moved=np.sum(moved, axis=0),
        reward=-(compressed(regret).mean(axis=0) + MOVE_COST * np.mean(moved, axis=0)),
    )


def best_fixed(
    worlds: Worlds,
    tables: RowTables,
    *,
    seed: int,
    steps: int = STEPS - 1,
    start_up: int = START_UP,
    choices: Sequence[float] = tuple(np.arange(1, 10) / 10),
) -> Scores:
    """Scores of the fixed split that is best in hindsight, chosen for each course on its own; a course starts there."""
    each = [
        play(worlds.with_value(first_share=share), tables, fixed(share), seed=seed, steps=steps, start_up=start_up)
        for share in choices
    ]
    place = np.argmin([scores.regret for scores in each], axis=0)
    picked = {
        name: np.array([getattr(each[p], name)[i] for i, p in enumerate(place)])
        for name in ("regret", "p99_ms", "distance", "moved", "reward")
    }
    return Scores(**picked)


def held_out(tables: RowTables, *, seed: int, count: int) -> dict[str, Worlds]:
    """Return worlds of the three regimes from a split of 50 on, under the default guards, refill lazy or throttled."""
    rng = np.random.default_rng([seed, 1])
    return {
        name: _usual(draw_worlds(count, tables, rng, regimes=kinds, trivial_share=0.0, load=HELD_OUT_LOAD), rng)
        for name, kinds in REGIMES.items()
    }


def _usual(worlds: Worlds, rng: np.random.Generator) -> Worlds:
    out = worlds.with_value(deadband=DEFAULT_DEADBAND, slew=DEFAULT_SLEW, noise_s=NOISE_LASTS_S, first_share=0.5)
    out.refill[:] = rng.integers(0, 2, len(out))
    return out


def shifted(worlds: Worlds) -> dict[str, Worlds]:
    """Return Steady worlds pushed to where training never or hardly went."""
    scaled: dict[str, Callable[[Worlds], None]] = {
        "load x 1.6": lambda w: _times(w, ("ms_per_row", "ms_per_token", "base_ms"), 1.6),
        "load x 0.3": lambda w: _times(w, ("ms_per_row", "ms_per_token", "base_ms"), 0.3),
        "histories x 4": lambda w: _times(w, ("tokens",), 4.0),
        "histories x 0.2": lambda w: _times(w, ("tokens",), 0.2),
        "rows x 6": lambda w: _times(w, ("rows",), 6.0),
        "returns x 5 later": lambda w: _times(w, ("short_ms", "long_ms"), 5.0),
        "churn x 20": lambda w: _times(w, ("drift",), 20.0),
        "measured costs wrong by 2": lambda w: _times(w, ("cost_error",), 1.0, spread=np.log(2.0)),
    }
    out = {}
    for name, change in scaled.items():
        moved = worlds.with_value(noise=0.08)
        change(moved)
        out[name] = moved
    return out


def _times(worlds: Worlds, names: Sequence[str], factor: float, *, spread: float = 0.0) -> None:
    for name in names:
        column: NDArray[np.float64] = getattr(worlds, name)
        column *= factor
        if spread:
            signs = np.where((np.arange(column.size).reshape(column.shape) * 2654435761 >> 7) % 2 == 0, 1.0, -1.0)
            column *= np.exp(spread * signs)


def refills(worlds: Worlds) -> dict[str, Worlds]:
    """Return the worlds under each refill mode."""
    return {mode.name.lower(): worlds.with_value(refill=int(mode), noise=0.08) for mode in Refill}
