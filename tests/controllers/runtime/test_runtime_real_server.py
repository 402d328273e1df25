"""The API port and the elector against a real API server: what the fakes assume is what it does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from kubernetes.aio import client as kubernetes_client

from controllers.runtime.clock import SystemClock
from controllers.runtime.conditions import Condition, conditions_of, set_conditions
from controllers.runtime.credentials import load_api_client
from controllers.runtime.errors import (
    AlreadyExists,
    Conflict,
    FieldManagerConflict,
    Gone,
    KindMissing,
    SchemaMismatch,
    Terminal,
    Transient,
)
from controllers.runtime.events import EventRecorder
from controllers.runtime.kube import HttpKubeApi, list_all, transport_of
from controllers.runtime.leader import LeaderElector, LeaseTimes
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    POOLS,
    SECRETS,
    Key,
    Object,
    ResourceType,
    identity,
    uid_of,
)
from testbed.control_plane import ControlPlane

MANAGER = "grfleet-pool"
SPEC: dict[str, Any] = {
    "model": {"name": "ranker", "version": "7", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192},
    "instances": {"external": [{"name": "a", "serviceURL": "http://127.0.0.1:9001", "agentURL": "http://127.0.0.1:9002"}]},
    "memory": {"hbmBytes": "80Gi", "hbmReservedBytes": "20Gi"},
    "slo": {"p99Ms": 50},
}


@pytest.fixture
async def wire(crds_installed: ControlPlane) -> AsyncIterator[tuple[HttpKubeApi, list[tuple[str, str, str]]]]:
    """A port of the administrator and the list of requests it has sent."""
    sent: list[tuple[str, str, str]] = []
    client = await load_api_client(str(crds_installed.kubeconfig))
    clock, rng = SystemClock(), random.Random(1)
    yield HttpKubeApi(transport_of(client), clock=clock, rng=rng, observe=lambda *call: sent.append(call)), sent
    await client.close()


async def applied_pool(kube: HttpKubeApi, key: Key) -> Object:
    return await kube.apply(POOLS, {**identity(POOLS, key), "spec": SPEC}, field_manager="kubectl")


def ready(pool: Object, status: str = "False", reason: str = "NoInstances") -> dict[str, Any]:
    condition = Condition("Ready", status, reason)  # type: ignore[arg-type] # a literal
    items = set_conditions(conditions_of(pool), [condition], observed_generation=1, now=SystemClock().now())
    return {
        **identity(POOLS, Key("", pool["metadata"]["name"])),
        "metadata": {k: pool["metadata"][k] for k in ("name", "namespace")},
    } | {"status": {"observedGeneration": 1, "conditions": items}}


async def test_a_namespace_that_is_being_deleted_takes_nothing_new_and_no_role_is_to_blame(
    wire: Any, namespace: str, kube_api: httpx.Client
) -> None:
    kube, _ = wire
    held = {**identity(CONFIG_MAPS, Key(namespace, "held")), "data": {}}
    held["metadata"]["finalizers"] = ["grfleet.dev/test"]
    await kube.create(CONFIG_MAPS, held, field_manager="x")
    (await asyncio.to_thread(kube_api.delete, f"/api/v1/namespaces/{namespace}")).raise_for_status()

    try:
        with pytest.raises(Gone) as refusal:
            await kube.apply(CONFIG_MAPS, {**identity(CONFIG_MAPS, Key(namespace, "c")), "data": {}}, field_manager=MANAGER)
    finally:
        freed = await asyncio.to_thread(
            kube_api.patch,
            f"/api/v1/namespaces/{namespace}/configmaps/held",
            content=json.dumps({"metadata": {"finalizers": None}}),
            headers={"content-type": "application/merge-patch+json"},
        )
        freed.raise_for_status()

    assert refusal.value.reason == "NamespaceTerminating"


async def test_a_second_equal_apply_sends_nothing_whatever_other_managers_wrote(wire: Any, namespace: str) -> None:
    kube, sent = wire
    key = Key(namespace, "pool")
    pool = await applied_pool(kube, key)
    other = {**identity(POOLS, key), "status": {"conditions": [_paused()]}}
    await kube.apply_status(POOLS, other, field_manager="grfleet-routing")
    pool = await kube.apply_status(POOLS, ready(pool), field_manager=MANAGER, current=pool)
    assert {item["type"] for item in pool["status"]["conditions"]} == {"Ready", "TablePublished"}
    sent.clear()
    assert await kube.apply_status(POOLS, ready(pool), field_manager=MANAGER, current=pool) is pool
    assert await kube.apply(POOLS, {**identity(POOLS, key), "spec": SPEC}, field_manager="kubectl", current=pool) is pool
    assert sent == []
    changed = await kube.apply_status(POOLS, ready(pool, "True", "AllInstancesReady"), field_manager=MANAGER, current=pool)
    assert len(sent) == 1
    assert changed["metadata"]["resourceVersion"] != pool["metadata"]["resourceVersion"]


def _paused() -> dict[str, Any]:
    return {
        "type": "TablePublished",
        "status": "False",
        "reason": "NoInstances",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def test_a_field_left_out_of_an_apply_is_removed_and_that_is_not_taken_for_a_no_op(wire: Any, namespace: str) -> None:
    kube, _ = wire
    body = {**identity(CONFIG_MAPS, Key(namespace, "c")), "data": {"a": "1", "b": "2"}}
    current = await kube.apply(CONFIG_MAPS, body, field_manager=MANAGER)
    less = {**body, "data": {"a": "1"}}
    assert (await kube.apply(CONFIG_MAPS, less, field_manager=MANAGER, current=current))["data"] == {"a": "1"}


async def test_the_three_meanings_of_409_are_told_apart(wire: Any, namespace: str) -> None:
    kube, _ = wire
    key = Key(namespace, "c")
    body = {**identity(CONFIG_MAPS, key), "data": {"a": "1"}}
    made = await kube.create(CONFIG_MAPS, body, field_manager="x")
    with pytest.raises(AlreadyExists):
        await kube.create(CONFIG_MAPS, body, field_manager="x")
    with pytest.raises(FieldManagerConflict) as caught:
        await kube.apply(CONFIG_MAPS, {**body, "data": {"a": "2"}}, field_manager=MANAGER, force=False)
    assert caught.value.fields == (".data.a",)
    await kube.apply(CONFIG_MAPS, {**body, "data": {"a": "3"}}, field_manager=MANAGER)
    stale = made["metadata"]["resourceVersion"]
    with pytest.raises(Conflict) as conflict:
        await kube.apply(CONFIG_MAPS, {**body, "data": {"a": "4"}}, field_manager=MANAGER, resource_version=stale)
    assert type(conflict.value) is Conflict
    with pytest.raises(Conflict):
        await kube.replace(CONFIG_MAPS, {**made, "data": {"a": "5"}}, field_manager="x")


async def test_a_uid_guard_never_makes_a_deleted_object_again(wire: Any, namespace: str) -> None:
    kube, _ = wire
    key = Key(namespace, "c")
    body = {**identity(CONFIG_MAPS, key), "data": {"a": "1"}}
    made = await kube.apply(CONFIG_MAPS, body, field_manager=MANAGER)
    with pytest.raises(Conflict):
        await kube.delete(CONFIG_MAPS, key, uid="00000000-0000-0000-0000-000000000000")
    assert await kube.delete(CONFIG_MAPS, key, uid=uid_of(made))
    assert not await kube.delete(CONFIG_MAPS, key, uid=uid_of(made))
    with pytest.raises(Conflict):
        await kube.apply(CONFIG_MAPS, body, field_manager=MANAGER, uid=uid_of(made))
    assert await kube.get(CONFIG_MAPS, key) is None


async def test_an_unknown_field_is_terminal_although_the_server_says_500(wire: Any, namespace: str) -> None:
    kube, sent = wire
    key = Key(namespace, "pool")
    with pytest.raises(SchemaMismatch, match="notAField"):
        await kube.apply(POOLS, {**identity(POOLS, key), "spec": {**SPEC, "notAField": 1}}, field_manager=MANAGER)
    assert [code for _, _, code in sent] == ["500"]


async def test_what_a_user_did_wrong_comes_back_with_the_field_s_name(wire: Any, namespace: str) -> None:
    kube, _ = wire
    bad = {**SPEC, "slo": {"p99Ms": -1}}
    with pytest.raises(Terminal, match="p99Ms") as caught:
        await kube.apply(POOLS, {**identity(POOLS, Key(namespace, "pool")), "spec": bad}, field_manager=MANAGER)
    assert caught.value.reason == "Invalid"


async def test_absent_objects_and_absent_kinds_are_told_apart(wire: Any, namespace: str) -> None:
    kube, _ = wire
    assert await kube.get(POOLS, Key(namespace, "none")) is None
    pool = {"metadata": {"name": "none", "namespace": namespace}}
    with pytest.raises(Gone):
        await kube.apply_status(POOLS, ready(pool), field_manager=MANAGER)
    nothing = ResourceType("grfleet.dev", "v1alpha1", "unicorns", "Unicorn")
    with pytest.raises(KindMissing):
        await kube.get(nothing, Key(namespace, "none"))
    assert "grservingpools/scale" in await kube.served("grfleet.dev", "v1alpha1")
    assert await kube.served("nobody.example", "v1") == frozenset()


async def test_a_list_comes_in_pages_and_whole(wire: Any, namespace: str) -> None:
    kube, sent = wire
    for number in range(5):
        await kube.create(CONFIG_MAPS, identity(CONFIG_MAPS, Key(namespace, f"c{number}")), field_manager="x")
    sent.clear()
    found = await list_all(kube, CONFIG_MAPS, namespace, limit=2)
    assert {item["metadata"]["name"] for item in found} >= {f"c{number}" for number in range(5)}
    assert len(sent) >= 3


async def test_a_secret_is_read_by_name_and_applied_without_loss(wire: Any, namespace: str) -> None:
    kube, _ = wire
    key = Key(namespace, "key")
    assert await kube.get(SECRETS, key) is None
    await kube.apply(SECRETS, {**identity(SECRETS, key), "type": "Opaque", "data": {"seed": "AAAA"}}, field_manager=MANAGER)
    found = await kube.get(SECRETS, key)
    assert found is not None
    assert found["data"] == {"seed": "AAAA"}


async def test_an_event_is_accepted_and_its_repetition_counted(wire: Any, namespace: str) -> None:
    kube, _ = wire
    pool = await applied_pool(kube, Key(namespace, "pool"))
    for _ in range(2):
        events = EventRecorder(kube, clock=SystemClock(), metrics=Metrics(), instance="me")
        events.emit(pool, "Warning", "NoInstances", "add some", action="Observed", controller="pool")
        await events.flush()
    [event] = [item for item in await list_all(kube, EVENTS, namespace) if item["reason"] == "NoInstances"]
    assert event["series"]["count"] == 2


async def test_nobody_there_is_transient() -> None:
    client = kubernetes_client.ApiClient(kubernetes_client.Configuration(host="http://127.0.0.1:1"))
    kube = HttpKubeApi(transport_of(client), clock=SystemClock(), rng=random.Random(1), attempts=1)
    with pytest.raises(Transient) as caught:
        await kube.get(POOLS, Key("ns", "pool"))
    assert caught.value.reason == "ConnectFailed"
    await client.close()


async def test_two_electors_on_one_real_lease_take_turns(wire: Any, namespace: str) -> None:
    """With short times: one leads, hands over on release, and is followed after it has silently died."""
    kube, _ = wire
    times = LeaseTimes(lease_seconds=3, renew_seconds=2, retry_seconds=0.4, look_seconds=0.2, request_seconds=1)
    clock, leading = SystemClock(), []

    def elector(name: str) -> LeaderElector:
        lease = Key(namespace, "grfleet-operator")
        return LeaderElector(kube, lease, name, clock=clock, rng=random.Random(name), metrics=Metrics(), times=times)

    async def lead(name: str) -> None:
        leading.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            leading.remove(name)

    electors = {name: elector(name) for name in "abc"}
    tasks = {name: asyncio.create_task(each.run(lambda name=name: lead(name))) for name, each in electors.items()}  # type: ignore[misc] # binds the name

    async def leader(other_than: str = "") -> str:
        for _ in range(400):
            assert len(leading) <= 1
            assert sum(each.is_leader() for each in electors.values()) <= 1
            if leading and leading[0] != other_than:
                return str(leading[0])
            await asyncio.sleep(0.02)
        raise AssertionError("nobody leads")

    async def end(name: str) -> None:
        tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[name]

    first = await leader()
    await end(first)
    await electors[first].release()
    second = await leader(other_than=first)
    await end(second)  # no release: as if killed
    third = await leader(other_than=second)
    assert len({first, second, third}) == 3
    lease = await kube.get(LEASES, Key(namespace, "grfleet-operator"))
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 2
    await end(third)
