"""The held-out evaluation of a model: regret beside the anchor's, nominal, under noise, by refill mode, far from training."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policies.allocation.model_file import Score, TrainedModel
from training.controllers import Controller, anchor, free, guarded, smoothed_anchor, truth
from training.curves import Floats, RowTables
from training.evaluation import NOISE_LEVELS, REGIMES, START_UP, Scores, best_fixed, held_out, play, refills, shifted
from training.worlds import STEPS, Worlds, joined

HELD_OUT_SEED = 77_001
COURSES = 48
"""Courses a regime."""
_RESAMPLES = 2000

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Table:
    """Rows of text under a head."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table in Markdown, its title as a heading."""
        lines = [f"### {self.title}", "", self.note, "", "| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)]) + "\n"


@dataclass(frozen=True)
class Report:
    """Tables for the card and scores for the header of the model file."""

    tables: tuple[Table, ...]
    scores: tuple[Score, ...]


def report_on(
    model: TrainedModel,
    tables: RowTables,
    *,
    courses: int = COURSES,
    steps: int = STEPS - 1,
    progress: Progress = lambda what: None,
) -> Report:
    """Evaluate a model on worlds drawn for this only.

    Parameters
    ----------
    courses
        Courses of each regime.
    steps
        Seconds of each course; the first minute of them, or half, is left out.
    progress
        Called with what is evaluated next.
    """
    how = _how(steps)
    worlds = held_out(tables, seed=HELD_OUT_SEED, count=courses)
    mixed = joined(list(worlds.values()))
    columns = {name: slice(place * courses, (place + 1) * courses) for place, name in enumerate(REGIMES)}
    players: dict[str, Controller] = {
        "anchor": anchor,
        "anchor, smoothed": smoothed_anchor,
        "model": free(model),
        "model, guarded": guarded(model),
    }
    found: list[Table] = []
    scores: list[Score] = []

    def tell(what: str) -> None:
        progress(f"held-out evaluation: {what}")

    nominal = mixed.with_value(noise=NOISE_LEVELS[0])
    tell("nominal")
    played = {name: play(nominal, tables, who, **how) for name, who in players.items()}
    played = {
        "fixed split, best in hindsight": best_fixed(
            nominal, tables, seed=how["seed"], steps=how["steps"], start_up=how["start_up"]
        ),
        **played,
    }
    played["the truth (goes to the best split)"] = play(nominal, tables, truth, **how)
    found.append(_nominal(played, columns))
    scores += _scores(played, columns, "nominal")
    noisy, of_noise = _noisy(mixed, columns, players, tables, tell, how)
    found.append(noisy)
    scores += of_noise
    found.append(_sweep("Refill modes", refills(mixed), players, tables, tell, how))
    found.append(_sweep("Far from training", shifted(worlds["Steady"]), players, tables, tell, how))
    return Report(tuple(found), tuple(scores))


def _how(steps: int) -> dict[str, int]:
    return {"seed": HELD_OUT_SEED, "steps": steps, "start_up": min(START_UP, steps // 2)}


def _noisy(
    worlds: Worlds,
    columns: dict[str, slice],
    players: dict[str, Controller],
    tables: RowTables,
    tell: Callable[[str], None],
    how: dict[str, int],
) -> tuple[Table, list[Score]]:
    """The same worlds under estimates that are off by more and more."""
    rows, scores = [], list[Score]()
    for level in NOISE_LEVELS:
        tell(f"noise {level}")
        noisy = worlds.with_value(noise=level)
        each = {name: play(noisy, tables, who, **how) for name, who in players.items()}
        rows.append(
            (
                f"{level:g}",
                *(" / ".join(_middle(s.regret[part]) for part in columns.values()) for s in each.values()),
                _difference(each["model, guarded"], each["anchor, smoothed"], slice(None)),
            )
        )
        scores += _scores(each, columns, f"noise {level:g}")
    table = Table(
        "Noisy estimates",
        "Regret in percent, median (mean), Steady / Trend / Burst, by the deviation of the error in capacity (AR(1), five "
        "seconds). Last: mean difference, guarded model less smoothed anchor, all courses, with 95 % bootstrap interval; "
        "below 0 the model is better.",
        ("deviation", *players, "difference"),
        tuple(rows),
    )
    return table, scores


def _nominal(played: dict[str, Scores], columns: dict[str, slice]) -> Table:
    base = played["anchor, smoothed"]
    rows = []
    for name, scores in played.items():
        cells = []
        for part in columns.values():
            own = _middle(scores.regret[part])
            if name.startswith("model"):
                own += f"; {_difference(scores, base, part)}"
            cells.append(own)
        rows.append(
            (
                name,
                *cells,
                _percent(scores.regret.max()),
                f"{100.0 * scores.distance.mean():.1f}",
                f"{100.0 * scores.moved.mean():.0f}",
            )
        )
    return Table(
        "Nominal estimates",
        "Regret in percent of P99 over the best split of the moment: median of the courses, mean in brackets (few near overload "
        "rule the mean); then the mean difference to the smoothed anchor with its 95 % bootstrap interval. Distance from "
        "the best split and way moved in points of usable.",
        ("who decides", *columns, "worst course", "distance", "moved"),
        tuple(rows),
    )


def _sweep(
    title: str,
    cases: dict[str, Worlds],
    players: dict[str, Controller],
    tables: RowTables,
    tell: Callable[[str], None],
    how: dict[str, int],
) -> Table:
    rows = []
    for case, worlds in cases.items():
        tell(case)
        each = {name: play(worlds, tables, who, **how) for name, who in players.items()}
        worst = float((each["model, guarded"].regret - each["anchor, smoothed"].regret).max())
        rows.append(
            (
                case,
                *(_middle(s.regret) for s in each.values()),
                _difference(each["model, guarded"], each["anchor, smoothed"], slice(None)),
                _percent(worst),
            )
        )
    return Table(
        title,
        "Regret in percent, median (mean); mean difference, guarded model less smoothed anchor with 95 % bootstrap interval, and "
        "in its worst course.",
        ("case", *players, "difference", "worst course"),
        tuple(rows),
    )


def _scores(played: dict[str, Scores], columns: dict[str, slice], case: str) -> list[Score]:
    return [
        Score(
            name=f"{case}, {regime}, {who}",
            value=round(100.0 * math.expm1(float(np.median(played[who].regret[part]))), 3),
            unit="% regret in P99, median",
        )
        for who in ("anchor, smoothed", "model, guarded")
        for regime, part in columns.items()
    ]


def _difference(one: Scores, other: Scores, part: slice) -> str:
    """Mean difference in regret with its bootstrap interval, percent."""
    delta: Floats = one.regret[part] - other.regret[part]
    rng = np.random.default_rng(5)
    means = delta[rng.integers(len(delta), size=(_RESAMPLES, len(delta)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{100 * delta.mean():+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def _middle(regret: Floats) -> str:
    """Median and mean of the courses."""
    return f"{_percent(float(np.median(regret)))} ({_percent(regret.mean())})"


def _percent(logarithm: float) -> str:
    """A mean logarithm as percent over the best."""
    return f"{100.0 * np.expm1(float(logarithm)):.2f}"
