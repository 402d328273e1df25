"""Every write carries what makes the API server refuse it once somebody else has written: the version that was read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loop_objects import instance_object, pool_object

from controllers.allocation import decide as allocation
from controllers.allocation.execute import execute as execute_allocation
from controllers.pool import decide as pool_loop
from controllers.pool.actions import ApplyDeployment
from controllers.pool.execute import execute as execute_pool
from controllers.pool.workload_execute import WorkloadMemory, carry_out
from controllers.runtime import process
from controllers.runtime.clock import FakeClock, within
from controllers.runtime.kube import HttpKubeApi
from controllers.runtime.loop import Context
from controllers.runtime.resources import DEPLOYMENTS, INSTANCES, POOLS
from controllers.runtime.store import Store

POOL = pool_object()
INSTANCE = instance_object("pool-a", POOL)


def context(sent: list[Any]) -> Context:
    """A context whose API server takes down each body and answers with it."""

    async def transport(method: str, path: str, headers: Any, body: Any, timeout: float) -> tuple[int, dict[str, str], str]:
        sent.append(body)
        return 200, {}, json.dumps({**body, "metadata": {**body["metadata"], "uid": "uid", "resourceVersion": "99"}})

    kube = HttpKubeApi(transport, clock=FakeClock(), rng=random.Random(1))
    store = Store([POOLS, INSTANCES, DEPLOYMENTS])
    store.upsert(POOLS, POOL)
    store.upsert(INSTANCES, INSTANCE)
    return cast(Context, SimpleNamespace(kube=kube, store=store, clock=FakeClock()))


async def test_an_intent_names_the_version_of_the_instance_that_it_was_decided_for() -> None:
    sent: list[Any] = []
    seen = cast(Any, SimpleNamespace(stored=INSTANCE, push_age_s=None))

    await execute_allocation(
        allocation.Plan(intent={"p99Ms": 50}),
        seen,
        *(cast(Any, None) for _ in ("agents", "memory", "key", "models")),
        context(sent),
    )

    assert (sent[0]["metadata"]["resourceVersion"], sent[0]["metadata"]["uid"]) == ("20", "uid-pool-a")


async def test_a_changed_source_names_the_version_that_was_read_and_a_new_instance_that_there_is_none() -> None:
    sent: list[Any] = []
    source = {"kind": "External", "serviceURL": "http://new:80", "agentURL": "http://new:81"}
    changed = pool_loop.ApplyInstance(name="pool-a", source=source, current=INSTANCE)
    new = pool_loop.ApplyInstance(name="pool-b", source=source, current=None)

    await execute_pool(pool_loop.Plan(actions=(changed, new)), POOL, context(sent))

    assert [body["metadata"]["resourceVersion"] for body in sent] == ["20", "1"]  # nothing has version 1


def applied_deployment(*subresources: str | None) -> dict[str, Any]:
    """A Deployment of which the pool loop has applied the size by these ways."""
    fields = {"f:spec": {"f:replicas": {}}}
    entries = [
        {"manager": "grfleet-pool", "operation": "Apply", "fieldsV1": fields, **({"subresource": each} if each else {})}
        for each in subresources
    ]
    metadata = {"name": "pool", "namespace": "team", "uid": "uid-d", "resourceVersion": "40", "managedFields": entries}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 2}}


async def test_a_template_names_the_version_that_was_read_and_the_size_is_handed_over_to_the_scale_once() -> None:
    identity = {"name": "pool", "namespace": "team", "labels": {"grfleet.dev/pool": "pool"}}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": identity, "spec": {}}
    for subresources, versions in (((None,), ["40", "99"]), ((None, "scale"), ["40"]), (("scale",), ["40"])):
        sent: list[Any] = []
        current = applied_deployment(*subresources)
        action = ApplyDeployment(body=body, digest="d", current=current, replicas=2)

        await carry_out(action, context(sent), WorkloadMemory())

        assert [each["metadata"]["resourceVersion"] for each in sent] == versions
        assert [each["kind"] for each in sent] == [*["Scale"] * (len(versions) - 1), "Deployment"]


async def test_an_error_that_meets_a_cancellation_is_not_logged_as_forgotten() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def fails() -> None:
        raise ZeroDivisionError

    waiting = asyncio.ensure_future(within(FakeClock(), 1.0, fails()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    gc.collect()
    assert not complaints


def test_a_task_that_will_not_be_cancelled_does_not_keep_the_process_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the watch library's tasks do when one of their requests is told to log in anew while it is cancelled."""
    monkeypatch.setattr(process, "CLOSING_SECONDS", 0.05)

    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def work() -> None:
        asyncio.get_running_loop().stubborn = asyncio.ensure_future(stubborn())  # type: ignore[attr-defined] # kept alive
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        process.run_with_an_end(work())
