"""A pool that is deleted while no operator runs: the real API server's collector takes its table, and followers notice."""

from __future__ import annotations

import random
import ssl

import httpx
import pytest
from integration_fleet import Fleet, pool_spec

from contract.keys import SLOTS
from contract.table import pack_slots
from contract.table_sources.kubernetes_api import KubernetesSource
from contract.table_sources.sources import Sighting
from testbed.control_plane import ControlPlane
from testbed.patience import eventually

pytestmark = pytest.mark.slow


def _published(fleet: Fleet) -> None:
    """What the operator left before it was gone: a table that is its pool's own."""
    fleet.apply(
        "GRServingPool", "pool", pool_spec([{"name": "i0", "serviceURL": "http://10.1.1.1:1", "agentURL": "http://10.1.1.1:2"}])
    )
    owner = {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRServingPool",
        "name": "pool",
        "uid": fleet.pool()["metadata"]["uid"],
    }
    path = f"/apis/grfleet.dev/v1alpha1/namespaces/{fleet.namespace}/grroutingtables"
    metadata = {"name": "pool", "ownerReferences": [owner]}
    body = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRRoutingTable", "metadata": metadata, "spec": {"poolRef": "pool"}}
    fleet.api.post(path, json=body).raise_for_status()
    row = {"name": "i0", "uid": "u0", "address": "http://10.1.1.1:1", "weightPercent": 100, "state": "Ready"}
    status = {"generation": 3, "instances": [row], "slots": pack_slots([0] * SLOTS)}
    merge = {"content-type": "application/merge-patch+json"}
    fleet.api.patch(f"{path}/pool/status", json={"status": status}, headers=merge).raise_for_status()


async def test_a_pool_deleted_without_an_operator_is_noticed_and_a_table_deleted_by_hand_is_not(
    fleet: Fleet, crds_installed: ControlPlane
) -> None:
    now_ms = [0.0]
    api = httpx.AsyncClient(
        base_url=crds_installed.url,
        verify=ssl.create_default_context(cafile=str(crds_installed.ca_file)),
        headers={"authorization": f"Bearer {crds_installed.admin_token}"},
        trust_env=False,
    )
    source = KubernetesSource(
        api, namespace=fleet.namespace, name="pool", owned=True, rng=random.Random(1), clock=lambda: now_ms[0]
    )

    async def look() -> Sighting:
        source._version = ""
        async for each in source.sightings():
            return each
        raise AssertionError("a list says something")

    _published(fleet)
    assert (await look()).table is not None
    fleet.delete("grroutingtables", "pool")
    for _ in range(3):
        assert "the last table stays in use" in (await look()).problem
        now_ms[0] += 61_000.0
    fleet.delete("grservingpools", "pool")
    eventually(lambda: not fleet.pool(), timeout_seconds=30)
    assert "nor its pool" in (await look()).problem
    now_ms[0] += 61_000.0
    seen = await look()
    assert seen.table is not None
    assert (seen.table.instances, seen.table.generation) == ([], 4)
    await source.aclose()
