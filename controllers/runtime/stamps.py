"""Stamps in objects that others may write: the API server admits some that Python cannot read, and one must not stop a loop."""

from datetime import datetime
from typing import Any


def moment_of(text: Any) -> datetime | None:
    """Return the stamp; None where there is none, or one that cannot be read."""
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
