"""What a gateway makes of the loads that agents tell: averages over half a minute, in milliseconds, and nothing of the silent."""

import math

import pytest
from residents_world import AWAY, Fleet, rows

from contract.residency import InstanceLoad, ResidencyReport
from dataplane.hot_users.residents import LOAD_MEMORY_MS
from policies.routing.types import InstanceFacts

BEGIN = {"began long ago": 1e9, "began just now": 0.0}


def told(fleet: Fleet, **load: object) -> None:
    fleet.cursors[AWAY] += 1
    report = ResidencyReport(
        uid=AWAY,
        start_id="start-1",
        generation=0,
        since=fleet.residents.cursor_of(AWAY),
        cursor=fleet.cursors[AWAY],
        users=[],
        load=InstanceLoad(reachable=True, **load),  # type: ignore[arg-type]  # names and types are the test's own
    )
    fleet.residents.heard(AWAY, report, now_ms=fleet.now_ms)


def facts(fleet: Fleet) -> InstanceFacts:
    """As the next round weighs them."""
    silent = fleet.residents._book.silent(fleet.now_ms)
    return fleet.residents._facts(fleet.residents._instances[AWAY], (), silent)


@pytest.mark.parametrize("begin_ms", BEGIN.values(), ids=BEGIN.keys())
def test_loads_are_averaged_over_half_a_minute_wherever_the_clock_stands(begin_ms: float) -> None:
    fleet = Fleet()
    fleet.now_ms = begin_ms
    told(fleet, in_flight=10, queue=4, service_ms=5.0)
    assert (facts(fleet).in_flight, facts(fleet).queue_ms) == (10.0, 20.0)
    fleet.now_ms += LOAD_MEMORY_MS
    told(fleet, in_flight=0, queue=0, service_ms=5.0)
    assert facts(fleet).in_flight == pytest.approx(10.0 / math.e)
    assert facts(fleet).queue_ms == pytest.approx(20.0 / math.e)
    assert LOAD_MEMORY_MS == 30_000.0
    fleet.now_ms -= 5_000.0  # a clock that jumps back forgets nothing and adds nothing
    told(fleet, in_flight=1000)
    assert facts(fleet).in_flight == pytest.approx(10.0 / math.e)


def test_a_queue_in_which_nothing_gets_done_is_not_taken_for_the_shortest() -> None:
    """An engine that hangs finishes nothing, so nobody can say how long its queue takes: what is not known is not zero."""
    fleet = Fleet()
    told(fleet, queue=7, in_flight=1)
    assert math.isnan(facts(fleet).queue_ms)
    told(fleet, queue=4, in_flight=4, service_ms=5.0)
    assert facts(fleet).queue_ms == 20.0
    for _ in range(20):
        fleet.now_ms += LOAD_MEMORY_MS
        told(fleet, queue=500, in_flight=500)
        assert facts(fleet).queue_ms == 20.0
        told(fleet, in_flight=500)  # nor one that is not told
        assert facts(fleet).queue_ms == 20.0


def test_nobody_waits_in_an_empty_queue_whatever_its_pace() -> None:
    fleet = Fleet()
    told(fleet, queue=0, in_flight=0)
    assert facts(fleet).queue_ms == 0.0


def test_of_a_silent_instance_no_load_is_known_any_more_and_it_drains_no_more_than_the_table_says() -> None:
    fleet = Fleet()
    told(fleet, in_flight=3, queue=2, service_ms=5.0, draining=True, refilling=True, ms_per_token=0.5, emb_hit_percent=80.0)
    known = facts(fleet)
    assert (known.in_flight, known.draining, known.refilling, known.ms_per_token_recompute) == (3.0, True, True, 0.5)
    assert known.emb_overlap == pytest.approx(0.8)
    fleet.now_ms += 60_000.0
    assert AWAY in fleet.residents._book.silent(fleet.now_ms)
    lost = facts(fleet)
    assert math.isnan(lost.in_flight)
    assert math.isnan(lost.ms_per_token_recompute)
    assert math.isnan(lost.emb_overlap)
    assert (lost.draining, lost.refilling, lost.ready) == (False, False, True)


def test_an_instance_that_never_told_of_its_load_is_ready_and_nothing_else_is_known_of_it() -> None:
    fleet = Fleet()
    fleet.residents.follow(rows(), [0] * 4096)
    never = facts(fleet)
    assert (never.ready, never.draining, never.refilling) == (True, False, False)
    assert math.isnan(never.queue_ms)
    assert math.isnan(never.in_flight)
