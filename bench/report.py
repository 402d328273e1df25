"""What a benchmark reports: figures with spread, the baseline of the same run, the goal and whether it is met.

The long form lands in docs/results/NAME.json with seed, versions and core count; never a host name or a date, so that two runs
differ only in what was measured.
"""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure of a benchmark.

    Parameters
    ----------
    value, min, max
        Median and extremes over `runs` repetitions, in `unit`.
    baseline
        The baseline's median in the same run and unit; None where the figure is a count that has no baseline.
    goal
        Upper bound, or lower bound where `at_least`; None where there is no goal.
    at_least
        Whether higher is better.
    """

    name: str
    value: float
    unit: str
    min: float
    max: float
    runs: int
    baseline: float | None = None
    goal: float | None = None
    at_least: bool = False

    @property
    def ratio(self) -> float | None:
        return None if not self.baseline else self.value / self.baseline

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def row(self) -> dict[str, object]:
        """The figure in the shape of `--json`, which says by `met` which way its goal is meant."""
        ratio = None if self.ratio is None else round(self.ratio, 4)
        fields = {name: value for name, value in asdict(self).items() if name != "at_least"}
        return {**fields, "ratio": ratio, "met": self.met}


def summarise(
    name: str,
    values: Sequence[float],
    *,
    unit: str,
    baseline: float | None = None,
    goal: float | None = None,
    at_least: bool = False,
) -> Result:
    """Return the median and the extremes of repeated measurements as one figure."""
    return Result(
        name=name,
        value=statistics.median(values),
        unit=unit,
        min=min(values),
        max=max(values),
        runs=len(values),
        baseline=baseline,
        goal=goal,
        at_least=at_least,
    )


def single(
    name: str, value: float, unit: str, *, baseline: float | None = None, goal: float | None = None, at_least: bool = False
) -> Result:
    """A figure that was measured once."""
    return summarise(name, [value], unit=unit, baseline=baseline, goal=goal, at_least=at_least)


def publish(name: str, results: Sequence[Result], *, seed: int, quick: bool, as_json: bool, notes: str = "") -> None:
    """Print the table, save the long form (full runs only), and end stdout with one JSON array if asked."""
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 150  # a log file wraps nothing
    console.print(_table(name, results))
    if notes:
        console.print(notes)
    if not quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        long_form = {
            "benchmark": name,
            "seed": seed,
            "cores": os.cpu_count(),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "kopf", "kubernetes")},
            },
            "notes": notes,
            "results": [result.row() for result in results],
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(long_form, indent=2) + "\n")
    if as_json:
        print(json.dumps([result.row() for result in results]))


def _table(name: str, results: Sequence[Result]) -> Table:
    table = Table(title=f"bench {name}")
    for column in ("what", "median", "min", "max", "unit", "runs", "baseline", "ratio", "goal", "met"):
        table.add_column(column, justify="left" if column in ("what", "unit", "met") else "right")
    for result in results:
        met = {True: "yes", False: "NO", None: "-"}[result.met]
        table.add_row(
            result.name,
            _number(result.value),
            _number(result.min),
            _number(result.max),
            result.unit,
            str(result.runs),
            _number(result.baseline),
            _number(result.ratio),
            _bound(result),
            met,
        )
    return table


def _bound(result: Result) -> str:
    return ">= " * result.at_least + _number(result.goal) if result.goal is not None else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
