"""Seeded fault plans upon a managed and an adopted pool, one after the other; each ends in the same oracle."""

from __future__ import annotations

import pytest
from fault_plans import EVENTS, Fault, run
from fault_pods import MANAGED, PodsWorld

from testbed.faults import Answer, Cut, Drop, Duplicate, Freeze, Match, Reorder, ResetAfter, ResetBefore, StreamError, writes

pytestmark = pytest.mark.slow

CHANGES = 4  # one of each kind


def test_a_storm_of_conflicts_upon_pods_deployment_and_scale(pods_world: PodsWorld) -> None:
    run(pods_world, Fault(writes(), Answer(status=409), probability=0.6), changes=CHANGES, hits=10)


def test_server_errors_and_too_many_requests_while_pods_come_and_go(pods_world: PodsWorld) -> None:
    run(
        pods_world,
        Fault(Match(), Answer(status=503), probability=0.3),
        Fault(Match(), Answer(status=500), probability=0.3),
        Fault(writes(), Answer(status=429, retry_after_seconds=1), probability=0.3),
        changes=CHANGES,
        hits=3,
    )


def test_resets_before_and_after_the_commit_of_what_concerns_pods(pods_world: PodsWorld) -> None:
    run(
        pods_world,
        Fault(Match(methods=frozenset({"POST", "PUT", "PATCH", "DELETE"})), ResetAfter(), probability=0.4),
        Fault(Match(), ResetBefore(), probability=0.2),
        changes=CHANGES,
        hits=3,
    )


def test_frozen_watches_of_pods_deployments_and_ours(pods_world: PodsWorld) -> None:
    run(pods_world, Fault(Match(watch=True), Freeze()), changes=CHANGES, hits=6)


def test_events_of_pods_that_get_lost_come_twice_or_overtake_each_other_and_watches_that_are_too_old(
    pods_world: PodsWorld,
) -> None:
    run(
        pods_world,
        Fault(EVENTS, Drop(), probability=0.3),
        Fault(EVENTS, Duplicate(), probability=0.3),
        Fault(EVENTS, Reorder(patience_seconds=0.5), probability=0.3),
        Fault(EVENTS, StreamError(code=410), probability=0.1, times=4),
        Fault(EVENTS, Cut(), probability=0.1, times=4),
        changes=2 * CHANGES,
        hits=2,
    )


def test_engines_that_give_their_bytes_back_late_are_waited_for_and_nothing_else_moves(pods_world: PodsWorld) -> None:
    world, generation = pods_world, pods_world.get("grroutingtables", MANAGED)["status"]["generation"]

    world.pods.overage_bytes = lambda name: 1 << 20

    def reasons(plural: str, type_: str) -> set[tuple[str, str]]:
        found = (item for each in world.list(plural) for item in each["status"]["conditions"])
        return {(item["status"], item["reason"]) for item in found if item["type"] == type_}

    world.until(lambda: reasons("grinstances", "SplitSettled") == {("False", "Deferred")})
    world.until(lambda: {status for status, _ in reasons("grservingpools", "SplitSettled")} == {"False"})
    assert {status for status, _ in reasons("grservingpools", "Ready")} == {"True"}
    assert world.get("grroutingtables", MANAGED)["status"]["generation"] == generation
    world.pods.overage_bytes = lambda name: 0
    world.converges()


def test_after_all_of_it_nothing_is_written_to_pods_pools_and_deployment(pods_world: PodsWorld) -> None:
    pods_world.converges(quiet_seconds=5.0)
