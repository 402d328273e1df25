"""Pools, instances and tables with a status, for the tests of `grfleet top`."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

WHEN = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str = "True", reason: str = "Fine", message: str = "") -> Json:
    """A condition as the API stores it."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": WHEN}


def pool(name: str = "ranker", namespace: str = "feed", *, status: Json | None = None, **spec: Any) -> Json:
    """A pool with one external instance."""
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRServingPool",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": WHEN},
        "spec": {
            "model": {"name": "hstu", "version": "7", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192},
            "instances": {
                "external": [{"name": "a", "serviceURL": "http://127.0.0.1:9001", "agentURL": "http://127.0.0.1:9002"}]
            },
            "memory": {"hbmBytes": "80Gi", "hbmReservedBytes": "20Gi"},
            "slo": {"p99Ms": 50, "goodPercent": "99"},
            **spec,
        },
        **({"status": status} if status is not None else {}),
    }


def pool_status(*, ready: int = 2, total: int = 2, healthy: str = "True", **fields: Any) -> Json:
    """The status of a pool that serves."""
    return {
        "instances": {"total": total, "ready": ready, "settled": ready, "unreachable": total - ready, "shadow": 0},
        "embPercent": {"min": 60, "mean": 61, "max": 62},
        "p99Ms": "31",
        "sloPercent": "99.7",
        "strategyInForce": "MissRatioCurve",
        "conditions": [
            condition("PolicyHealthy", healthy, "InForce" if healthy == "True" else "ModelMissing"),
            condition(
                "Ready", "True" if ready == total else "False", "AllInstancesReady" if ready == total else "SomeInstancesNotReady"
            ),
        ],
        **fields,
    }


def instance(
    name: str = "ranker-a", namespace: str = "feed", *, of: str = "ranker", status: Json | None = None, **spec: Any
) -> Json:
    """An instance of a pool."""
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRInstance",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": WHEN},
        "spec": {
            "poolRef": of,
            "source": {"kind": "External", "serviceURL": "http://127.0.0.1:9001", "agentURL": "http://127.0.0.1:9002"},
            **spec,
        },
        **({"status": status} if status is not None else {}),
    }


def split(target: int, accepted: int, settled: int | None = None) -> Json:
    """A split in points of 100 GiB."""
    values = {"target": target, "accepted": accepted, **({} if settled is None else {"settled": settled})}
    return {
        name: {"embBytes": points << 30, "kvBytes": (100 - points) << 30, "embPercent": points} for name, points in values.items()
    }


def instance_status(*, ready: str = "True", reason: str = "InstanceReady", **fields: Any) -> Json:
    """The status of an instance whose split has arrived."""
    return {
        "split": split(62, 62, 62),
        "strategyInForce": "MissRatioCurve",
        "reason": "AnchorTarget",
        "caches": {"embHitPercent": 91, "kvHitPercent": 74},
        "p99Ms": "31",
        "sloPercent": "99.7",
        "agent": {"reachable": True},
        "conditions": [condition("Ready", ready, reason), condition("SplitSettled"), condition("PolicyHealthy")],
        **fields,
    }


def unreachable_status() -> Json:
    """The status of an instance whose agent went silent: the split is the last that is known, measurements are gone."""
    status = instance_status(ready="False", reason="AgentUnreachable", agent={"reachable": False})
    for measured in ("caches", "p99Ms", "sloPercent"):
        del status[measured]
    return status


def table(of: str = "ranker", namespace: str = "feed", *, members: tuple[str, ...] = ("ranker-a",), **status: Any) -> Json:
    """The routing table of a pool, its slots left out."""
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "GRRoutingTable",
        "metadata": {"name": of, "namespace": namespace, "creationTimestamp": WHEN},
        "spec": {"poolRef": of},
        "status": {
            "generation": 17,
            "movedPercent": "2.1",
            "instances": [
                {"name": name, "uid": f"uid-{name}", "address": "http://127.0.0.1:9001", "weightPercent": 100, "state": "Ready"}
                for name in members
            ],
            "conditions": [condition("TablePublished", "True", "Published")],
            **status,
        },
    }
