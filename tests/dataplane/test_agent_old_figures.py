"""What an agent measured once is told as measured only while its engine goes on: not known is None in the status and NaN for
Prometheus, never the last value."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from dataplane_world import World
from prometheus_client.parser import text_string_to_metric_families

MEASURED = frozenset({"grfleet_agent_hit_percent", "grfleet_agent_p99_milliseconds"})


def falls_silent(world: World) -> None:
    world.engine.reachable = False


def stands_still(world: World) -> None:
    world.engine.serve = lambda **load: None  # type: ignore[assignment, method-assign] # no time passes for it any more


def contradicts_itself(world: World) -> None:
    world.engine.fault = "nan"


def measured(world: World) -> tuple[list[float | None], list[float]]:
    """The figures of the window as the status has them, and as Prometheus reads them."""
    status = world.agent.status()
    families = text_string_to_metric_families(world.agent.metrics_text().decode())
    gauges = [sample.value for family in families for sample in family.samples if sample.name in MEASURED]
    return [
        status.p99_ms,
        status.slo_percent,
        status.requests_per_second,
        status.emb_hit_percent,
        status.kv_hit_percent,
    ], gauges


@pytest.mark.parametrize("ends", [falls_silent, stands_still, contradicts_itself])
async def test_figures_end_with_what_they_are_measured_from(ends: Callable[[World], None]) -> None:
    world = World()
    world.static(50)
    await world.rounds(15)
    figures, gauges = measured(world)
    assert None not in figures
    assert len(gauges) == 3
    assert not any(map(math.isnan, gauges))
    ends(world)
    await world.rounds(10)
    figures, gauges = measured(world)
    assert world.frozen
    assert figures == [None] * 5
    assert len(gauges) == 3
    assert all(map(math.isnan, gauges))
    assert world.agent.status().serving is None


async def test_figures_are_back_with_the_engine() -> None:
    world = World()
    world.static(50)
    await world.rounds(15)
    falls_silent(world)
    await world.rounds(3)
    world.engine.reachable = True
    await world.rounds(2)
    figures, gauges = measured(world)
    assert None not in figures
    assert not any(map(math.isnan, gauges))
