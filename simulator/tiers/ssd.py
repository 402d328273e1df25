"""The SSD of one instance as two lanes, one for reads and one for writes: transfers in order of submission, one at a time."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SsdCost:
    """Rates of one SSD.

    Parameters
    ----------
    read_bytes_per_second, write_bytes_per_second : float
        Infinite for replays in which only places matter.
    fixed_ms : float
        Time of one access that no byte pays for.
    write_backlog_bytes : float
        Most that waits to be written; more is refused.
    """

    read_bytes_per_second: float = math.inf
    write_bytes_per_second: float = math.inf
    fixed_ms: float = 0.0
    write_backlog_bytes: float = math.inf


class Lane:
    """One direction."""

    def __init__(self, *, bytes_per_second: float, fixed_ms: float) -> None:
        if not bytes_per_second > 0 or not fixed_ms >= 0:
            raise ValueError(f"bytes_per_second, fixed_ms: {bytes_per_second}, {fixed_ms} must be above and at least 0")
        self._rate = bytes_per_second / 1e3
        self._fixed_ms = fixed_ms
        self._free_ms = 0.0

    def submit(self, byte_count: int, *, now_ms: float) -> float:
        """Ask for a transfer behind all earlier ones and return when it ends."""
        self._free_ms = max(self._free_ms, now_ms) + self._fixed_ms + byte_count / self._rate
        return self._free_ms

    def backlog_bytes(self, now_ms: float) -> float:
        """What is still to move, about: fixed times count as bytes."""
        left_ms = self._free_ms - now_ms
        return left_ms * self._rate if left_ms > 0 else 0.0
