"""Where a process that wakes often has its memory: in one heap, whatever it was started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataplane import memory

SAY = "import os, sys; from dataplane.memory import in_one_heap, settle; in_one_heap(); "


def said(code: str, *arguments: str, flags: tuple[str, ...] = (), **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONMALLOC"}
    done = subprocess.run(
        [sys.executable, *flags, "-c", SAY + code, *arguments],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


def test_a_program_begins_anew_once_with_its_flags_and_arguments_in_the_same_process() -> None:
    code = "print(os.environ['PYTHONMALLOC'], sys.flags.optimize, sys.argv[1:], os.getppid())"
    assert said(code, "--a", "b c", flags=("-O",)) == f"malloc 1 ['--a', 'b c'] {os.getpid()}"


@pytest.mark.parametrize("allocator", ["pymalloc", "malloc", "debug"])
def test_an_allocator_that_was_chosen_stays(allocator: str) -> None:
    assert said("print(os.environ['PYTHONMALLOC'])", PYTHONMALLOC=allocator) == allocator


def test_a_settled_program_goes_on_with_all_that_it_holds() -> None:
    code = "held = [str(n) for n in range(200_000)]; settle(); settle(); print(sum(map(int, held)))"
    assert said(code) == str(sum(range(200_000)))


def test_what_is_put_together_is_whole_large_pages_of_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    heap = "55c5710{}000-55c57{}000 rw-p 00000000 00:00 0   [heap]"
    for start, end in (("8d", "249b"), ("00", "1200"), ("01", "1100")):
        maps = f"7f00-7f01 r-xp 0 fe:00 1 /lib/x\n{heap.format(start, end)}\n"
        monkeypatch.setattr(Path, "read_text", lambda _, maps=maps: maps)
        begin, until = memory._heap()
        assert begin % (2 << 20) == until % (2 << 20) == 0
        assert int(f"55c5710{start}000", 16) <= begin <= until
    monkeypatch.setattr(Path, "read_text", lambda _: "7f00-7f01 r-xp 0 fe:00 1 /lib/x\n")
    assert memory._heap() == (0, 0)
