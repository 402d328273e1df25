"""Words that others wrote, for a terminal: objects, agents and servers may say anything, and none of it is a command."""

from __future__ import annotations

from rich.text import Text


def inert(words: str, *, style: str = "") -> Text:
    """The words with no markup in them, and nothing that steers a terminal."""
    return Text("".join(each if each.isprintable() else " " for each in words), style=style)
