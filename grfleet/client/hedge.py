"""When a second try is worth it: the delay from latencies seen, and a budget that bounds how many there are.

Model: hedged requests (Dean and Barroso 2013). A request that has not been answered after most others would have been is sent to
the next owner too, and the first answer counts. Ranking is idempotent; the second instance misses its caches, so hedges are
bounded to a share of requests at every moment, not on average.
"""

import threading
from collections import deque
from dataclasses import dataclass

KEPT = 1000
REFRESH_EACH = 50


@dataclass(frozen=True, kw_only=True)
class HedgePolicy:
    """When to send a request a second time.

    Attributes
    ----------
    delay_percent : float
        Of the P99 of the last thousand answers.
    least_delay_ms : float
        Not before, however fast answers were.
    budget_percent : float
        Hedges per requests, at every moment since the start; 0 switches hedging off. Retries after a failure are not hedges.
    hoard : float
        So many hedges may be saved up by requests that needed none.
    samples : int
        No hedge before so many answers are known.
    """

    delay_percent: float = 100.0
    least_delay_ms: float = 1.0
    budget_percent: float = 5.0
    hoard: float = 10.0
    samples: int = 100

    def __post_init__(self) -> None:
        if not 0.0 <= self.budget_percent <= 100.0 or self.delay_percent <= 0.0 or self.samples < 1 or self.hoard < 1.0:
            raise ValueError("hedge: budget 0 to 100 percent, delay above 0 percent, samples and hoard at least 1")


class Latencies:
    """The last answers' latencies and their P99, renewed every fifty answers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[float] = deque(maxlen=KEPT)
        self._added = 0
        self._p99_ms = 0.0

    def after_fork(self) -> None:
        """In the child of a fork: whoever held the lock is not there."""
        self._lock = threading.Lock()

    def add(self, latency_ms: float) -> None:
        """Add one answer's; of a try that was given up, what it had taken until then."""
        with self._lock:
            self._kept.append(latency_ms)
            self._added += 1
            if self._added % REFRESH_EACH == 0:
                ordered = sorted(self._kept)
                self._p99_ms = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def p99_ms(self, *, samples: int) -> float | None:
        """Return the P99, None as long as fewer than `samples` (or fifty) were seen."""
        return self._p99_ms if self._added >= max(samples, REFRESH_EACH) else None


class HedgeBudget:
    """Tokens: each request brings `percent / 100`, each hedge takes one, at most `hoard` are kept. Thread-safe."""

    def __init__(self, *, percent: float, hoard: float) -> None:
        self._lock = threading.Lock()
        self._share, self._hoard = percent / 100.0, hoard
        self._tokens = 0.0

    def after_fork(self) -> None:
        """In the child of a fork: whoever held the lock is not there."""
        self._lock = threading.Lock()

    def request(self) -> None:
        """A request begins."""
        with self._lock:
            self._tokens = min(self._hoard, self._tokens + self._share)

    def take(self) -> bool:
        """Take one hedge, if there is one."""
        with self._lock:
            if self._tokens < 1.0 - 1e-9:
                return False
            self._tokens -= 1.0
            return True
