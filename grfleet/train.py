"""`grfleet train`: train the allocator of the split, choose the best seed, evaluate it, write the model file and its card.

Needs the extra `[train]`, which `make train` keeps in a virtual environment of its own because torch takes some five gigabytes.
"""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from training.run import Finished

DEFAULT_SEEDS = "1,2,3"


def train(
    steps: Annotated[int, typer.Option(help="Steps of one seed, over all its instances.", min=1)] = 1_200_000,
    seeds: Annotated[str, typer.Option(help="Seeds to train, with commas; the one that validates best is kept.")] = DEFAULT_SEEDS,
    out: Annotated[Path, typer.Option(help="Folder for model file and card.")] = Path("out/model"),
    work: Annotated[Path, typer.Option(help="Folder for checkpoints and logs.")] = Path("out/training"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoints in the work folder.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A model in a minute, to see that all works; its quality is poor.")
    ] = False,
    request_level: Annotated[bool, typer.Option(help="Evaluate on recorded requests too (a minute or two).")] = True,
) -> None:
    """Train an allocator model (one to fifteen minutes; `make train` installs what it needs).

    A run that was killed goes on with --resume and ends with the same bytes. docs/training.md explains plan, figures and card.
    """
    chosen = _seeds_of(seeds)
    missing = [name for name in ("torch", "stable_baselines3", "gymnasium", "numba") if importlib.util.find_spec(name) is None]
    if missing:
        typer.echo(f"train: {', '.join(missing)} missing; in the checkout, `make train` installs and runs it", err=True)
        raise typer.Exit(2)
    from training.ppo import Plan
    from training.report import COURSES
    from training.run import run

    plan = Plan(steps=60_000, worlds=512) if quick else Plan(steps=steps)
    formats = ("csv", "tensorboard") if importlib.util.find_spec("tensorboard") else ("csv",)
    command = f"grfleet train --seeds {seeds}" + (" --quick" if quick else f" --steps {steps}")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("", total=plan.steps * len(chosen))
        try:
            done = run(
                plan,
                seeds=chosen,
                folder=work,
                out=out,
                command=command,
                resume=resume,
                courses=12 if quick else COURSES,
                request_level=request_level and not quick,
                log_formats=formats,
                progress=lambda steps, total, note: bar.update(task, completed=steps, total=total, description=f"{note:44}"),
            )
        except ValueError as error:
            typer.echo(f"train: {error}", err=True)
            raise typer.Exit(1) from error
        except OSError as error:
            where = error.filename or f"{work} or {out}"
            typer.echo(f"train: {where}: {error.strerror}; --resume goes on from the last checkpoint", err=True)
            raise typer.Exit(1) from error
    _tell(done, work, formats)


def _seeds_of(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers", param_hint="--seeds") from error
    if any(not 0 <= seed < 1 << 32 for seed in seeds):
        raise typer.BadParameter(f"{text!r}: a seed lies between 0 and {(1 << 32) - 1}", param_hint="--seeds")
    if len(set(seeds)) < len(seeds):
        raise typer.BadParameter(f"{text!r} names a seed twice", param_hint="--seeds")
    return seeds


def _tell(done: "Finished", work: Path, formats: tuple[str, ...]) -> None:
    from training.card import verdict

    for table in done.report.tables:
        typer.echo(table.markdown())
    if done.request_level is not None:
        typer.echo(done.request_level.markdown())
    typer.echo(verdict(done.report))
    total = sum(done.seconds.values())
    typer.echo(f"\ntime: {', '.join(f'{name} {s:.0f} s' for name, s in done.seconds.items())}; in all {total:.0f} s")
    kind = (
        "TensorBoard event files and CSV"
        if "tensorboard" in formats
        else "CSV (TensorBoard event files where that package is there)"
    )
    typer.echo(f"logs: {work}/seed-*-log, {kind}")
    typer.echo(f"model: {done.model_path} ({done.model_path.stat().st_size} bytes, sha256 {done.model.sha256})")
    typer.echo(f"card: {done.card_path}")
    sys.stdout.flush()
