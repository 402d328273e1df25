"""The figures of the routing benchmark as a page, goals first, so that what is missed is seen before anything else."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report import Result

_HEAD = "# Routing under load\n\nWritten by `python -m bench routing`; [what the gateway does](../routing.md).\n"
_COLUMNS = "| what | median | min | max | unit | runs | baseline | goal | met |\n|---|---:|---:|---:|---|---:|---:|---:|---|"


def page(results: Sequence[Result], notes: str) -> str:
    """Return the page: figures with a goal, then the others, then what they are of."""
    with_goal = [each for each in results if each.goal is not None]
    missed = [each for each in with_goal if not each.met]
    others = [each for each in results if each.goal is None]
    said = [f"- **{each.name}**: {_number(each.value)} {each.unit}, goal {_goal(each)}".replace(" ,", ",") for each in missed]
    return "\n".join(
        [
            _HEAD,
            f"{notes}.\n",
            f"## Goals\n\n{len(with_goal) - len(missed)} of {len(with_goal)} met." + (" Missed:\n" if missed else "\n"),
            *([*said, ""] if said else []),
            _COLUMNS,
            *(_row(each) for each in with_goal),
            "\n## Figures\n",
            _COLUMNS,
            *(_row(each) for each in others),
            "",
        ]
    )


def _row(each: Result) -> str:
    met = {True: "yes", False: "**no**", None: ""}[each.met]
    cells = (
        each.name.strip(),
        _number(each.value),
        _number(each.min),
        _number(each.max),
        each.unit,
        str(each.runs),
        "" if each.baseline is None else _number(each.baseline),
        "" if each.goal is None else _goal(each),
        met,
    )
    return f"| {' | '.join(cells)} |"


def _goal(each: Result) -> str:
    return ("at least " if each.at_least else "") + _number(each.goal or 0.0)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
