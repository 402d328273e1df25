"""Brings the demonstration up on a control plane: kinds, operator, pools, engines, agents, in the order a person would.

The only shortcut is that nobody waits for people: each step waits for what the next one needs, read from the API server.
"""

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from controllers.signing_key import CONFIG_MAP_NAME, PUBLIC_ENTRY
from grfleet.demo import objects
from grfleet.demo.fleet import ROOT, DemoFailed, Fleet
from testbed.control_plane import ControlPlane
from testbed.kinds import install_kinds

GROUP = "/apis/grfleet.dev/v1alpha1"
CRDS = ROOT / "crds" / "manifests"
FIELD_MANAGER = "grfleet-demo"

Say = Callable[[str], None]


class Api:
    """The objects of the demonstration, read as the administrator."""

    def __init__(self, plane: ControlPlane) -> None:
        self._http = plane.client(timeout_seconds=10.0)

    def list(self, plural: str) -> list[dict[str, Any]]:
        """Return all objects of one of our kinds; empty while the API server does not answer."""
        try:
            answer = self._http.get(f"{GROUP}/{plural}")
        except httpx.HTTPError:
            return []
        items: list[dict[str, Any]] = answer.json().get("items", []) if answer.status_code == 200 else []
        return items

    def config_map(self, namespace: str, name: str) -> dict[str, str]:
        """Return the data of a ConfigMap, empty while it is not there."""
        answer = self._http.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        data: dict[str, str] = (answer.json().get("data") or {}) if answer.status_code == 200 else {}
        return data

    def close(self) -> None:
        self._http.close()


def bring_up(plane: ControlPlane, fleet: Fleet, api: Api, *, pool_key: bytes, say: Say) -> None:
    """Install grfleet on the control plane and start both pools; return when every instance is Ready and the tables stand.

    Raises
    ------
    DemoFailed
        When a process ends or a step takes too long; names the step and the log.
    """
    say("kinds: 7 CRDs, accounts and rules")
    install_kinds(plane, CRDS, field_manager=FIELD_MANAGER, collect_at_once=False)
    _apply(plane, objects.operator_objects())
    account = plane.service_account_kubeconfig(objects.OPERATOR_NAMESPACE, objects.OPERATOR_ACCOUNT)

    say("operator under its own ServiceAccount, 8 engines, two pools")
    fleet.start_operator(account, lease_namespace=objects.OPERATOR_NAMESPACE)
    fleet.start_engines()
    _apply(plane, objects.pool_objects(fleet.endpoints, pool_key=pool_key))

    say("8 agents, with the public key that the operator published")
    key_file = plane.directory / "intent.key"
    key_file.write_text(
        _wait(lambda: api.config_map(objects.ADAPTIVE, CONFIG_MAP_NAME).get(PUBLIC_ENTRY), fleet, f"ConfigMap {CONFIG_MAP_NAME}")
    )
    if len(base64.b64decode(key_file.read_text())) != 32:
        raise DemoFailed(f"ConfigMap {CONFIG_MAP_NAME}: {PUBLIC_ENTRY} is not a key of 32 bytes")
    fleet.start_agents(key_file)
    fleet.wait_for_sockets()

    say("waiting until all instances are Ready and the routing tables name them")
    _wait(lambda: _all_ready(api), fleet, "GRInstances Ready", seconds=90.0)
    _wait(lambda: _tables_complete(api), fleet, "GRRoutingTables complete", seconds=60.0)


def _all_ready(api: Api) -> bool:
    return (
        sum(condition_status(item, "Ready") == "True" for item in api.list("grinstances"))
        == len(objects.NAMESPACES) * objects.INSTANCES
    )


def _tables_complete(api: Api) -> bool:
    tables = {item["metadata"]["namespace"]: item for item in api.list("grroutingtables")}
    return all(
        namespace in tables
        and condition_status(tables[namespace], "TablePublished") == "True"
        and _full_members(tables[namespace]) == objects.INSTANCES
        for namespace in objects.NAMESPACES
    )


def _full_members(table: dict[str, Any]) -> int:
    return sum(i["weightPercent"] == 100 for i in table["status"].get("instances") or [])


def condition_status(item: dict[str, Any], kind: str) -> str:
    """Return the status of a condition, Unknown when it is absent."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return str(next((c["status"] for c in conditions if c["type"] == kind), "Unknown"))


def _apply(plane: ControlPlane, items: list[dict[str, Any]]) -> None:
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "-f", "-", input=body)


def _wait(look: Callable[[], Any], fleet: Fleet, what: str, *, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        fleet.check()
        if found := look():
            return found
        if time.monotonic() > deadline:
            raise DemoFailed(
                f"{what}: not after {seconds:.0f} s; the operator's log is {fleet.log('operator')}\n{fleet.tail('operator')}"
            )
        time.sleep(0.2)


def logs_folder(out: Path) -> Path:
    """Return a fresh folder for this run's logs."""
    folder = out / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.log"):
        old.unlink()
    return folder
