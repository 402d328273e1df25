"""How large the table of a thousand instances is where it counts: as the API server stores it and sends it to every follower."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from contract.keys import SLOTS
from contract.table import limits_of, pack_slots
from dataplane.follow import table_from
from dataplane.gateway.tables import want_of
from testbed.control_plane import ControlPlane

pytestmark = pytest.mark.slow
INSTANCES = 1000
APPLY = {"content-type": "application/apply-patch+yaml"}


def row(number: int) -> dict[str, Any]:
    return {
        "name": f"ranker-7c9d8f6b54-{number:05x}",  # as a ReplicaSet names its pods
        "uid": f"6f1c2a34-5b6d-4e7f-8a9b-{number:012x}",
        "address": f"http://198.18.{number // 256}.{number % 256}:8080",
        "weightPercent": 100,
        "state": "Warming",
    }


def test_the_table_of_a_thousand_pods_is_below_256_kib_as_the_api_server_sends_it(
    crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str
) -> None:
    path = f"/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grroutingtables/ranker"
    body = {"apiVersion": "grfleet.dev/v1alpha1", "kind": "GRRoutingTable", "metadata": {"name": "ranker"}}
    query = {"fieldManager": "grfleet-routing", "force": "true"}
    made = kube_api.patch(path, params=query, content=json.dumps({**body, "spec": {"poolRef": "ranker"}}), headers=APPLY)
    made.raise_for_status()
    status = {
        "generation": 10**6,
        "keyId": "user-key",
        "instances": [row(number) for number in range(INSTANCES)],
        "slots": pack_slots([slot % INSTANCES for slot in range(SLOTS)]),
        "movedPercent": "99.999",
        "recentMoves": [{"time": "2026-05-01T12:00:00Z", "generation": 10**6, "movedPercent": "99.999"}] * 64,
        "publishedAt": "2026-05-01T12:00:00Z",
        "limits": {
            "boundedLoadPercent": 1000,
            "boundedLoadFloor": 100_000,
            "hotUsersMax": 1_000_000,
            "hotUserSeconds": 86_400,
            "keyHeader": "x" * 63,
        },
    }
    sent = kube_api.patch(f"{path}/status", params=query, content=json.dumps({**body, "status": status}), headers=APPLY)
    sent.raise_for_status()

    answer = kube_api.get(path)

    assert len(answer.content) < 256 * 1024, len(answer.content)
    table = table_from(answer.content).table
    assert len(want_of(table).servers) == INSTANCES
    assert msgspec.to_builtins(limits_of(table)) == status["limits"]
