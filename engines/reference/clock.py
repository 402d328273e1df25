"""From the wall to model time.

Model time starts at 0 with the process and follows the wall clock in milliseconds. A request that carries `arrivalMs` queues by
that stamp, and a stamp ahead of the clock pulls the clock forward; it never goes back. So a replay in real time stamps each
request with (clockMs read before the replay) + (trace time), and the difference between wall and stamp is the event lag: how far
the driver is behind, a health figure. A replay faster than the wall drives the clock by its stamps alone.
"""

from collections.abc import Callable

#: How far a stamp may lie ahead of the clock; further is taken for a mistake in units.
MAX_AHEAD_MS = 3_600_000.0


class StampRefused(ValueError):
    """An arrival stamp that would throw the clock far ahead for good."""


class ModelClock:
    """Monotone model time in milliseconds.

    Parameters
    ----------
    wall_s : callable
        Monotone seconds, for example time.monotonic.
    """

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._started_s = wall_s()
        self._now_ms = 0.0
        self.event_lag_ms = 0.0
        self.max_event_lag_ms = 0.0

    def now_ms(self) -> float:
        """Return the present model time."""
        self._now_ms = max(self._now_ms, (self._wall_s() - self._started_s) * 1e3)
        return self._now_ms

    def arrival_ms(self, stamp_ms: float | None) -> float:
        """Return the model time at which a request arrives, given its stamp; notes the event lag of stamped ones.

        Raises
        ------
        StampRefused
            When the stamp lies more than an hour ahead of the clock.
        """
        now = self.now_ms()
        if stamp_ms is None:
            return now
        if stamp_ms > now + MAX_AHEAD_MS:
            raise StampRefused(f"arrivalMs: {stamp_ms} is more than an hour ahead of clockMs {now:.0f}")
        self.event_lag_ms = max(0.0, now - stamp_ms)
        self.max_event_lag_ms = max(self.max_event_lag_ms, self.event_lag_ms)
        return stamp_ms

    def reached(self, clock_ms: float) -> None:
        """Take note of a stamp that the engine accepted and that may lie ahead of the wall."""
        self._now_ms = max(self._now_ms, clock_ms)
