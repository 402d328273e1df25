"""What `check` and `convert` share: the rules on the command line, the progress bar, and the summary for people."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from grfleet.inert import inert

PANEL = "Rules of an event log"

LogFile = Annotated[
    Path, typer.Argument(help="Event log: CSV or JSON lines, plain or gzip.", exists=True, dir_okay=False, metavar="FILE")
]


class OnBadLine(StrEnum):
    STOP = "stop"
    SKIP = "skip"


OnBadOption = Annotated[
    OnBadLine, typer.Option("--on-bad", help="A bad line ends the reading, or is left out and counted.", rich_help_panel=PANEL)
]
MaxSkipped = Annotated[int, typer.Option(min=0, help="More bad lines than this end the reading.", rich_help_panel=PANEL)]
DisorderMs = Annotated[
    float, typer.Option(min=0, help="How much a line may come after a later one; it is sorted.", rich_help_panel=PANEL)
]
SignalWindowMs = Annotated[float, typer.Option(min=0, help="An older early signal announces nothing.", rich_help_panel=PANEL)]
MergeMs = Annotated[
    float, typer.Option(min=0, help="Rankings of a user within this time are one (clicks on a page).", rich_help_panel=PANEL)
]
TokensPerEvent = Annotated[
    int, typer.Option(min=0, help="What each earlier ranking adds to a history that is not given.", rich_help_panel=PANEL)
]
MaxHistoryTokens = Annotated[int, typer.Option(min=1, help="Context of the model; longer is cut.", rich_help_panel=PANEL)]
Candidates = Annotated[int | None, typer.Option(min=1, help="Items to rank where the log says nothing.", rich_help_panel=PANEL)]
UserKeyFile = Annotated[
    Path | None,
    typer.Option(
        help="Pool key, at least 16 bytes, exactly as in the pool's Secret: users get their real slots. Default: a random key.",
        exists=True,
        dir_okay=False,
        rich_help_panel=PANEL,
    ),
]


def pool_key(path: Path | None) -> bytes | None:
    """Return the key of a file, None without one.

    Raises
    ------
    typer.BadParameter
        When it is too short or too long to be a key.
    """
    if path is None:
        return None
    with path.open("rb") as file:
        key = file.read(4097)
    if not 16 <= len(key) <= 4096:
        raise typer.BadParameter("a pool key has 16 to 4096 bytes", param_hint="--user-key-file")
    return key


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show (done, all) bytes on a terminal; on nothing else."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(inert(title).plain, total=None)
        yield lambda done, all_bytes: progress.update(task, completed=done, total=all_bytes)


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """Turn what cannot be used into one line on stderr and exit code 1."""
    try:
        yield
    except ValueError as error:  # a TraceError is one
        typer.echo(f"{command}: {inert(str(error)).plain}", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"{command}: {inert(str(error.filename or '')).plain}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(f"{command}: interrupted", err=True)
        raise typer.Exit(130) from None


def summary(log: dict[str, Any], report: dict[str, Any] | None) -> list[str]:
    """Lines for people: what is in the requests, and what reading did to them."""
    lines = [
        f"{log['requests']:,} requests of {log['users']:,} users in {log['seconds']:,.1f} s, {log['per_second']:,.1f} a second",
        f"history {_spread(log['history_tokens'])} tokens; candidates {_spread(log['candidates'])}; "
        f"{log['announced_percent']:.1f} % announced by an early signal",
        f"digest {log['digest']}",
    ]
    if report is None:
        return lines
    lines.append(f"{report['lines']:,} lines read, {report['skipped']:,} skipped, {report['reordered']:,} sorted")
    lines += [f"  {count:,} x {problem}" for problem, count in report["skipped_by"].items()]
    lines += [f"  first at line {each['line']}" for each in report["skipped_first"][:1]]
    if report["merged"]:
        lines.append(f"{report['merged']:,} rankings were part of the one before")
    if report["signals"]:
        lines.append(f"{report['signals']:,} early signals, {report['signals_used']:,} of them announced a ranking")
    if report["histories_counted"]:
        lines.append(f"{report['histories_counted']:,} histories were not given and were counted from earlier rankings")
    if (law := report["item_law"]) is not None:
        lines.append(f"popularity of the items: {law['words']}")
        lines += [f"doubt: {doubt}" for doubt in law["doubts"]]
    elif report["items_named"]:
        lines.append("too few items are named to fit their popularity, so embedding rows follow a general law")
    if report["histories_cut"]:
        lines.append(f"{report['histories_cut']:,} histories were cut at the model's context")
    if report["unknown_columns"]:
        lines.append(f"ignored columns: {', '.join(report['unknown_columns'])}")
    if report["random_key"]:
        lines.append("user ids were hashed under a random key: slots are not those of a real pool (--user-key-file)")
    return [inert(line).plain for line in lines]


def _spread(figures: dict[str, float]) -> str:
    return f"{figures['p50']:,.0f} (median), {figures['p99']:,.0f} (P99)"


def described(log: Any) -> dict[str, Any]:
    """Return the figures of a RequestLog as JSON values."""
    import numpy as np

    seconds = log.duration_ms / 1000.0

    def spread(column: Any) -> dict[str, float]:
        return {"p50": float(np.percentile(column, 50)), "p99": float(np.percentile(column, 99)), "max": float(column.max())}

    return {
        "requests": len(log),
        "users": log.users,
        "seconds": seconds,
        "per_second": len(log) / seconds if seconds > 0 else 0.0,
        "history_tokens": spread(log.history_tokens),
        "candidates": spread(log.candidates),
        "announced_percent": float((log.signal_lead_ms > 0).mean() * 100.0),
        "digest": log.digest,
    }
