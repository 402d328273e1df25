"""The allocation study as a page and a plot: docs/results/allocator.md and .png, from the figures in allocator.json alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.allocator_rows import ROWS, SHIPPED
from bench.allocator_site import SHIFTS

BEGIN, END = "<!-- figures: python -m bench allocator -->", "<!-- end of figures -->"
_HEAD = (
    "| row | P50 ms | P99 ms | pooled P99 ms | SLO % | regret to oracle % | gain over best static % | share of oracle's gain % "
    "| \\|r - r*\\| points | GiB moved a minute | worst episode % | P99 ms at the start |"
)


def page(study: Mapping[str, Any]) -> str:
    """Return the page of a study."""
    parts = [
        "# The allocator against its baselines",
        "Written by `python -m bench allocator`; [what it means](../allocator.md). " + _setting(study),
        *(_regime(name, study["regimes"][name]) for name in study["regimes"]),
    ]
    if study["refill"]:
        parts.append(_refill(study["refill"]))
    parts += [_noise(study["noise"]), _shifts(study["shifts"])]
    return "\n\n".join(parts) + "\n"


def summary(study: Mapping[str, Any]) -> str:
    """Return the short tables of docs/allocator.md: what each row gains in each regime, and the shipped row beside the others."""
    regimes = study["regimes"]
    head = "| P99 gained over the best static split in hindsight, % | " + " | ".join(name.capitalize() for name in regimes) + " |"
    rows = [head, "|---" * (1 + len(regimes)) + "|"]
    for key in next(iter(regimes.values()))["rows"]:
        cells = [_interval(found["rows"][key]["gainPercent"]) for found in regimes.values()]
        rows.append(f"| {ROWS[key].title} | " + " | ".join(cells) + " |")
    floors = [f"{found['oracle']['noiseFloorPercent']:.2f}" for found in regimes.values()]
    rows.append("| noise floor of the oracle | " + " | ".join(floors) + " |")
    key = SHIPPED if study["setting"]["model"] else "anchor"
    lines: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "over static 50, %": lambda found: _interval(found["rows"][key]["gainOver50Percent"]),
        "over the best static split, all requests together, %": lambda found: _interval(found["rows"][key]["pooledGainPercent"]),
        "share of the oracle's gain, %": lambda found: _interval(found["rows"][key]["sharePercent"], 0),
        "P99 over the oracle's, %": lambda found: _interval(found["rows"][key]["regretPercent"]),
        "P99 over the anchor's, %": lambda found: _interval(found.get("shippedAgainstAnchorPercent", (0.0, 0.0, 0.0))),
        "within the objective, %: it, anchor, oracle, static 50": lambda found: ", ".join(
            f"{found['rows'][name]['sloPercent']:.2f}" for name in (key, "anchor", "oracle", "static-50")
        ),
        "points from the oracle's split": lambda found: f"{found['rows'][key]['apartPoints']:.1f}",
        "worst episode over the oracle's P99, %": lambda found: f"{found['rows'][key]['worstPercent']:.1f}",
    }
    beside = [f"| {ROWS[key].title} | " + " | ".join(name.capitalize() for name in regimes) + " |", rows[1]]
    beside += [f"| {name} | " + " | ".join(cell(found) for found in regimes.values()) + " |" for name, cell in lines.items()]
    return "\n".join(rows) + "\n\n" + "\n".join(beside)


def with_summary(text: str, study: Mapping[str, Any]) -> str:
    """Return a page whose part between the marks is the summary of a study."""
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{summary(study)}\n{END}{after}"


def _setting(study: Mapping[str, Any]) -> str:
    s, rules = study["setting"], study["rules"]
    rates = ", ".join(f"{name} {rules['rates'][name]:g}" for name in study["regimes"])
    return (
        f"Part `{s['part']}`, {s['episodes']} episodes a regime, {s['instances']} instances of which {s['simulated']} are "
        f"simulated (in the sweeps {s['few']}, and {s['swept']} episodes a regime; in foreign worlds {s['fewest']}, and "
        f"{s['shifted']}), decisions every "
        f"{s['intervalMs'] / 1000:g} s, level `{s['level']}`, one row in {s['rowsOneIn']} seen by the estimators, start-up of "
        f"{s['startUpSeconds']:g} s left out. Requests a second and instance by the load rule: {rates}; objective "
        f"{rules['slo_ms']:g} ms. Model: {s['model'] or 'none, so the learned rows are left out'}."
    )


def _regime(name: str, found: Mapping[str, Any]) -> str:
    oracle = found["oracle"]
    clones = ", ".join(f"{visits} {times:g} times" for visits, times in oracle["clones"].items())
    least, middle, most = oracle["staticPercent"]
    lines = [
        f"## {name.capitalize()}",
        f"The oracle gains {_interval(oracle['replayedGainPercent'])} % over the best static split, replayed "
        f"({oracle['plannedGainPercent']:g} % by its own figures over the whole log, {oracle['confirmedGainPercent']:g} % "
        f"confirmed on the other half; noise floor {oracle['noiseFloorPercent']:g} %), with splits "
        f"{oracle['movesPoints']:g} points apart within an episode. "
        f"Best static split: {least} to {most}, median {middle}; {oracle['busyPercent']:.1f} % busy there. "
        f"{oracle['requests']} requests measured an episode. Recorded visits played by all 32 instances: {clones}.",
        _table(found["rows"]),
    ]
    return "\n\n".join(lines)


def _table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [_HEAD, "|---" * 12 + "|"]
    for key, row in rows.items():
        lines.append(
            f"| {ROWS[key].title} | {row['p50Ms']:.2f} | {row['p99Ms']:.2f} | {row['pooledP99Ms']:.2f} | {row['sloPercent']:.2f} "
            f"| {_interval(row['regretPercent'])} | {_interval(row['gainPercent'])} | {_interval(row['sharePercent'], 0)} "
            f"| {row['apartPoints']:.1f} | {row['gibMoved']:.2f} | {row['worstPercent']:.1f} | {row['startUpP99Ms']:.2f} |"
        )
    return "\n".join(lines)


def _interval(value: Sequence[float] | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    middle, low, high = (f"{one:.{digits}f}" for one in value)
    return f"{middle} [{low}, {high}]"


def _refill(found: Mapping[str, Any]) -> str:
    lines = ["## Refill modes", "P99 over that of the oracle in the same mode, percent, and share within the objective, percent."]
    for mode, regimes in found.items():
        keys = list(next(iter(regimes.values())))
        lines.append(f"**{mode}**")
        table = [
            "| row | " + " | ".join(f"{name}: regret % | SLO %" for name in regimes) + " |",
            "|---" * (1 + 2 * len(regimes)) + "|",
        ]
        for key in keys:
            cells = [f"{_interval(rows[key]['regretPercent'])} | {rows[key]['sloPercent']:.2f}" for rows in regimes.values()]
            table.append(f"| {ROWS[key].title} | " + " | ".join(cells) + " |")
        lines.append("\n".join(table))
    return "\n\n".join(lines)


def _noise(found: Mapping[str, Any]) -> str:
    lines = [
        "## Noisy estimates",
        "Capacities of both curves wrong by a factor whose logarithm wanders with this standard deviation; P99 over that of the "
        "oracle, percent, mean of the regimes; in brackets that over the anchor under the same error, with its interval.",
    ]
    keys = list(next(iter(found.values())))
    table = ["| row | " + " | ".join(f"sd {noise}" for noise in found) + " |", "|---" * (1 + len(found)) + "|"]
    for key in keys:
        cells = [
            f"{rows[key]['regretPercent'][0]:.2f} ({_interval(rows[key]['againstAnchorPercent'])})" for rows in found.values()
        ]
        table.append(f"| {ROWS[key].title} | " + " | ".join(cells) + " |")
    return "\n\n".join([*lines, "\n".join(table)])


def _shifts(found: Mapping[str, Any]) -> str:
    lines = [
        "## Worlds that training did not draw from",
        "Steady, changed; P99 over that of the anchor, percent: mean, and worst episode.",
    ]
    keys = list(next(iter(found.values()))["rows"])
    table = [
        "| world | busy % | " + " | ".join(ROWS[key].title for key in keys) + " |",
        "|---" * (2 + len(keys)) + "|",
    ]
    for name, world in found.items():
        cells = [f"{row['againstAnchorPercent'][0]:.2f}, {row['worstPercent']:.2f}" for row in world["rows"].values()]
        table.append(f"| {SHIFTS[name].says} | {world['busyPercent']:.0f} | " + " | ".join(cells) + " |")
    return "\n\n".join([*lines, "\n".join(table)])


def plot(study: Mapping[str, Any], path: Path) -> None:
    """Draw gains with their intervals, the split of a Trend episode, and the sweep of noisy estimates."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (gains, splits, noises) = pyplot.subplots(1, 3, figsize=(16, 4.6), constrained_layout=True)
    for offset, (name, found) in enumerate(study["regimes"].items()):
        keys = [key for key in found["rows"] if key not in ("static-50", "static-best")]
        values = [found["rows"][key]["gainPercent"] for key in keys]
        places = [number + 0.25 * (offset - 1) for number in range(len(keys))]
        errors = [[value[0] - value[1] for value in values], [value[2] - value[0] for value in values]]
        gains.errorbar([value[0] for value in values], places, xerr=errors, fmt="o", markersize=4, label=name.capitalize())
        gains.set_yticks(range(len(keys)), [ROWS[key].title for key in keys])
    gains.axvline(0.0, color="grey", linewidth=0.8)
    gains.invert_yaxis()
    gains.set_xlabel("P99 gained over the best static split, %")
    gains.legend(loc="lower left")
    for key, course in study["course"]["embPercent"].items():
        times = [study["setting"]["windowSeconds"] * (number + 0.5) for number in range(len(course))]
        splits.plot(times, course, label=ROWS[key].title, linestyle="--" if key == "oracle" else "-", linewidth=1.2)
    splits.axvline(study["setting"]["startUpSeconds"], color="grey", linewidth=0.8)
    splits.set_xlabel(f"s, {study['course']['regime'].capitalize()}, seed {study['course']['seed']}")
    splits.set_ylabel("EMB, % of the pool")
    splits.legend(loc="lower right", fontsize=8)
    for key in next(iter(study["noise"].values())):
        regret = [rows[key]["regretPercent"][0] for rows in study["noise"].values()]
        noises.plot([float(noise) for noise in study["noise"]], regret, marker="o", label=ROWS[key].title)
    noises.set_xlabel("standard deviation of the curves' error")
    noises.set_ylabel("P99 over the oracle's, %")
    noises.legend()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)
