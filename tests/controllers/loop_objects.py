"""Objects as the API server would return them, for the pure tests of the loops."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from contract.agent import AgentStatus, EngineReport, SplitReport
from crds import GRServingPool
from crds.reasons import check_condition

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
GIB = 1 << 30
USABLE = 60 * GIB


def at(seconds: float) -> datetime:
    """NOW plus so many seconds."""
    return NOW + timedelta(seconds=seconds)


def pool_object(name: str = "pool", entries: tuple[str, ...] = ("a", "b"), *, uid: str = "", **spec: Any) -> dict[str, Any]:
    """A stored GRServingPool with external entries."""
    listed = [{"name": e, "serviceURL": f"http://{e}:80", "agentURL": f"http://{e}:81"} for e in entries]
    body: dict[str, Any] = {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRServingPool",
        "metadata": {"name": name, "namespace": "team", "uid": uid or f"uid-{name}", "generation": 1, "resourceVersion": "10"},
        "spec": {
            "model": {"name": "m", "version": "1", "kvBytesPerToken": 1, "embRowBytes": 1, "maxHistoryTokens": 1},
            "instances": {"external": listed},
            "memory": {"hbmBytes": "80Gi", "hbmReservedBytes": "20Gi"},
            "slo": {"p99Ms": 50},
            **spec,
        },
    }
    # Defaults as the server fills them in.
    body["spec"] = GRServingPool.parse(body).to_wire()["spec"]
    return body


def instance_object(
    name: str, pool: dict[str, Any], *, intent: dict[str, Any] | None = None, generation: int = 1, **status: Any
) -> dict[str, Any]:
    """A stored GRInstance owned by the pool."""
    entry = name.removeprefix(pool["metadata"]["name"] + "-")
    source = {"kind": "External", "serviceURL": f"http://{entry}:80", "agentURL": f"http://{entry}:81"}
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRInstance",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "generation": generation,
            "resourceVersion": "20",
            "labels": {"grfleet.dev/pool": pool["metadata"]["name"]},
            "ownerReferences": [
                {
                    "apiVersion": "grfleet.dev/v1alpha1",
                    "kind": "GRServingPool",
                    "name": pool["metadata"]["name"],
                    "uid": pool["metadata"]["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {"poolRef": pool["metadata"]["name"], "source": source, **({"intent": intent} if intent else {})},
        **({"status": status} if status else {}),
    }


def condition_item(type_: str, status: str, reason: str, *, generation: int = 1, since: datetime = NOW) -> dict[str, Any]:
    """A stored condition; refuses one that the reference does not document."""
    check_condition(type_, status, reason)
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def agent_status(uid: str = "uid-pool-a", generation: int = 1, *, emb_bytes: int = 30 * GIB, **changes: Any) -> AgentStatus:
    """A healthy agent that has settled."""
    split = SplitReport(
        usable_bytes=USABLE,
        target_emb_bytes=emb_bytes,
        accepted_emb_bytes=emb_bytes,
        accepted_kv_bytes=USABLE - emb_bytes,
        used_emb_bytes=emb_bytes,
        used_kv_bytes=GIB,
        revision=3,
        settled=True,
        overage_bytes=0,
        refill_backlog_bytes=0,
    )
    fields: dict[str, Any] = {
        "agent_start_id": "agent-1",
        "uid": uid,
        "generation": generation,
        "engine": EngineReport(reachable=True, start_id="engine-1"),
        "strategy_in_force": "MissRatioCurve",
        "reason": "AnchorTarget",
        "message": "",
        "frozen": False,
        "decisions": 7,
        "split": split,
        "emb_hit_percent": 91.2,
        "kv_hit_percent": 60.4,
        "p99_ms": 41.7,
        "slo_percent": 99.63,
        **changes,
    }
    return AgentStatus(**fields)
