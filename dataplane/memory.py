"""Keeps the memory of a process that wakes often and works little close together, on pages of two megabytes.

What such a process pays for is not its work but finding its memory again, since whoever ran meanwhile has the caches, also those
of address translation: on a virtual machine each page that is looked up anew takes a walk through two page tables. So everything
that Python holds lies in one heap (its own allocator would ask for a megabyte here and there), and the system is asked to put
large pages under it. Where it does not, nothing is lost but time.
"""

import contextlib
import ctypes
import gc
import os
import sys
from pathlib import Path

_PAGE_BYTES = 2 * 1024 * 1024
_MADV_COLLAPSE = 25  # from <linux/mman.h>, since Linux 6.1


def in_one_heap() -> None:
    """Begin this program anew with all of Python's memory from the C library, unless it has begun so; same process, same flags.

    Call it before anything large is loaded. An allocator cannot be changed while something lives in it.
    """
    if sys.platform == "linux" and sys.executable and "PYTHONMALLOC" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONMALLOC": "malloc"})


def settle() -> None:
    """Leave out of every collection what is there now, give back what loading it took for a while, and put the rest together."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # a C library without it, or no /proc
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        start, end = _heap()
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)


def _heap() -> tuple[int, int]:
    """Where the whole large pages of the heap begin and end."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[heap]"):
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            start = -(-start // _PAGE_BYTES) * _PAGE_BYTES
            return start, max(end // _PAGE_BYTES * _PAGE_BYTES, start)
    return 0, 0
