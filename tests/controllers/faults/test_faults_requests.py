"""Seeded fault plans between the operator and the API server, one after the other on one fleet; each ends in the same oracle."""

from __future__ import annotations

import signal
import time

import pytest
from fault_plans import EVENTS, Fault, run
from fault_world import World

from testbed.faults import (
    Answer,
    Cut,
    Drop,
    Duplicate,
    Freeze,
    Latency,
    Match,
    Page,
    Reorder,
    ResetAfter,
    ResetBefore,
    StreamError,
    continuations,
    lists,
    writes,
)

pytestmark = pytest.mark.slow

OURS = r"^(?!kopf/)"  # user agents other than the watch library's


def test_a_storm_of_conflicts(world: World) -> None:
    run(world, Fault(writes(), Answer(status=409), probability=0.6), hits=10)


def test_a_burst_of_server_errors_on_everything_the_lease_included(world: World) -> None:
    run(world, Fault(Match(), Answer(status=503), probability=0.4), Fault(Match(), Answer(status=500), probability=0.4), hits=5)


def test_too_many_requests_and_the_operator_waits_as_long_as_it_is_asked_to(world: World) -> None:
    began = time.monotonic()
    run(world, Fault(writes(), Answer(status=429, retry_after_seconds=2), probability=0.5), hits=3)

    mine = [
        each
        for each in world.writes()
        if each.received_s >= began and "/grinstances/" in each.path and "/status" not in each.path
    ]
    refused = [each for each in mine if each.told == 429 and "manager=grfleet-allocation" in each.path.lower()]
    assert refused
    for each in refused:
        later = [other.received_s for other in mine if other.path == each.path and other.received_s > each.received_s]
        assert all(moment - each.received_s > 1.9 for moment in later)


def test_resets_before_and_after_the_commit(world: World) -> None:
    rules = run(
        world,
        Fault(Match(methods=frozenset({"POST", "PUT", "PATCH", "DELETE"})), ResetAfter(), probability=0.4),
        Fault(Match(), ResetBefore(), probability=0.2),
        hits=3,
    )
    assert all(rule.hits >= 3 for rule in rules)


def test_a_slow_api_server(world: World) -> None:
    run(world, Fault(Match(), Latency(seconds=0.2, jitter_seconds=1.2), probability=0.7), hits=10)


def test_refusals_that_no_retry_of_the_same_call_mends_are_tried_again_later_all_the_same(world: World) -> None:
    """An API server that has just started answers 403 before it has read the roles, and 404 while a CRD is established."""
    run(world, Fault(writes(), Answer(status=403), probability=0.7), Fault(writes(), Answer(status=404)), changes=1, hits=2)


def test_frozen_watches(world: World) -> None:
    run(world, Fault(Match(watch=True), Freeze()), changes=2, hits=4)


def test_lost_events(world: World) -> None:
    run(world, Fault(EVENTS, Drop(), probability=0.6), hits=10)


def test_events_that_come_twice_and_watches_that_are_cut_or_too_old(world: World) -> None:
    run(
        world,
        Fault(EVENTS, Duplicate(), probability=0.5),
        Fault(EVENTS, Cut(), probability=0.2, times=4),
        Fault(EVENTS, StreamError(code=410), probability=0.2, times=4),
        hits=2,
    )


def test_events_that_overtake_each_other(world: World) -> None:
    run(world, Fault(EVENTS, Reorder(patience_seconds=0.5), probability=0.5), changes=4, hits=10)


def test_own_lists_whose_continuation_expires_in_the_middle_while_deletions_get_lost(world: World) -> None:
    rules = run(
        world,
        Fault(Match(watch=True, events=frozenset({"DELETED"})), Drop()),
        Fault(continuations("/grinstances", user_agent=OURS), Answer(status=410), times=4),
        Fault(lists(user_agent=OURS), Page(limit=1)),
        Fault(continuations(user_agent=OURS), Page(limit=1)),
        changes=4,
        hits=2,
    )
    assert rules[1].hits == 4


def test_an_operator_without_a_rival_that_slept_through_its_lease_goes_on_where_it_was(world: World) -> None:
    operator = world.processes["one"].child
    for seconds in (3.2, 5.0):  # beyond the validity, and beyond the lease
        world.change()
        operator.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        operator.send_signal(signal.SIGCONT)
    world.converges()


def test_after_all_of_it_nothing_is_written_any_more(world: World) -> None:
    world.converges(quiet_seconds=5.0)  # two and a half times as long as numbers may wait
