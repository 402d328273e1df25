"""The allocator on real traces: static splits, hill climbing, ARC, the anchor, each layer of the learned path, and the oracle.

32 instances; Steady, Trend and Burst of the test part of the recordings; load and objective by rules that are applied before
anything adapts (`allocator_site`); every row on the same logs with the same random numbers. Nothing was chosen on the test part.
Figures are kept under out/ by what they depend on, so that a run that was killed goes on.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench import allocator_figures as figures
from bench import allocator_study as study
from bench.allocator_report import page, plot, with_summary
from bench.allocator_rows import INTERVAL_MS, ROWS, SHIPPED, THINNED, decisive
from bench.allocator_runs import KEPT, ROOT, Figures, Task, results
from bench.allocator_site import INSTANCES, START_UP_S, WINDOW_S
from bench.allocator_study import FULL, JUDGED, QUICK, SWEPT, Size
from bench.report import RESULTS, Result, publish, single
from policies.allocation.model_file import digest_of, read_model
from simulator.fleet.config import Level

MODEL = ROOT / "policies" / "models" / "split-1.safetensors"
PAGE = ROOT / "docs" / "allocator.md"
SHARE_GOAL, SHARE_LOW_GOAL = 95.0, 90.0
COURSE = ("hill", "anchor", "ppo", "recovery", "oracle")


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Run, publish, and save table and plots of a full run; every episode has its own seed, so `seed` is only noted."""
    if not quick:
        _finish(whole(FULL, KEPT), quick=False, as_json=as_json, seed=seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        _finish(whole(QUICK, Path(folder)), quick=True, as_json=as_json, seed=seed)


def whole(size: Size, folder: Path, *, model: bytes | None = None) -> dict[str, Any]:
    """Run a study and return all its figures.

    Parameters
    ----------
    model : bytes, optional
        File of the model that learned rows run; the shipped one when absent, and no learned rows where there is none.
    """
    data = model if model is not None else _shipped()
    sha256 = None if data is None else decisive(read_model(data))
    workers = study.processes()
    rules = study.rules(size, folder, workers=workers)
    tasks = {
        "regimes": study.main_tasks(size, rules, data),
        "refill": study.refill_tasks(size, rules, data),
        "noise": study.noise_tasks(size, rules, data),
        "shifts": study.shift_tasks(size, rules, data),
    }
    study.carry_out([task for each in tasks.values() for task in each], folder, workers=workers, sha256=sha256)
    found = {name: [(task, results(task, folder, sha256)) for task in each] for name, each in tasks.items()}
    keys = study.rows_of(data)
    return {
        "setting": _setting(size, None if data is None else digest_of(data)),
        "rules": {**asdict(rules), "rates": dict(rules.rates)},
        "regimes": {regime: _regime(_of(found["regimes"], regime=regime), keys) for regime in size.regimes},
        "refill": {
            mode.value: {
                regime: figures.table(_of(found["refill"], regime=regime, refill=mode.value), study.rows_of(data, study.REFILLED))
                for regime in size.regimes
            }
            for mode in size.refills
        },
        "noise": _noise(found["noise"], size, study.rows_of(data, SWEPT)),
        "shifts": _shifts(found["shifts"], size, study.rows_of(data, SWEPT)),
        "course": _course(found["regimes"], study.rows_of(data, COURSE)),
    }


def _shipped() -> bytes | None:
    try:
        return MODEL.read_bytes()
    except OSError:
        return None


Found = Sequence[tuple[Task, Mapping[str, Figures]]]


def _of(found: Found, **wanted: object) -> list[Mapping[str, Figures]]:
    """Return the figures of the episodes that have these properties."""
    return [rows for task, rows in found if all(getattr(task.episode, name) == value for name, value in wanted.items())]


def _setting(size: Size, sha256: str | None) -> dict[str, Any]:
    return {
        "part": size.part.value,
        "episodes": size.episodes,
        "swept": size.swept,
        "shifted": size.shifted,
        "fewest": size.fewest,
        "instances": INSTANCES,
        "simulated": size.simulated,
        "few": size.few,
        "level": Level.SAMPLED.value,
        "rowsOneIn": 256 * THINNED,
        "intervalMs": INTERVAL_MS,
        "startUpSeconds": START_UP_S,
        "windowSeconds": WINDOW_S,
        "model": sha256,
    }


def _regime(episodes: Sequence[figures.Episode], keys: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {"oracle": figures.oracle_words(episodes), "rows": figures.table(episodes, keys)}
    if SHIPPED in keys:
        behind = figures.above(episodes, SHIPPED, "anchor")
        out["shippedAgainstAnchorPercent"] = figures.interval(behind).plain()
    return out


def _noise(found: Found, size: Size, keys: Sequence[str]) -> dict[str, Any]:
    still = _of(found, noise=0.0)
    out: dict[str, Any] = {}
    for noise in (0.0, *size.noises):
        episodes = [
            {**{key: rows[key] for key in keys}, "oracle": judged["oracle"]}
            for rows, judged in zip(_of(found, noise=noise), still, strict=True)
        ]
        out[f"{noise:g}"] = {key: _against(episodes, key) for key in keys}
    return out


def _shifts(found: Found, size: Size, keys: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in size.shifts:
        episodes = _of(found, shift=name)
        rows = {key: _against(episodes, key) for key in keys}
        out[name] = {"busyPercent": float(np.mean(figures.column(episodes, JUDGED[0], "busyPercent"))), "rows": rows}
    return out


def _against(episodes: Sequence[figures.Episode], key: str) -> dict[str, Any]:
    behind = figures.above(episodes, key, "anchor")
    return {
        "regretPercent": figures.interval(figures.above(episodes, key, "oracle")).plain(),
        "againstAnchorPercent": figures.interval(behind).plain(),
        "worstPercent": float(behind.max()),
        "episodes": len(episodes),
    }


def _course(found: Found, keys: Sequence[str]) -> dict[str, Any]:
    task, rows = max(found, key=lambda each: (each[0].episode.regime, -each[0].episode.seed))  # the first of Trend
    return {
        "regime": task.episode.regime,
        "seed": task.episode.seed,
        "embPercent": {key: rows[key]["windowEmbPercent"] for key in keys},
    }


def goals(found: Mapping[str, Any]) -> list[Result]:
    """Return the figures that have goals, and those that stand beside them."""
    out: list[Result] = []
    learned = found["setting"]["model"] is not None
    key = SHIPPED if learned else "anchor"
    for regime, part in found["regimes"].items():
        rows, runs = part["rows"], part["oracle"]["episodes"]
        share, oracle = rows[key]["sharePercent"], part["oracle"]
        if regime == "steady":
            value, low, high = rows[key]["gainPercent"]
            out.append(_spread(f"{regime}: P99 over the best static split's", (-value, -high, -low), "%", runs, goal=1.0))
        elif share is not None:
            out.append(
                _spread(
                    f"{regime}: share of the oracle's gain", share, "%", runs, goal=SHARE_GOAL if learned else None, least=True
                )
            )
            low = single(
                f"{regime}: lower bound of that share", share[1], "%", goal=SHARE_LOW_GOAL if learned else None, at_least=True
            )
            out.append(low)
        out += [
            _spread(f"{regime}: gain over the best static split", rows[key]["gainPercent"], "%", runs),
            _spread(f"{regime}: the oracle's own gain, replayed", oracle["replayedGainPercent"], "%", runs),
            single(f"{regime}: the oracle's noise floor", oracle["noiseFloorPercent"], "%"),
            _spread(f"{regime}: gain over static 50", rows[key]["gainOver50Percent"], "%", runs),
            single(
                f"{regime}: SLO share below the oracle's",
                rows["oracle"]["sloPercent"] - rows[key]["sloPercent"],
                "points",
                goal=0.3,
            ),
        ]
        if learned:
            out.append(_spread(f"{regime}: P99 over the anchor's", part["shippedAgainstAnchorPercent"], "%", runs, goal=1.0))
    if learned:
        noisiest = list(found["noise"])[-2:]
        for noise in noisiest:
            figure = found["noise"][noise][key]
            name = f"estimates off by sd {noise}: P99 over the anchor's"
            out.append(_spread(name, figure["againstAnchorPercent"], "%", figure["episodes"], goal=0.0))
        worst = max(world["rows"][key]["worstPercent"] for world in found["shifts"].values())
        out.append(single("foreign worlds: worst episode over the anchor's P99", worst, "%", goal=5.0))
        for mode, regimes in found["refill"].items():
            for regime, rows in regimes.items():
                behind = rows[key]["regretPercent"][0] - rows["anchor"]["regretPercent"][0]
                out.append(single(f"{mode} refill, {regime}: regret beyond the anchor's", behind, "points", goal=1.0))
    return out


def _spread(name: str, value: Sequence[float], unit: str, runs: int, *, goal: float | None = None, least: bool = False) -> Result:
    return Result(name=name, value=value[0], unit=unit, min=value[1], max=value[2], runs=runs, goal=goal, at_least=least)


def _finish(found: dict[str, Any], *, quick: bool, as_json: bool, seed: int) -> None:
    title = ROWS[SHIPPED].title if found["setting"]["model"] else ROWS["anchor"].title
    notes = (
        f"Figures of the row `{title}`; min and max are 95 % bootstrap intervals over episodes. P99 is the mean of the P99s of "
        f"{WINDOW_S:g} s windows, which the oracle minimises. A share of the oracle's gain stands only where that can be told "
        "from nothing. docs/results/allocator.md has every row."
    )
    publish("allocator", goals(found), seed=seed, quick=quick, as_json=as_json, notes=notes)
    if quick:
        return
    path = RESULTS / "allocator.json"
    long_form = json.loads(path.read_text())
    path.write_text(json.dumps({**long_form, "study": found}, indent=2) + "\n")
    (RESULTS / "allocator.md").write_text(page(found))
    PAGE.write_text(with_summary(PAGE.read_text(), found))
    plot(found, RESULTS / "allocator.png")
