"""How long to wait before the next try: doubling, bounded, and spread by chance so that many clients do not come at once."""

import random


class Backoff:
    """Pauses in seconds: half to the whole of a bound that doubles with each failure, from `first_s` to `longest_s`."""

    def __init__(self, rng: random.Random, *, first_s: float = 0.2, longest_s: float = 10.0) -> None:
        self._rng, self._first_s, self._longest_s = rng, first_s, longest_s
        self._bound_s = first_s

    def pause_s(self) -> float:
        """Return the next pause."""
        pause_s = self._rng.uniform(0.5, 1.0) * self._bound_s
        self._bound_s = min(self._longest_s, 2.0 * self._bound_s)
        return pause_s

    def reset(self) -> None:
        """Begin anew: it worked."""
        self._bound_s = self._first_s
