"""The series of routing tables show what the store holds at the moment of the scrape, and no more pools than are bearable."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from controllers.runtime import table_metrics
from controllers.runtime.clock import FakeClock
from controllers.runtime.resources import POOLS, ROUTING_TABLES
from controllers.runtime.runtime import Runtime
from controllers.runtime.settings import Settings
from controllers.runtime.store import Store
from controllers.runtime.table_metrics import TableCollector


def table(name: str, version: int = 1, **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"poolRef": name}, "status": status}


def rows(*states: str) -> list[dict[str, str]]:
    return [{"name": f"i{number}", "state": state} for number, state in enumerate(states)]


def shown(store: Store, clock: FakeClock) -> dict[tuple[str, ...], float]:
    families = TableCollector(store, clock).collect()
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_generation_moved_share_age_and_instances_of_each_table_are_shown() -> None:
    store, clock = Store([POOLS, ROUTING_TABLES]), FakeClock()
    published = datetime.fromtimestamp(clock.now().timestamp() - 90, UTC).isoformat()
    moves = [{"movedPercent": "1.5"}, {"movedPercent": "0.25"}]
    store.upsert(
        ROUTING_TABLES,
        table(
            "feed",
            generation=7,
            publishedAt=published,
            movedPercent="0.25",
            recentMoves=moves,
            instances=rows("Ready", "Warming"),
        ),
    )
    store.upsert(ROUTING_TABLES, table("gone", generation=3, instances=[]))
    store.upsert(ROUTING_TABLES, table("new"))
    seen = shown(store, clock)
    assert seen["grfleet_tables", "published"] == seen["grfleet_tables", "tombstone"] == 1
    assert seen["grfleet_table_generation", "team", "feed"] == 7
    assert 89 <= seen["grfleet_table_age_seconds", "team", "feed"] <= 91
    assert seen["grfleet_table_moved_percent", "team", "feed"] == 0.25
    assert seen["grfleet_table_window_moved_percent", "team", "feed"] == 1.75
    assert seen["grfleet_table_instances", "team", "feed", "Warming"] == 1
    assert seen["grfleet_table_instances", "team", "feed", "Draining"] == 0
    assert not [key for key in seen if "gone" in key or "new" in key]


@pytest.mark.parametrize("stamp", ["2026-01-31t12:00:00z", "2026-01-31T12:00:00x5Z", "2026-01-31T12:00:00+99:99"])
def test_a_stamp_that_the_api_admits_and_nobody_here_reads_costs_no_series_but_its_own(stamp: str) -> None:
    store, clock = Store([ROUTING_TABLES]), FakeClock()
    store.upsert(ROUTING_TABLES, table("odd", generation=2, publishedAt=stamp, instances=rows("Ready")))
    store.upsert(ROUTING_TABLES, table("well", generation=3, publishedAt="2026-01-01T00:00:00Z", instances=rows("Ready")))
    seen = shown(store, clock)
    assert [key[2] for key in seen if key[0] == "grfleet_table_age_seconds"] == ["well"]
    assert seen["grfleet_table_generation", "team", "odd"] == 2


def test_a_store_without_tables_shows_none_and_of_many_pools_only_the_first_are_named(monkeypatch: Any) -> None:
    clock = FakeClock()
    assert not shown(Store([POOLS]), clock)
    store = Store([ROUTING_TABLES])
    monkeypatch.setattr(table_metrics, "MOST_POOLS", 2)
    for name in "cab":
        store.upsert(ROUTING_TABLES, table(name, generation=1, instances=rows("Ready")))
    seen = shown(store, clock)
    assert seen["grfleet_tables", "published"] == 3
    assert [key[2] for key in seen if key[0] == "grfleet_table_generation"] == ["a", "b"]


def test_the_operator_s_own_registry_has_them() -> None:
    text = Runtime(Settings(), (), clock=FakeClock(), rng=random.Random(1)).metrics.exposition().decode()
    assert "# TYPE grfleet_table_generation gauge" in text
