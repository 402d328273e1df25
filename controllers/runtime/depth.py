"""How deep an object may be nested: as deep as the API server admits, or one pool's template could end the process for all.

Parsers go down one level of the interpreter's recursion for each level of JSON, of which it allows a thousand; the API server
takes ten thousand, in the part of a pool whose fields nobody knows beforehand. A list is parsed whole, and so is a watch.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DEEPEST = 12_000
"""Levels that are allowed; so many take a parser 5 MiB of its stack. What is deeper still is an error and not the end."""
STACK_BYTES = 8 << 20
"""What Linux gives a process; with less the interpreter's own limit stays, because running out of it cannot be caught."""


def allow_deep_objects() -> None:
    """Let this process read whatever the API server has admitted."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if stack == resource.RLIM_INFINITY or stack >= STACK_BYTES:
        sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))


@contextmanager
def deep_objects() -> Iterator[None]:
    """The same for a while."""
    before = sys.getrecursionlimit()
    allow_deep_objects()
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
