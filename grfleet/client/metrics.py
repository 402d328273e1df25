"""What the client counts, and the hook that carries it to whatever metrics library the caller uses.

The names are a closed list. The hook is called for calls and for what is unusual, never on the plain path of `Router.pick`, where
one call would cost more than the pick. A hook that raises is cut off from the request that it was told about.
"""

import contextlib
import threading
from collections import Counter
from enum import StrEnum
from typing import Protocol


class Metric(StrEnum):
    """Every name that a hook can see; labels in the comment below each."""

    TABLES = "grfleet_client_tables_total"
    """Counter; result: taken, known (the one in use), stale (older), refused (no table)."""
    SOURCE_PROBLEMS = "grfleet_client_source_problems_total"
    """Counter; interruptions of the way to the table."""
    KEY_MISMATCHES = "grfleet_client_key_mismatches_total"
    """Counter; tables taken whose pool key is not held."""
    REQUESTS = "grfleet_client_requests_total"
    """Counter; result: answered, failed, refused (no instance), rejected (`send` raised what is no failure of an instance)."""
    RETRIES = "grfleet_client_retries_total"
    """Counter; second tries because the first failed."""
    HEDGES = "grfleet_client_hedges_total"
    """Counter; result: sent, won, denied (by the budget)."""
    EXCLUSIONS = "grfleet_client_exclusions_total"
    """Counter; instance failures that excluded an instance for a while."""
    ATTEMPT_MS = "grfleet_client_attempt_ms"
    """Histogram; time of an answered try, milliseconds."""


class Metrics(Protocol):
    """Hook to be given to a client; called from any thread. Labels are few and bounded: never a user, never an instance."""

    def count(self, name: str, value: int = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""


class NoMetrics:
    """Counts nothing."""

    def count(self, name: str, value: int = 1, **labels: str) -> None:
        pass

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass


class GuardedMetrics:
    """Passes on to a hook with fixed labels added (which pool this is), and swallows what it raises."""

    def __init__(self, hook: Metrics, **labels: str) -> None:
        self._hook, self._labels = hook, labels

    def count(self, name: str, value: int = 1, **labels: str) -> None:
        with contextlib.suppress(Exception):
            self._hook.count(name, value, **self._labels, **labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        with contextlib.suppress(Exception):
            self._hook.observe(name, value, **self._labels, **labels)


class KeptMetrics:
    """Keeps counters, and count and sum of each histogram, in memory: for tests, and for a caller without a metrics library."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._sums: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()

    def count(self, name: str, value: int = 1, **labels: str) -> None:
        with self._lock:
            self._counters[name, tuple(sorted(labels.items()))] += value

    def observe(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._counters[name, tuple(sorted(labels.items()))] += 1
            self._sums[name, tuple(sorted(labels.items()))] += value  # type: ignore[assignment]  # Counter adds floats as well

    def total(self, name: str, **labels: str) -> int:
        """Return the count of a name, over all series that have these labels."""
        wanted = set(labels.items())
        with self._lock:
            return sum(n for (found, has), n in self._counters.items() if found == name and wanted <= set(has))
