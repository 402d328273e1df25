"""Keeps the memory of a process that wakes often and works little close together, on pages of two megabytes.

What such a process pays for is not its work but finding its memory again, since whoever ran meanwhile has the caches, also those
of address translation: on a virtual machine each page that is looked up anew takes a walk through two page tables. So everything
that Python holds lies in the one heap of the C library (Python's own allocator would ask for a megabyte here and there), which
asks the system for large pages and keeps what it has. Where there are none, nothing is lost but time.
"""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_LARGE_PAGES = "glibc.malloc.hugetlb=1"  # since glibc 2.35; transparent ones, by madvise
_MADV_DONTNEED = 4  # from <linux/mman.h>


def in_one_heap() -> None:
    """Begin this program anew with all of Python's memory from the C library, unless it has begun so; same process, same flags.

    Call it before anything large is loaded. An allocator cannot be changed while something lives in it.
    """
    if sys.platform == "linux" and sys.executable and "PYTHONMALLOC" not in os.environ:
        asked = {"GLIBC_TUNABLES": _LARGE_PAGES} | os.environ | {"PYTHONMALLOC": "malloc"}
        os.execve(sys.executable, sys.orig_argv, asked)


def settle() -> None:
    """Leave out of every collection what is there now, and give back what loading it took for a while: memory, and pages of code.

    Code that is run again comes back from the page cache, where it is anyway.
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # a C library without it, or no /proc
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        for start, size in _code(Path("/proc/self/maps").read_text()):
            library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED)


def _code(maps: str) -> Iterator[tuple[int, int]]:
    """Yield start and size of all that is mapped from files to be run, and cannot have been written to."""
    for line in maps.splitlines():
        addresses, rights, *_, path = line.split(maxsplit=5)
        if rights == "r-xp" and path.startswith("/"):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield start, end - start
