"""What a fork leaves behind: threads live on in the parent alone, and a lock that one of them held stays locked in the child.

Whatever holds locks or threads says so once, and is asked to make new ones in every child.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something whose locks or threads are of no use in the child of a fork."""

    def after_fork(self) -> None:
        """Make new ones; called in the child, which has one thread then."""


_known: WeakSet[Forked] = WeakSet()


def renew_after_fork(each: Forked) -> None:
    """Call `after_fork` of it in the child of every fork, for as long as it lives."""
    _known.add(each)


def _renew() -> None:
    for each in list(_known):
        each.after_fork()


if hasattr(os, "register_at_fork"):  # where there is a fork at all
    os.register_at_fork(after_in_child=_renew)
