"""Where a process that wakes often has its memory: in one heap, whatever it was started with."""

import os
import subprocess
import sys

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


def test_settings_of_the_c_library_stay() -> None:
    assert said("print(os.environ['GLIBC_TUNABLES'])", GLIBC_TUNABLES="glibc.malloc.check=0") == "glibc.malloc.check=0"


def test_a_settled_program_goes_on_with_all_that_it_holds() -> None:
    code = "held = [str(n) for n in range(200_000)]; settle(); settle(); print(sum(map(int, held)))"
    assert said(code) == str(sum(range(200_000)))


def test_only_code_from_files_is_given_back() -> None:
    maps = """\
55d0c0000000-55d0c0400000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r--p 00000000 fe:00 11                         /lib/libc.so.6
7f0000001000-7f0000003000 r-xp 00001000 fe:00 11                         /lib/libc.so.6
7f0000003000-7f0000004000 rw-p 00003000 fe:00 11                         /lib/libc.so.6
7f0000004000-7f0000005000 rwxp 00003000 fe:00 11                         /lib/written to.so
7f0000005000-7f0000006000 r-xp 00000000 00:00 0
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0                          [vdso]
"""
    assert list(memory._code(maps)) == [(0x7F0000001000, 0x2000)]
