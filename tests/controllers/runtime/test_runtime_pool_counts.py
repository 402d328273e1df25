"""The gauge of pools by condition counts what the store holds at the moment of the scrape."""

from __future__ import annotations

from controllers.runtime.metrics import Metrics
from controllers.runtime.pool_counts import POOL_CONDITIONS, expose_pools
from controllers.runtime.resources import INSTANCES, POOLS
from controllers.runtime.store import Store


def pool(name: str, version: int, **conditions: str) -> dict[str, object]:
    items = [{"type": type_, "status": status} for type_, status in conditions.items()]
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "status": {"conditions": items}}


def shown(metrics: Metrics) -> dict[tuple[str, str], float]:
    families = (family for family in metrics.registry.collect() if family.name == "grfleet_pools")
    return {(s.labels["condition"], s.labels["status"]): s.value for family in families for s in family.samples}


def test_pools_are_counted_by_condition_and_status_and_the_count_follows_the_store() -> None:
    metrics, store = Metrics(), Store([POOLS, INSTANCES])
    expose_pools(metrics.pools, store)
    assert set(shown(metrics).values()) == {0}
    store.observe(POOLS, "ADDED", pool("a", 1, Ready="True", MetricsFresh="False"))
    store.observe(POOLS, "ADDED", pool("b", 2, Ready="False"))
    store.observe(POOLS, "ADDED", pool("new", 3))
    before = shown(metrics)
    assert (before["Ready", "True"], before["Ready", "False"], before["Ready", "Unknown"]) == (1, 1, 0)
    assert (before["MetricsFresh", "True"], before["MetricsFresh", "False"]) == (0, 1)
    store.observe(POOLS, "MODIFIED", pool("b", 4, Ready="True"))
    store.observe(POOLS, "DELETED", pool("a", 5, Ready="True"))
    after = shown(metrics)
    assert (after["Ready", "True"], after["Ready", "False"], after["MetricsFresh", "False"]) == (1, 0, 0)


def test_every_condition_of_a_pool_is_shown_and_a_store_without_pools_shows_none() -> None:
    metrics = Metrics()
    expose_pools(metrics.pools, Store([INSTANCES]))
    assert shown(metrics) == {}
    expose_pools(metrics.pools, Store([POOLS]))
    assert {condition for condition, _ in shown(metrics)} == {*POOL_CONDITIONS} >= {"Ready", "MetricsFresh", "TablePublished"}
