"""What the allocation study runs, and in which order: the rules first, then all episodes, shared out to processes.

The table is made of 48 episodes a regime of the test part, on which nothing was chosen; the sweeps (refill modes, noisy
estimates, foreign worlds) of fewer episodes. Tasks whose requests are the same go to one process, which makes the log once.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench import allocator_runs as runs
from bench.allocator_rows import ROWS
from bench.allocator_runs import Kept, Task
from bench.allocator_site import INSTANCES, REGIMES, SHIFTS, Episode, Rules, rules_of
from simulator.fleet.config import RefillMode
from simulator.workloads.parts import Part

NOISES = (0.08, 0.2, 0.4, 0.8)
SWEPT = ("anchor", "hill", "ppo", "recovery")
REFILLED = ("static-best", "anchor", "clamped", "residual", "recovery", "oracle")
JUDGED = ("static-best", "oracle")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is run.

    Attributes
    ----------
    part, regimes
    episodes, simulated : int
        Episodes a regime of the table, and instances that are simulated in them.
    swept, few : int
        The same of refill modes and noisy estimates.
    shifted, fewest : int
        The same of foreign worlds.
    shifts, noises, refills
        What is swept.
    """

    part: Part
    regimes: tuple[str, ...]
    episodes: int
    swept: int
    shifted: int
    simulated: int
    few: int
    fewest: int
    shifts: tuple[str, ...]
    noises: tuple[float, ...]
    refills: tuple[RefillMode, ...]


FULL = Size(
    part=Part.TEST,
    regimes=tuple(REGIMES),
    episodes=48,
    swept=6,
    shifted=3,
    simulated=INSTANCES,
    few=4,
    fewest=2,
    shifts=tuple(name for name in SHIFTS if name),
    noises=NOISES,
    refills=(RefillMode.LAZY, RefillMode.BLOCKING),
)
QUICK = Size(
    part=Part.VALIDATION,
    regimes=("steady",),
    episodes=1,
    swept=1,
    shifted=1,
    simulated=1,
    few=1,
    fewest=1,
    shifts=("long-histories",),
    noises=(0.4,),
    refills=(),
)
Advance = Callable[[int], None]


class RunLost(RuntimeError):
    """A process was ended from outside; what was done is kept, so the same command goes on from there."""


def rows_of(model: bytes | None, keys: Sequence[str] = tuple(ROWS)) -> tuple[str, ...]:
    """Return the rows that can be run: without a model, those that need none."""
    return tuple(key for key in keys if model is not None or not ROWS[key].learned)


def rules(size: Size, folder: Path, *, workers: int) -> Rules:
    """Apply the rules of load and objective to the part that is run."""
    wanted = [(regime, "") for regime in size.regimes] + [("steady", shift) for shift in size.shifts]
    with _pool(workers) as pool:
        futures = [pool.submit(runs.rule, regime, size.part.value, shift, folder) for regime, shift in wanted]
        found = [future.result() for future in futures]
    names = [f"{regime}/{shift}" if shift else regime for regime, shift in wanted]
    return rules_of(size.part.value, dict(zip(names, found, strict=True)))


def main_tasks(size: Size, rule: Rules, model: bytes | None) -> list[Task]:
    """Return the episodes of the table, one of each regime in turn."""
    return [
        Task(episode=_episode(size, rule, regime, seed, simulated=size.simulated), keys=rows_of(model), model=model)
        for seed in range(1, size.episodes + 1)
        for regime in size.regimes
    ]


def refill_tasks(size: Size, rule: Rules, model: bytes | None) -> list[Task]:
    """Return episodes under the other refill modes."""
    return [
        Task(episode=_episode(size, rule, regime, seed, refill=refill), keys=rows_of(model, REFILLED), model=model)
        for refill in size.refills
        for seed in range(1, size.swept + 1)
        for regime in size.regimes
    ]


def noise_tasks(size: Size, rule: Rules, model: bytes | None) -> list[Task]:
    """Return episodes under estimates with an error, and the same without."""
    return [
        Task(
            episode=_episode(size, rule, regime, seed, noise=noise),
            keys=rows_of(model, SWEPT + (JUDGED if noise == 0.0 else ())),
            model=model,
        )
        for noise in (0.0, *size.noises)
        for seed in range(1, size.swept + 1)
        for regime in size.regimes
    ]


def shift_tasks(size: Size, rule: Rules, model: bytes | None) -> list[Task]:
    """Return Steady episodes in worlds that training did not draw from."""
    return [
        Task(
            episode=_episode(size, rule, "steady", seed, simulated=size.fewest, shift=shift),
            keys=rows_of(model, SWEPT + JUDGED),
            model=model,
        )
        for shift in size.shifts
        for seed in range(1, size.shifted + 1)
    ]


def _episode(
    size: Size,
    rule: Rules,
    regime: str,
    seed: int,
    *,
    simulated: int | None = None,
    refill: RefillMode = RefillMode.THROTTLED,
    shift: str = "",
    noise: float = 0.0,
) -> Episode:
    return Episode(
        regime=regime,
        part=size.part.value,
        seed=seed,
        rate=rule.rate(regime, shift),
        slo_ms=rule.slo_ms,
        instances=simulated or size.few,
        refill=refill.value,
        shift=shift,
        noise=noise,
    )


def carry_out(tasks: Sequence[Task], folder: Path, *, workers: int, sha256: str | None) -> int:
    """Run what is missing of the tasks, and return how many runs that were.

    Raises
    ------
    RunLost
        When a process was ended from outside.
    """
    kept = Kept(folder)
    todo: dict[tuple[object, ...], list[Task]] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for task in tasks:
        if count := len(runs.missing(task, kept, sha256)):
            todo.setdefault(task.episode.traffic, []).append(task)
            counts[task.episode.traffic] += count
    total = counts.total()
    done = 0
    try:
        with _bar(total) as advance, _pool(workers) as pool:
            futures: dict[Future[int], int] = {
                pool.submit(runs.carry_out_together, same, folder): counts[traffic] for traffic, same in todo.items()
            }
            for future in as_completed(futures):
                done += future.result()
                advance(futures[future])
    except BrokenProcessPool as error:
        raise RunLost("a process was ended from outside; start the command again, what was done is kept") from error
    return done


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(
        max_workers=workers, mp_context=get_context("spawn"), initializer=runs.pin, initargs=(runs.code_digests(),)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _bar(total: int) -> Iterator[Advance]:
    """Show progress on a terminal; elsewhere a line now and then."""
    console = Console(stderr=True)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    if console.is_terminal:
        with Progress(*columns, console=console) as shown:
            task = shown.add_task("runs", total=total)
            yield lambda count: shown.update(task, advance=count)
        return
    done = 0

    def say(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if total and (20 * before) // total != (20 * done) // total:
            console.print(f"{done} of {total} runs")

    yield say


def processes() -> int:
    """Return how many processes run at a time: one a core."""
    return os.cpu_count() or 1
