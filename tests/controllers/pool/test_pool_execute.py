"""How the executor of the pool loop spends its time: instances side by side, everything else in the order of the plan."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loop_objects import instance_object, pool_object

from controllers.pool.actions import ApplyInstance, DeleteInstance
from controllers.pool.decide import Plan
from controllers.pool.execute import AT_ONCE, execute
from controllers.runtime.errors import Conflict
from controllers.runtime.loop import Context
from controllers.runtime.resources import INSTANCES, POOLS, Key
from controllers.runtime.store import Store

POOL = pool_object()


class SlowKube:
    """Every request takes one turn of the loop for each that is under way; some are refused."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.log: list[str] = []
        self.under_way = self.most = 0

    async def apply(self, resource: Any, desired: Any, **_: Any) -> Any:
        name = desired["metadata"]["name"]
        await self._take(f"create {name}")
        if name in self.refused:
            raise Conflict("Conflict", name)
        return instance_object(name, POOL)

    async def delete(self, resource: Any, key: Key, **_: Any) -> None:
        await self._take(f"delete {key.name}")

    async def _take(self, what: str) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        self.log.append(what)


def context(kube: SlowKube) -> Context:
    store = Store([POOLS, INSTANCES])
    store.upsert(POOLS, POOL)
    return cast(Context, SimpleNamespace(kube=kube, store=store))


def creation(name: str) -> ApplyInstance:
    source = {"kind": "External", "serviceURL": f"http://{name}:80", "agentURL": f"http://{name}:81"}
    return ApplyInstance(name=name, source=source, current=None)


async def test_instances_of_a_large_pool_are_made_side_by_side_but_not_all_at_once() -> None:
    kube = SlowKube()
    ctx = context(kube)

    await execute(Plan(actions=tuple(creation(f"pool-{n}") for n in range(50))), POOL, ctx)

    assert sorted(kube.log) == sorted(f"create pool-{n}" for n in range(50))
    assert kube.most == AT_ONCE
    assert ctx.store.count(INSTANCES) == 50


async def test_an_instance_that_is_replaced_is_deleted_before_its_successor_is_made() -> None:
    kube = SlowKube()
    old = DeleteInstance(name="pool-a", uid="old")

    await execute(Plan(actions=(creation("pool-b"), old, creation("pool-a"), creation("pool-c"))), POOL, context(kube))

    assert kube.log == ["create pool-b", "delete pool-a", "create pool-a", "create pool-c"]


async def test_one_that_is_refused_keeps_none_of_its_row_from_being_made_but_all_that_follows_it() -> None:
    kube = SlowKube("pool-3")
    row = tuple(creation(f"pool-{n}") for n in range(20))

    with pytest.raises(Conflict):
        await execute(Plan(actions=(*row, DeleteInstance(name="pool-x", uid="x"))), POOL, context(kube))

    assert len(kube.log) == 20
    assert kube.under_way == 0
    assert "delete pool-x" not in kube.log
