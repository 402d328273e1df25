"""One whole training: several seeds, the one that validates best, the held-out evaluation, the model file and its card."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from policies.allocation.model_file import TrainedModel, read_model
from training.card import card
from training.curves import row_tables
from training.export import model_bytes
from training.files import make_folder, replace_file
from training.ppo import VALIDATION_SEED, VALIDATION_WORLDS, Plan, Trained, train
from training.report import COURSES, Report, Table, report_on
from training.request_level import request_table

NAME = "split-1"
_TOLD = ("numpy", "torch", "stable-baselines3", "gymnasium", "numba")


@dataclass(frozen=True)
class Finished:
    """What a run made: two files, what the model reached, and where the time went (seconds)."""

    model_path: Path
    card_path: Path
    model: TrainedModel
    trained: tuple[Trained, ...]
    report: Report
    request_level: Table | None
    seconds: dict[str, float]


def run(
    plan: Plan,
    *,
    seeds: Sequence[int],
    folder: Path,
    out: Path,
    command: str,
    resume: bool = False,
    courses: int = COURSES,
    request_level: bool = True,
    log_formats: tuple[str, ...] = ("csv",),
    progress: Callable[[int, int, str], None] = lambda done, total, note: None,
) -> Finished:
    """Train all seeds, choose by validation, evaluate, write `split-1.safetensors` and `split-1.md`.

    Parameters
    ----------
    folder, out
        For checkpoints and logs; for the two files.
    command
        The command line as it stands in file and card.
    courses
        Held-out courses of each regime.
    request_level
        Whether to evaluate on recorded requests too (a minute or more).
    progress
        Called with steps done, steps in all, and a word.

    Raises
    ------
    ValueError
        If there is no seed, or a checkpoint belongs to another plan or is damaged.
    OSError
        If a folder cannot be written to; the checkpoints that are there stay.
    """
    if not seeds:
        raise ValueError("seeds: at least one is needed")
    for needed in (folder, out):
        make_folder(needed)
    total = plan.steps * len(seeds)
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    progress(0, total, "tables of popularity")
    tables = row_tables()
    clock.lap("tables")
    trained = []
    for place, seed in enumerate(seeds):
        trained.append(
            train(
                plan,
                tables,
                seed=seed,
                folder=folder,
                resume=resume,
                log_formats=log_formats,
                progress=lambda done, _, note, place=place, seed=seed: progress(  # type: ignore[misc]
                    plan.steps * place + done, total, f"seed {seed}: {note}"
                ),
            )
        )
        clock.lap(f"seed {seed}")
    best = max(trained, key=lambda each: each.validation_reward)
    report = report_on(best.model(), tables, courses=courses, progress=lambda what: progress(total, total, what))
    clock.lap("held-out evaluation")
    history = _history(plan, trained, best, command)
    data = model_bytes(best.network, best.normal, best.low, best.high, training=history, scores=report.scores)
    model = read_model(data)
    requests = request_table(model, progress=lambda what: progress(total, total, what)) if request_level else None
    clock.lap("request level")
    model_path, card_path = out / f"{NAME}.safetensors", out / f"{NAME}.md"
    replace_file(model_path, data)
    text = card(
        model,
        name=NAME,
        size_bytes=len(data),
        report=report,
        requests=requests,
        asked_requests=request_level,
        validation=(VALIDATION_WORLDS, VALIDATION_SEED),
    )
    replace_file(card_path, text.encode())
    return Finished(model_path, card_path, model, tuple(trained), report, requests, seconds)


def _history(plan: Plan, trained: Sequence[Trained], best: Trained, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "seed": best.seed,
        "steps": best.best_steps,
        "plan": asdict(plan),
        "validation": {str(each.seed): round(each.validation_reward, 5) for each in trained},
        "machine": platform.machine(),
        "versions": {name: metadata.version(name) for name in _TOLD} | {"python": platform.python_version()},
    }


class _Clock:
    """Laps of time passed, for the closing line; nothing else depends on it."""

    def __init__(self, laps: dict[str, float]) -> None:
        self._laps, self._since = laps, time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps[name] = now - self._since
        self._since = now
