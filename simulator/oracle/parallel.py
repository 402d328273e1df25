"""Runs the groups of a fleet in this process or in one process each, chunk by chunk and in step.

A process gets its columns once and sends its parts back over a pipe; nothing is shared, so a result cannot depend on timing.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from simulator.oracle.windows import Group, Part, parts


class WorkerLost(RuntimeError):
    """A process of the oracle failed or was ended from outside; the message says which and why."""


def chunks(groups: Sequence[Group]) -> Iterator[list[Part]]:
    """Yield the parts of all groups, chunk of windows by chunk; several groups run in a process each.

    Raises
    ------
    WorkerLost
        When a process ends before it is done.
    """
    if len(groups) == 1:
        for part in parts(groups[0]):
            yield [part]
        return
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    workers = []
    done = False
    try:
        for number, group in enumerate(groups):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs,), daemon=True)
            worker.start()
            theirs.close()
            pipes.append(ours)
            workers.append(worker)
            # Not among the arguments: a process that ends before it has read large ones would block its parent for ever.
            _send(ours, group, number)
        grid = groups[0].grid
        for _ in range(0, grid.windows, grid.chunk):
            yield [_receive(pipe, number) for number, pipe in enumerate(pipes)]
        done = True
    finally:
        for pipe in pipes:
            pipe.close()
        for worker in workers:
            if not done:
                worker.kill()
            worker.join()


def _send(pipe: Connection, group: Group, number: int) -> None:
    try:
        pipe.send(group)
    except OSError as error:
        raise _ended(number) from error


def _receive(pipe: Connection, number: int) -> Part:
    try:
        sent = pipe.recv()
    except (EOFError, OSError) as error:
        raise _ended(number) from error
    if isinstance(sent, Part):
        return sent
    raise WorkerLost(f"process {number} of the oracle failed: {sent}")


def _ended(number: int) -> WorkerLost:
    return WorkerLost(
        f"process {number} of the oracle ended before it was done: it was killed, or the script that asks for processes does so"
        ' outside of `if __name__ == "__main__":`'
    )


def _work(pipe: Connection) -> None:
    # A closed pipe means that nobody waits for the rest.
    with suppress(BrokenPipeError, EOFError):
        try:
            for part in parts(pipe.recv()):
                pipe.send(part)
        except (BrokenPipeError, EOFError):
            raise
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
            raise
