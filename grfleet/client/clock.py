"""The clock of the client: monotone milliseconds. Ages and expiries are of this process only and never cross machines."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def monotonic_ms() -> float:
    """Return milliseconds since an unknown moment; never goes back."""
    return time.monotonic() * 1000.0
