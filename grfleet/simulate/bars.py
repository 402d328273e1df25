"""Progress on a terminal, on stderr; silence everywhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grfleet.inert import inert

Progress = Callable[[int, int], None]
Bars = Callable[[str], Progress]


def no_bars(title: str) -> Progress:
    """Show nothing."""
    return lambda done, of: None


@contextmanager
def bars_on_stderr() -> Iterator[Bars]:
    """Give a maker of bars: one for each step, fed with (done, of)."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Shown

    console = Console(stderr=True)
    if not console.is_terminal:
        yield no_bars
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Shown(*columns, console=console, transient=True) as shown:

        def bar(title: str) -> Progress:
            task = shown.add_task(inert(title).plain, total=None)
            return lambda done, of: shown.update(task, completed=done, total=of)

        yield bar
