"""Wording that the messages of several loops share."""

from __future__ import annotations

from collections.abc import Sequence

NAMES_IN_A_MESSAGE = 5


def few(names: Sequence[str]) -> str:
    """The first few names, and how many more there are: a message stays short however large the pool is."""
    shown = ", ".join(names[:NAMES_IN_A_MESSAGE])
    more = len(names) - NAMES_IN_A_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown
