"""The clock of clients: monotone milliseconds. Ages and expiries are of this process only and never cross machines."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def monotonic_ms() -> float:
    """Return milliseconds since an unknown moment; never goes back."""
    return time.monotonic() * 1000.0


def in_seconds(clock: Clock) -> Callable[[], float]:
    """Return the same clock in seconds: for the usual one a C function, which spares a pick a call of Python."""
    return time.monotonic if clock is monotonic_ms else lambda: clock() / 1000.0
