"""The router client: picks from memory, never goes backwards, and follows the published table through interruptions."""

import asyncio
import ssl
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.keys import SLOTS, slot_of, user_key
from contract.table import NOBODY, InstanceState, RoutingTable, TableInstance, pack_slots
from grfleet.client import NoInstance, Router, follow
from testbed.control_plane import ControlPlane

KEY = user_key(b"0123456789abcdef", "a user")


def table(generation: int, owners: list[int], names: str = "ab") -> RoutingTable:
    instances = [
        TableInstance(name=name, uid=f"uid-{name}", address=f"http://{name}:9000", weight_percent=100, state=InstanceState.READY)
        for name in names
    ]
    return RoutingTable(generation=generation, instances=instances, slots=pack_slots(owners))


def router_with(owners: list[int], generation: int = 1) -> Router:
    router = Router()
    assert router.accept(table(generation, owners))
    return router


def test_a_user_goes_to_the_owner_of_its_slot() -> None:
    owners = [0] * SLOTS
    owners[slot_of(KEY)] = 1
    pick = router_with(owners).pick(KEY)
    assert (pick.name, pick.uid, pick.address, pick.generation) == ("b", "uid-b", "http://b:9000", 1)


def test_a_failed_owner_is_passed_over_and_the_next_one_is_the_same_for_every_client() -> None:
    router = router_with([0, 1] * (SLOTS // 2))
    first = router.pick(KEY)
    second = router.pick(KEY, exclude={first.name})
    assert second.name != first.name
    assert router.pick(KEY, exclude={first.name}) == second


def test_with_every_instance_excluded_or_no_table_at_all_there_is_no_instance() -> None:
    with pytest.raises(NoInstance, match="no routing table"):
        Router().pick(KEY)
    for owners in ([0] * SLOTS, [NOBODY] * SLOTS):
        with pytest.raises(NoInstance, match="generation 1"):
            router_with(owners).pick(KEY, exclude={"a", "b"})


def test_where_no_owner_is_left_one_that_serves_and_owns_nothing_is_picked() -> None:
    assert router_with([0] * SLOTS).pick(KEY, exclude={"a"}).name == "b"
    assert router_with([NOBODY] * SLOTS).pick(KEY).name in {"a", "b"}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_the_generation_in_use_never_falls_whatever_arrives_in_which_order(generations: list[int]) -> None:
    router = Router()
    for generation in generations:
        before = router.generation
        assert router.accept(table(generation, [0] * SLOTS)) is (generation > before)
        assert router.generation == max(before, generation)


def test_a_broken_table_is_refused_and_the_one_in_use_stays() -> None:
    router = router_with([0] * SLOTS)
    with pytest.raises(ProtocolViolation):
        router.accept(table(2, [5] * SLOTS))
    assert router.generation == 1
    assert router.pick(KEY).name == "a"


def _publish(kube_api: httpx.Client, namespace: str, status: dict[str, Any]) -> None:
    path = f"/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grroutingtables/feed"
    head = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRRoutingTable", "metadata": {"name": "feed"}}
    content = {"content-type": "application/apply-patch+yaml"}
    kube_api.patch(
        path, params={"fieldManager": "test"}, json={**head, "spec": {"poolRef": "feed"}}, headers=content
    ).raise_for_status()
    answer = kube_api.patch(f"{path}/status", params={"fieldManager": "test"}, json={**head, "status": status}, headers=content)
    answer.raise_for_status()


def _api(plane: ControlPlane) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=plane.url,
        verify=ssl.create_default_context(cafile=str(plane.ca_file)),
        headers={"authorization": f"Bearer {plane.admin_token}"},
        trust_env=False,
    )


async def _until(router: Router, generation: int) -> None:
    async with asyncio.timeout(30):
        while router.generation < generation:  # noqa: ASYNC110 - the router is told by the watch and has no event to wait for
            await asyncio.sleep(0.02)


async def test_a_router_follows_the_published_table_also_over_a_restart_of_the_api_server(
    own_crds_installed: ControlPlane,
) -> None:
    plane = own_crds_installed
    router, problems = Router(), list[str]()
    with plane.client() as kube_api:
        async with _api(plane) as api:
            following = asyncio.create_task(follow(router, api, namespace="default", name="feed", on_problem=problems.append))
            for generation in (1, 2):
                _publish(kube_api, "default", msgspec.to_builtins(table(generation, [0] * SLOTS)))
                await _until(router, generation)
            await asyncio.to_thread(plane.kill_api_server)
            assert router.pick(KEY).generation == 2
            await asyncio.to_thread(plane.start_api_server)
            _publish(kube_api, "default", msgspec.to_builtins(table(3, [1] * SLOTS)))
            await _until(router, 3)
            assert router.pick(KEY).name == "b"
            following.cancel()
    assert any("keeping generation 2" in problem for problem in problems)
