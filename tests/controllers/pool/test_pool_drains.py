"""Scale-down in two phases: who is chosen, when the Deployment may shrink, and what calls a drain off."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import NOW, at, condition_item
from pod_objects import managed_pool, pod, pod_instance, stamp

from controllers.parsed import ParsedObjects
from controllers.pool.drains import Leaving, Scene, plan_leaving
from controllers.pool.observe import read_instance
from controllers.pool.pods import Pod
from controllers.pool.rollout import Rollout

POOL = managed_pool()
DEADLINE = 60


def leaving(
    pods: list[Pod], *, wanted: int, scale: int | None, resident: dict[str, int] | None = None, now: datetime = NOW, **more: Any
) -> Leaving:
    drains: dict[str, Any] = more.pop("drains", {})
    drained: set[str] = more.pop("drained", set())
    heard = more.pop("heard", now)
    instances = {}
    for each in pods:
        if each.source() is not None:
            said = [condition_item("Drained", "True", "NothingInFlight", since=heard)] if each.name in drained else []
            stored = pod_instance(each.name, POOL, drain=drains.get(each.name), conditions=said)
            instances[each.name] = read_instance(stored, ParsedObjects())
    scene = Scene(
        pods=pods,
        rollout=more.pop("rollout", Rollout()),
        instances=instances,
        wanted=wanted,
        wanted_version="1",
        scale=scale,
        deadline_seconds=DEADLINE,
        resident={f"uid-{name}": value for name, value in (resident or {}).items()},
        unserving=frozenset(more.pop("unserving", ())),
    )
    return plan_leaving(scene, now)


def scale_down(seconds: float = 0.0) -> dict[str, Any]:
    return {"reason": "ScaleDown", "startedAt": stamp(at(seconds)), "deadlineSeconds": DEADLINE}


def test_the_instance_that_holds_least_is_marked_and_the_deployment_waits() -> None:
    plan = leaving([pod("a"), pod("b"), pod("c")], wanted=2, scale=3, resident={"a": 5, "b": 1, "c": 9})
    assert plan.drains == {"b": scale_down()}
    assert set(plan.costs) == {"b"}
    assert plan.replicas is None
    assert plan.next_look == at(DEADLINE)


def test_a_drained_victim_lets_the_deployment_shrink_by_one_and_so_does_a_deadline() -> None:
    pods = [pod("a"), pod("b", cost="-2")]
    drains = {"b": scale_down(-10)}
    assert leaving(pods, wanted=1, scale=2, drains=drains).replicas is None
    assert leaving(pods, wanted=1, scale=2, drains=drains, drained={"b"}).replicas == 1
    assert leaving(pods, wanted=1, scale=2, drains={"b": scale_down(-DEADLINE)}).replicas == 1


@pytest.mark.parametrize("later", [{**scale_down(-10), "deadlineSeconds": 5}, scale_down(-30)])
def test_a_deadline_that_has_passed_is_no_moment_to_look_again(later: dict[str, Any]) -> None:
    """A victim stays waited for behind another one that has more time, by an earlier policy, or was chosen in the same second."""
    first = {**scale_down(-30), "deadlineSeconds": 600}
    pods = [pod("a"), pod("b", cost="-2100000000"), pod("c", cost="-2099999980")]
    plan = leaving(pods, wanted=1, scale=3, drains={"b": first, "c": later}, drained={"c"}, now=at(100))
    assert plan.replicas is None
    assert plan.next_look == at(570)


ODD_TIMES = [
    "0001-01-01T00:00:00+23:00",
    "0001-01-01T00:00:00Z",
    "1970-01-01T00:00:00Z",
    "2026-04-01T12:00:00.123456789Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-12:00",
]


@pytest.mark.parametrize("started", ODD_TIMES)
@pytest.mark.parametrize("wanted", [1, 2])
@pytest.mark.parametrize("seconds", [0, 86_400])
def test_a_drain_that_somebody_wrote_by_hand_is_judged_like_another_and_costs_what_the_api_takes(
    started: str, wanted: int, seconds: int
) -> None:
    drain = {"reason": "ScaleDown", "startedAt": started, "deadlineSeconds": seconds}
    plan = leaving([pod("a"), pod("b")], wanted=wanted, scale=2, drains={"b": drain})
    assert set(plan.drains) == ({"b"} if wanted == 1 else set())
    assert all(cost is None or -(2**31) <= int(cost) < 2**31 for cost in plan.costs.values())
    ending = leaving([pod("b", terminating=True)], wanted=1, scale=1, drains={"b": drain})
    assert set(ending.drains) == {"b"}


def test_times_in_other_zones_are_compared_as_times() -> None:
    drain = {"reason": "ScaleDown", "startedAt": "2026-05-01T13:59:50+02:00", "deadlineSeconds": DEADLINE}  # ten seconds ago
    assert leaving([pod("a"), pod("b")], wanted=1, scale=2, drains={"b": drain}, drained={"b"}).replicas == 1


def test_a_word_about_an_earlier_drain_is_not_taken_for_this_one() -> None:
    said = [condition_item("Drained", "True", "NothingInFlight", since=at(-100))]
    stored = pod_instance("b", POOL, drain=scale_down(-10), conditions=said)
    scene = Scene(
        pods=[pod("a"), pod("b")],
        instances={"b": read_instance(stored, ParsedObjects())},
        wanted=1,
        wanted_version="1",
        scale=2,
        deadline_seconds=DEADLINE,
        resident={},
        unserving=frozenset(),
    )
    assert plan_leaving(scene, NOW).replicas is None


def test_a_pod_to_which_nobody_was_sent_yet_is_not_waited_for() -> None:
    young = pod("young", address=None, ready=False, warm=False)
    assert leaving([pod("a"), young], wanted=1, scale=2).replicas == 1
    warming = pod("warming", ready=False, warm=False)
    assert leaving([pod("a"), warming], wanted=1, scale=2, unserving=["warming"]).replicas == 1
    assert leaving([pod("a"), warming], wanted=1, scale=2).replicas is None


def test_victims_are_marked_so_that_the_replica_set_takes_the_first_chosen_first() -> None:
    pods = [pod("a"), pod("b"), pod("c")]
    plan = leaving(pods, wanted=1, scale=3, resident={"a": 9, "b": 1, "c": 2}, drains={"b": scale_down(-20)})
    assert set(plan.drains) == {"b", "c"}
    assert -(1 << 31) <= int(plan.costs["b"] or 0) < int(plan.costs["c"] or 0) < 0


def test_a_needed_victim_is_called_back_before_a_cold_pod_is_made_and_the_most_valuable_first() -> None:
    pods = [pod("a"), pod("b", cost="-2100000000"), pod("c", cost="-2100000000")]
    drains = {"b": scale_down(-5), "c": scale_down(-5)}
    plan = leaving(pods, wanted=2, scale=3, resident={"b": 1, "c": 7}, drains=drains)
    assert set(plan.drains) == {"b"}
    assert plan.costs["c"] is None
    assert plan.replicas is None
    assert leaving(pods, wanted=5, scale=3, drains=drains).replicas == 5
    assert leaving(pods, wanted=5, scale=3, drains=drains).drains == {}


def test_after_the_deployment_has_shrunk_the_victim_is_not_called_back_while_the_replica_set_is_slow() -> None:
    plan = leaving([pod("a"), pod("b", cost="-2100000000")], wanted=1, scale=1, drains={"b": scale_down(-5)}, drained={"b"})
    assert set(plan.drains) == {"b"}
    assert plan.replicas is None


def rolling(quiet_seconds: float, *, begun: bool = True) -> Rollout:
    return Rollout(under_way=True, begun=begun, quiet_since=at(-quiet_seconds))


def test_a_victim_that_a_rolling_update_passed_over_is_called_back() -> None:
    """The Deployment took an old pod; the victim is a new one, whose gate would stay closed and hold the update up."""
    pods = [pod("old"), pod("new"), pod("victim", cost="-2100000000", ready=False, warm=False)]
    scene: dict[str, Any] = {"wanted": 2, "scale": 2, "unserving": ["victim"], "drains": {"victim": scale_down(-60)}}
    young = leaving(pods, rollout=rolling(2), **scene)
    assert (set(young.drains), young.next_look) == ({"victim"}, at(3))
    plan = leaving(pods, rollout=rolling(5), **scene)
    assert (plan.drains, plan.costs, plan.next_look) == ({}, {"victim": None}, None)
    assert set(leaving(pods, rollout=Rollout(quiet_since=at(-60)), **scene).drains) == {"victim"}
    assert set(leaving(pods, rollout=rolling(60), **{**scene, "scale": 3}).drains) == {"victim"}


@pytest.mark.parametrize("heard", [-3600, 3600])
def test_it_is_the_deployment_whose_rest_is_waited_for_whoever_was_away_and_whichever_clock_was_wrong(heard: int) -> None:
    """The drain ended while nobody led, an hour ago or by a clock an hour ahead; the ReplicaSet is told only now."""
    pods = [pod("old"), pod("new"), pod("victim", cost="-2100000000")]
    scene: dict[str, Any] = {"wanted": 2, "drains": {"victim": scale_down(-4000)}, "drained": {"victim"}, "heard": at(heard)}
    assert leaving(pods, scale=3, rollout=rolling(0), **scene).replicas == 2
    told = leaving(pods, scale=2, rollout=rolling(0), **scene)
    assert (set(told.drains), told.next_look) == ({"victim"}, at(5))
    assert leaving(pods, scale=2, rollout=rolling(5), **scene).drains == {}


def test_a_pool_that_grows_back_in_a_rolling_update_has_its_victim_back_before_its_drain_is_over() -> None:
    pods = [pod("old"), pod("new"), pod("surge"), pod("victim", cost="-2100000000")]
    plan = leaving(pods, wanted=3, scale=3, rollout=rolling(5), drains={"victim": scale_down(-10)})
    assert (plan.drains, plan.costs, plan.replicas) == ({}, {"victim": None}, None)


def test_a_pool_that_is_to_be_empty_marks_the_surge_of_a_rolling_update_too() -> None:
    """A Deployment of no pods has no surge either: the one more would go from under its requests."""
    pods = [pod(name) for name in "abcd"]
    assert set(leaving(pods, wanted=0, scale=3, rollout=rolling(0)).drains) == set("abcd")
    assert len(leaving(pods, wanted=1, scale=3, rollout=rolling(0)).drains) == 2
    assert leaving(pods, wanted=0, scale=0, rollout=rolling(0)).drains == {}


def test_a_pod_that_was_marked_before_it_had_an_address_keeps_the_time_of_its_mark() -> None:
    """Without an instance the cost alone remembers; another one at each look would be a write at each look."""
    pods = [pod("a"), pod("young", address=None, ready=False, warm=False)]
    cost = leaving(pods, wanted=1, scale=2).costs["young"]
    marked = [pod("a"), pod("young", address=None, ready=False, warm=False, cost=cost)]
    later = leaving(marked, wanted=1, scale=1, now=at(40))
    assert (later.drains, later.costs) == ({"young": scale_down()}, {})


def test_an_update_that_never_begins_is_pushed_by_another_size_which_is_taken_back_once_it_was_taken_in() -> None:
    pods = [pod("a"), pod("b")]
    waits = leaving(pods, wanted=2, scale=2, rollout=rolling(10, begun=False))
    assert (waits.replicas, waits.next_look) == (None, at(20))
    assert leaving(pods, wanted=2, scale=2, rollout=rolling(30, begun=False)).replicas == 3
    assert leaving(pods, wanted=2, scale=2, rollout=rolling(3000)).replicas is None
    assert leaving(pods, wanted=0, scale=0, rollout=rolling(3000, begun=False)).replicas is None
    pushed = leaving(pods, wanted=2, scale=3, rollout=Rollout(taken_in=False, quiet_since=at(-1)))
    assert (pushed.replicas, pushed.drains, pushed.next_look) == (None, {}, at(4))
    assert leaving(pods, wanted=2, scale=3, rollout=rolling(0, begun=False)).replicas == 2
    assert leaving(pods, wanted=2, scale=3, rollout=Rollout(taken_in=False, quiet_since=at(-5))).replicas == 2


def test_a_pod_that_somebody_deletes_drains_and_keeps_the_reason_it_had() -> None:
    gone, chosen = pod("gone", terminating=True), pod("chosen", terminating=True)
    plan = leaving([pod("a"), gone, chosen], wanted=1, scale=1, drains={"chosen": scale_down(-5)})
    assert plan.drains["gone"]["reason"] == "Terminating"
    assert plan.drains["chosen"] == scale_down(-5)
    assert plan.costs == {}


def test_without_a_deployment_of_ours_nothing_is_chosen_and_what_was_chosen_stays() -> None:
    plan = leaving([pod("a"), pod("b")], wanted=0, scale=None, drains={"b": scale_down(-5)})
    assert (set(plan.drains), plan.costs, plan.replicas) == ({"b"}, {}, None)


@dataclass
class Replayed:
    """A pool, its Deployment and a ReplicaSet that may lag, in virtual time."""

    wanted: int = 3
    scale: int = 3
    now: datetime = NOW
    made: int = 0
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)

    def look(self) -> None:
        pods = [pod(name, created=each["born"], cost=each["cost"], uid=f"uid-{name}") for name, each in sorted(self.pods.items())]
        drains = {name: each["drain"] for name, each in self.pods.items() if each["drain"]}
        drained = {name for name in self.drained if name in drains}
        plan = leaving(
            pods,
            wanted=self.wanted,
            scale=self.scale,
            drains=drains,
            drained=drained,
            resident={name: each["worth"] for name, each in self.pods.items()},
            now=self.now,
        )
        for name, each in self.pods.items():
            each["drain"] = plan.drains.get(name)
            if name in plan.costs:
                each["cost"] = plan.costs[name]
            if not each["drain"]:
                self.drained.discard(name)
        if plan.replicas is not None:
            self.scale = plan.replicas

    def replica_set(self) -> None:
        """As many pods as the scale says; the ones with the lowest cost go."""
        while len(self.pods) > self.scale:
            name = min(self.pods, key=lambda each: (int(self.pods[each]["cost"] or 0), each))
            self.killed.append(name)
            drain = self.pods.pop(name)["drain"]
            assert drain, f"{name} went without a drain"
            over = self.now >= datetime.fromisoformat(drain["startedAt"]) + timedelta(seconds=DEADLINE)
            assert name in self.drained or over, f"{name} went before its drain was over"
        while len(self.pods) < self.scale:
            self.made += 1
            self.pods[f"p{self.made:03d}"] = {"born": self.now, "cost": None, "drain": None, "worth": (self.made * 7) % 5}

    def finish(self) -> None:
        """Time goes on and every drain ends."""
        for _ in range(12):
            self.look()
            self.drained |= {name for name, each in self.pods.items() if each["drain"]}
            self.replica_set()
            self.now += timedelta(seconds=1)


events = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 6)),
        st.tuples(st.just("look"), st.just(0)),
        st.tuples(st.just("replicas"), st.just(0)),
        st.tuples(st.just("drained"), st.integers(0, 6)),
        st.tuples(st.just("wait"), st.integers(1, 50)),
        st.tuples(st.just("lost"), st.integers(0, 6)),
    ),
    max_size=40,
)


@given(events=events)
def test_through_any_history_nobody_goes_before_its_drain_is_over_and_the_pool_ends_at_the_wanted_size(
    events: list[tuple[str, int]],
) -> None:
    world = Replayed()
    world.replica_set()
    for kind, number in events:
        names = sorted(world.pods)
        if kind == "want":
            world.wanted = number
        elif kind == "look":
            world.look()
        elif kind == "replicas":
            world.replica_set()
        elif kind == "wait":
            world.now += timedelta(seconds=number)
        elif number < len(names) and kind == "drained" and world.pods[names[number]]["drain"]:
            world.drained.add(names[number])
        elif number < len(names) and kind == "lost":
            del world.pods[names[number]]
    world.finish()
    assert world.scale == len(world.pods) == world.wanted
    assert not [name for name, each in world.pods.items() if each["drain"] or each["cost"]]


def test_a_drain_that_begins_in_the_future_begins_anew_so_that_it_ends_in_its_time_and_the_agent_is_believed() -> None:
    """A leader with a fast clock began it; a clock that is a moment ahead is none of that kind."""
    pods = [pod("a"), pod("b", cost="-2")]
    plan = leaving(pods, wanted=1, scale=2, drains={"b": scale_down(1200)})
    assert plan.drains == {"b": scale_down()}
    assert plan.next_look == at(DEADLINE)
    assert leaving(pods, wanted=1, scale=2, drains={"b": scale_down(2)}).drains == {"b": scale_down(2)}
