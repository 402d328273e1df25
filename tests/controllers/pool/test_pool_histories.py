"""Managed pools through any history: they come to rest, as wanted, and nobody goes who need not."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_objects import at
from managed_model import Managed

from controllers.pool.decide import decide
from controllers.runtime.conditions import find_condition

ORDER = ("kubelet", "deployment", "sets", "route", "agents", "look")
LONG = 50_000

Event = tuple[str, Any]

edits = st.one_of(
    st.tuples(st.just("replicas"), st.integers(0, 6)),
    st.tuples(st.just("version"), st.sampled_from("123")),
    st.tuples(st.just("rollout"), st.sampled_from([(1, 0), (0, 1), (2, 1), (0, 2), (3, 3)])),
    st.tuples(st.just("paused"), st.booleans()),
)
moves = st.one_of(
    st.tuples(st.just("act"), st.sampled_from(ORDER)),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 2, 5, 10, 21, 61, 300])),
)
troubles = st.one_of(
    st.tuples(st.just("lost"), st.integers(0, 6)),
    st.tuples(st.just("deleted"), st.integers(0, 6)),
    st.tuples(st.just("crashed"), st.integers(0, 6)),
    st.tuples(st.just("scaled by hand"), st.integers(0, 6)),
    st.tuples(st.just("restarted by hand"), st.none()),
    st.tuples(st.just("away"), st.booleans()),
    st.tuples(st.just("leader"), st.sampled_from([-3600, 0, 4, 3600])),
    st.tuples(st.just("frozen"), st.booleans()),
    st.tuples(st.just("stale"), st.none()),
    st.tuples(st.just("cut"), st.integers(0, 4)),
    st.tuples(st.just("busy"), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("slow"), st.sampled_from([0, 30])),
)
histories = st.lists(st.one_of(edits, moves, moves, moves, troubles), max_size=25)
orders = st.permutations(ORDER).map(tuple)
rollouts = st.sampled_from([(1, 0), (0, 1), (0, 2), (1, 1)])
resized_updates = st.lists(
    st.tuples(
        st.one_of(st.tuples(st.just("replicas"), st.integers(0, 5)), st.tuples(st.just("version"), st.sampled_from("12"))),
        st.lists(moves, max_size=6),
    ).map(lambda drawn: [drawn[0], *drawn[1]]),
    min_size=2,
    max_size=5,
)


def happen(fleet: Managed, event: Event, order: tuple[str, ...]) -> None:
    kind, value = event
    cluster = fleet.cluster
    pods = [] if cluster is None else sorted(each for each in cluster.pods if not cluster.pods[each].deleted)
    if kind in ("replicas", "version", "paused"):
        fleet.wanted = replace(fleet.wanted, **{kind: value})
    elif kind == "rollout":
        fleet.wanted = replace(fleet.wanted, max_surge=value[0], max_unavailable=value[1])
    elif kind == "act":
        fleet.act(value)
    elif kind == "wait":
        fleet.wait(value, order)
    elif kind in ("away", "frozen"):
        setattr(fleet, kind, value)
    elif kind == "leader":
        fleet.skew = value
        fleet.memory.clear()
    elif kind in ("stale", "cut"):
        if not fleet.away:
            fleet.look(stale=kind == "stale", only=value)
    elif kind == "busy":
        fleet.busy = lambda name: bool(value) and int(name[-1]) % value == 0
    elif cluster is not None and kind == "slow":
        cluster.slow = value
    elif cluster is not None and kind.endswith("by hand"):
        spec = cluster.spec
        hand = {"replicas": value} if kind.startswith("scaled") else {"restarts": spec.restarts + 1}
        cluster.spec = replace(spec, generation=spec.generation + 1, **hand)
    elif cluster is not None and value < len(pods):
        if kind == "lost":
            del cluster.pods[pods[value]]
        else:
            {"deleted": cluster.delete, "crashed": cluster.crash}[kind](cluster.pods[pods[value]])


def finish(fleet: Managed, order: tuple[str, ...]) -> None:
    fleet.away, fleet.frozen, fleet.skew, fleet.wanted = False, False, 0, replace(fleet.wanted, paused=False)
    fleet.wait(LONG, order)


def at_rest(fleet: Managed) -> None:
    """As many pods as wanted, of the wanted version, all in service, and nothing left of any drain."""
    cluster = fleet.cluster
    assert cluster is not None
    wanted = fleet.wanted
    state = {each.name: (each.ready(fleet.now), each.cost, each.deleted) for each in cluster.pods.values()}
    drains = {each.name: each.drain for each in fleet.instances.values() if each.drain}
    assert [each.version for each in cluster.pods.values()] == [wanted.version] * wanted.replicas, state
    assert set(state.values()) <= {(True, None, False)}, state
    assert drains == {}
    assert set(fleet.instances) == set(cluster.pods)
    assert all(each.weight == 100 and each.routed for each in fleet.instances.values())
    assert cluster.spec.replicas == wanted.replicas
    assert fleet.next_look is None, "it looks again and again"
    status = decide(fleet.observation(fleet.view()), at(fleet.now)).status
    assert status is not None
    said = find_condition(status["conditions"], "InstancesReady")
    assert said is not None
    assert said["reason"] == ("AllReady" if wanted.replicas else "NoneFound")


def replay(history: list[Event], order: tuple[str, ...]) -> Managed:
    """The pool at the end of everything."""
    fleet = Managed()
    fleet.wait(100, order)
    at_rest(fleet)
    for event in history:
        happen(fleet, event, order)
    finish(fleet, order)
    at_rest(fleet)
    return fleet


@settings(max_examples=60, deadline=None)
@given(history=histories, order=orders)
def test_through_any_history_the_pool_comes_to_rest_as_it_is_wanted(history: list[Event], order: tuple[str, ...]) -> None:
    replay(history, order)


@settings(max_examples=60, deadline=None)
@given(rollout=rollouts, replicas=st.integers(1, 5), history=resized_updates, order=orders)
def test_a_pool_that_is_resized_in_the_middle_of_an_update_comes_to_rest_whoever_acts_between_two_steps_of_whom(
    rollout: tuple[int, int], replicas: int, history: list[list[Event]], order: tuple[str, ...]
) -> None:
    fleet = replay([("rollout", rollout), ("replicas", replicas), ("wait", 100), *chain.from_iterable(history)], order)
    assert not [each for each in fleet.cut_off if not each.rolling and each.pod.template == each.wanted], "no drain came first"


@pytest.mark.parametrize(
    ("history", "order"),
    [
        pytest.param(
            [("version", "3"), ("wait", 1), ("replicas", 2)],
            ("route", "kubelet", "sets", "agents", "deployment", "look"),
            id="the Deployment passes the victim over, which is new and stays behind its gate",
        ),
        pytest.param(
            [("rollout", (0, 1)), ("version", "2"), ("replicas", 2)],
            ("look", "deployment", "agents", "route", "kubelet", "sets"),
            id="a size between two steps of an update without surge makes every later step a scaling event",
        ),
        pytest.param(
            [("version", "2"), ("wait", 3), ("replicas", 2), ("act", "look"), ("away", True), ("wait", 3600)],
            ORDER,
            id="nobody leads for an hour after a victim was marked in an update",
        ),
        pytest.param(
            [("replicas", 1), ("act", "look"), ("paused", True), ("version", "2"), ("wait", 3600), ("replicas", 3)],
            ORDER,
            id="paused while a victim drains, and grown again",
        ),
    ],
)
def test_these_histories_ended_in_a_dead_end_or_might_have(history: list[Event], order: tuple[str, ...]) -> None:
    replay(history, order)


def test_a_pool_that_is_emptied_in_the_middle_of_an_update_takes_nobody_from_under_its_requests() -> None:
    order = ("deployment", "kubelet", "look", "sets", "route", "agents")
    fleet = replay([("version", "2"), ("wait", 23), ("replicas", 0)], order)
    assert [each.pod.template for each in fleet.cut_off if each.pod.template == each.wanted] == []
