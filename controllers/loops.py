"""The list of control loops that the operator runs; a new loop is one line here."""

from __future__ import annotations

from controllers.runtime.loop import Loop


def all_loops() -> list[Loop]:
    """Fresh loops for one process."""
    return []
