"""Instances of a fleet in several processes that share the columns of the outcome.

Instances do not see each other, so it does not matter who runs which. Processes are forked: what they read is there already, and
what they write lies in memory that they share with their parent.
"""

import math
import mmap
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOOK_SECONDS = 0.1


class ProcessLost(RuntimeError):
    """A process failed or was ended from outside; what it was to do is not done."""


def shared(shape: int | tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """Return zeros in memory that processes forked from now on share with this one."""
    count = shape if isinstance(shape, int) else math.prod(shape)
    kind = np.dtype(dtype)
    memory = mmap.mmap(-1, max(1, count * kind.itemsize))
    return np.frombuffer(memory, dtype=kind, count=count).reshape(shape)


def in_processes(
    work: Callable[[int], None], numbers: Sequence[int], *, workers: int, look: Callable[[], None] = lambda: None
) -> None:
    """Call `work` with each number, dealt out over so many processes.

    Parameters
    ----------
    work : callable
        Leaves its outcome in `shared` memory; anything else that it changes is lost.
    look : callable
        Called in this process now and then, and at the end.

    Raises
    ------
    ProcessLost
        When a process ends before it is done; the others are ended too. Its own words are on stderr.
    """
    context = multiprocessing.get_context("fork")
    shares = [numbers[first::workers] for first in range(min(workers, len(numbers)))]
    processes = [context.Process(target=_each, args=(work, share), daemon=True) for share in shares]
    try:
        for process in processes:
            process.start()
        for number, process in enumerate(processes):
            while process.is_alive():
                process.join(LOOK_SECONDS)
                look()
            if process.exitcode:
                raise ProcessLost(f"process {number} of the simulation ended with code {process.exitcode}; start it again")
        look()
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            if process.pid is not None:
                process.join()


def _each(work: Callable[[int], None], numbers: Sequence[int]) -> None:
    for number in numbers:
        work(number)
