"""InferencePools in front of a pool: what is said of each, and that their absence costs nothing and fails nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loop_objects import pool_object
from pod_objects import managed_pool, raw_pod

from controllers.pool.fronts import ABSENT_SECONDS, LOOK_SECONDS, InferencePools, fronts_of
from controllers.pool.pods import Pod
from controllers.runtime.errors import Forbidden, ReconcileError, Transient
from controllers.runtime.kube import Page
from controllers.runtime.loop import Context
from controllers.runtime.resources import INFERENCE_POOLS, PODS, POOL_LABEL, Key
from controllers.runtime.store import Store
from crds.pool_fronts import InferencePoolSeen

KEY, POOL = Key("team", "pool"), managed_pool()


def front(name: str = "front", *, labels: Any = None, port: Any = 8000, **spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {POOL_LABEL: "pool"} if labels is None else labels}
    ports = [{"number": port}]
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"selector": selector, "targetPorts": ports, **spec}}


def said(*found: dict[str, Any], others: tuple[dict[str, Any], ...] = (), terminating: bool = False) -> list[dict[str, Any]]:
    store = Store([PODS])
    own = [
        raw_pod("pool-a", labels={"zone": "a", "tier": "gr"}),
        raw_pod("pool-b", labels={"zone": "b", "tier": "gr"}, terminating=terminating),
    ]
    for each in (*own, *others):
        store.observe(PODS, "ADDED", each)
    pods = [Pod(pod) for pod in store.in_namespace(PODS, "team") if pod["metadata"]["name"].startswith("pool-")]
    fronts = fronts_of(KEY, pods, found, store)
    for each in fronts:
        InferencePoolSeen.model_validate(each)
    return fronts


def states(*found: dict[str, Any], **more: Any) -> list[str]:
    return [str(each["state"]) for each in said(*found, **more)]


def test_one_that_selects_all_pods_of_the_pool_at_their_port_fits_and_its_picker_is_named() -> None:
    picker = {"name": "ranker-picker", "port": {"number": 9002}}
    assert said(front(endpointPickerRef=picker)) == [
        {"name": "front", "state": "Fits", "picker": "ranker-picker", "ports": [8000]}
    ]


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (front(labels={"zone": "a"}), "MissesPods"),
        (front(port=9000), "PortDiffers"),
        (front(labels={"tier": "gr"}), "SelectsOtherPods"),
    ],
    ids=["some of them", "another port", "somebody else's too"],
)
def test_one_that_does_not_fit_says_why(found: dict[str, Any], state: str) -> None:
    assert states(found, others=(raw_pod("other", pool=None, labels={"tier": "gr"}),)) == [state]


def test_a_pod_that_leaves_is_missed_by_nobody() -> None:
    assert states(front(labels={"zone": "a"}), terminating=True) == ["Fits"]


@pytest.mark.parametrize(
    "odd",
    [
        front(labels={}),
        front(labels={"zone": "c"}),
        {"metadata": {"name": "x"}},
        {"metadata": {"name": "x"}, "spec": None},
        {"metadata": {"name": "x"}, "spec": {"selector": "all"}},
    ],
)
def test_one_that_selects_nobody_or_looks_odd_is_not_mentioned(odd: dict[str, Any]) -> None:
    assert said(odd) == []


def test_an_odd_port_or_picker_breaks_nothing() -> None:
    assert states(front(port="http", endpointPickerRef="x")) == ["PortDiffers"]
    assert states(front(port=None, targetPorts={"number": 8000})) == ["PortDiffers"]


@pytest.mark.parametrize("name", ["Ranker_Picker", "picker.", "ä", "p" * 254, "two words", 7])
def test_a_picker_whose_name_no_service_can_have_does_not_cost_the_pool_its_status(name: Any) -> None:
    """InferencePools admit any name there, and the API server would refuse the whole status of the pool for it."""
    assert said(front(endpointPickerRef={"name": name})) == [{"name": "front", "state": "Fits", "ports": [8000]}]


@pytest.mark.parametrize("port", [0, -1, 65_536, True, 1 << 40])
def test_a_port_that_is_none_is_not_mentioned(port: Any) -> None:
    assert said(front(port=port)) == [{"name": "front", "state": "PortDiffers"}]


def test_they_come_in_the_order_of_their_names_and_no_more_than_the_status_holds() -> None:
    found = said(*(front(f"f{number:02d}") for number in range(20, 0, -1)))
    assert [each["name"] for each in found] == [f"f{number:02d}" for number in range(1, 17)]


class Api:
    """Answers discovery and lists as the test says, and counts what it was asked."""

    def __init__(self) -> None:
        self.served_plurals, self.fails, self.asked = frozenset({INFERENCE_POOLS.plural}), None, list[str]()
        self.now_s = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        self.ctx = cast(Context, SimpleNamespace(kube=self, clock=clock))

    fails: ReconcileError | None

    async def served(self, group: str, version: str) -> frozenset[str]:
        self.asked.append("discover")
        return self.served_plurals

    async def list(self, resource: Any, namespace: str | None, *, limit: int) -> AsyncIterator[Page]:
        self.asked.append("list")
        if self.fails is not None:
            raise self.fails
        yield Page((front(),), "1")


async def test_where_the_kind_is_missing_one_question_in_ten_minutes_is_asked_and_nothing_is_found() -> None:
    api, book = Api(), InferencePools()
    api.served_plurals = frozenset()
    for _ in range(5):
        await book.refresh(api.ctx, POOL)
    assert api.asked == ["discover"]
    assert book.of("team") == ()
    assert book.seconds_to_look("team", now_s=api.now_s) is None
    api.now_s += ABSENT_SECONDS + 1
    api.served_plurals = frozenset({INFERENCE_POOLS.plural})
    await book.refresh(api.ctx, POOL)
    assert len(book.of("team")) == 1


async def test_where_it_is_served_each_namespace_is_looked_at_once_a_minute() -> None:
    api, book = Api(), InferencePools()
    for _ in range(3):
        await book.refresh(api.ctx, POOL)
    assert api.asked == ["discover", "list"]
    assert book.seconds_to_look("team", now_s=api.now_s) == LOOK_SECONDS
    api.now_s += LOOK_SECONDS
    await book.refresh(api.ctx, POOL)
    assert api.asked.count("list") == 2


async def test_a_refusal_ends_the_looking_and_an_outage_leaves_what_was_seen() -> None:
    api, book = Api(), InferencePools()
    await book.refresh(api.ctx, POOL)
    api.now_s += LOOK_SECONDS
    api.fails = Transient("ConnectionLost", "cut")
    await book.refresh(api.ctx, POOL)
    assert len(book.of("team")) == 1
    api.now_s += LOOK_SECONDS
    api.fails = Forbidden("Forbidden", "no")
    await book.refresh(api.ctx, POOL)
    assert book.of("team") == ()
    assert book.seconds_to_look("team", now_s=api.now_s) is None


async def test_a_pool_of_addresses_or_one_that_is_gone_asks_for_nothing() -> None:
    api, book = Api(), InferencePools()
    await book.refresh(api.ctx, pool_object())
    await book.refresh(api.ctx, None)
    assert api.asked == []
