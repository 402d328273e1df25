"""The routing tables as metrics, read from the store when somebody scrapes; every replica shows them, leading or not.

These are the only series that name a pool, because a generation or an age of all pools together says nothing. A thousand pools
are shown at most, the first by namespace and name; `grfleet_tables` counts all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from contract.table import InstanceState
from controllers.runtime.clock import Clock
from controllers.runtime.resources import ROUTING_TABLES, Object, key_of
from controllers.runtime.stamps import moment_of
from controllers.runtime.store import Store

MOST_POOLS = 1000
_LABELS = ("pool_namespace", "pool")


class TableCollector(Collector):
    """Shows the tables of a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All series as of now."""
        watched = ROUTING_TABLES in self._store.resources
        tables = sorted(self._store.all(ROUTING_TABLES), key=key_of) if watched else []
        living = [each for each in tables if _status(each).get("instances")]
        count = GaugeMetricFamily("grfleet_tables", "Routing tables by what they are.", labels=("state",))
        if watched:
            count.add_metric(("published",), len(living))
            count.add_metric(("tombstone",), sum(_is_tombstone(_status(each)) for each in tables))
        yield count
        yield from self._of_pools(list(islice(living, MOST_POOLS)))

    def _of_pools(self, tables: list[Object]) -> Iterator[GaugeMetricFamily]:
        generation = _family("grfleet_table_generation", "Generation of the routing table.")
        age = _family("grfleet_table_age_seconds", "Time since the generation of the routing table was published.")
        moved = _family("grfleet_table_moved_percent", "Share of the users that the last generation of the table moved.")
        window = _family(
            "grfleet_table_window_moved_percent", "Share of the users that moved in the churn window of the last generation."
        )
        instances = _family("grfleet_table_instances", "Instances of the routing table by state.", "state")
        for table in tables:
            status, pool = _status(table), key_of(table)
            generation.add_metric(pool, float(status.get("generation") or 0))
            if (published := moment_of(status.get("publishedAt"))) is not None:
                age.add_metric(pool, max(0.0, (self._clock.now() - published).total_seconds()))
            moved.add_metric(pool, float(status.get("movedPercent") or 0))
            window.add_metric(pool, sum(float(each["movedPercent"]) for each in status.get("recentMoves") or ()))
            for state, number in _by_state(status["instances"]):
                instances.add_metric((*pool, state), number)
        yield from (generation, age, moved, window, instances)


def _family(name: str, text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=(*_LABELS, *more))


def _status(table: Object) -> dict[str, Any]:
    return dict(table.get("status") or {})


def _is_tombstone(status: dict[str, Any]) -> bool:
    return bool(status.get("generation")) and not status.get("instances")


def _by_state(instances: Iterable[Object]) -> Iterator[tuple[str, int]]:
    states = [str(each["state"]) for each in instances]
    for state in (InstanceState.READY, InstanceState.WARMING, InstanceState.DRAINING):
        yield state.value, states.count(state.value)
