"""Cases of autoscaling, and a small API server that serves them to the real HorizontalPodAutoscaler controller.

It serves autoscalers, scales, pods and metrics, and keeps the first status that the controller writes for each.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from policies.measurement import Fresh, Missing
from policies.scaling.decide import ScalingDecision, decide_count
from policies.scaling.proposals import Proposal, per_instance, total
from policies.scaling.ratio import Reading
from policies.scaling.types import (
    Behavior,
    Bounds,
    History,
    PolicyType,
    RatePolicy,
    Rules,
    SelectPolicy,
)

SEED, NAMESPACE = 20260, "shop"
EXTERNAL_CASES, POD_CASES = 90, 60


@dataclass(frozen=True, kw_only=True)
class Case:
    """One autoscaler; every target is one per instance, every value is in thousandths.

    `totals` are external metrics (None: the source fails). `pods` are usages of single pods: None for a running pod without
    metrics, "Pending" for one that is not ready.
    """

    name: str
    current: int
    bounds: Bounds
    behavior: Behavior
    totals: tuple[int | None, ...] = ()
    pods: tuple[int | str | None, ...] = ()

    def proposals(self) -> list[Proposal]:
        if self.pods:
            readings = [
                Reading(usage=Fresh(value=pod / 1000.0) if isinstance(pod, int) else Missing(), ready=pod != "Pending")
                for pod in self.pods
            ]
            return [
                per_instance(
                    "memory", readings, target=1.0, current=self.current, behavior=self.behavior, max_doubtful_percent=100.0
                )
            ]
        values = [Missing() if value is None else Fresh(value=value / 1000.0) for value in self.totals]
        return [
            total(f"m{k}", value, target_per_instance=1.0, current=self.current, behavior=self.behavior)
            for k, value in enumerate(values)
        ]

    def decide(self) -> ScalingDecision:
        return decide_count(
            self.proposals(),
            current=self.current,
            bounds=self.bounds,
            behavior=self.behavior,
            history=History.starting_at(self.current, now_s=0.0),
            now_s=0.01,
        )

    def autoscaler(self) -> dict[str, Any]:
        metrics: list[dict[str, Any]] = [
            {
                "type": "External",
                "external": {
                    "metric": {"name": f"m{k}", "selector": {"matchLabels": {"app": self.name}}},
                    "target": {"type": "AverageValue", "averageValue": "1"},
                },
            }
            for k in range(len(self.totals))
        ]
        if self.pods:
            metrics = [
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1"}}}
            ]
        return {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": self.name, "namespace": NAMESPACE, "uid": f"uid-{self.name}", "resourceVersion": "5"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.name},
                "minReplicas": self.bounds.minimum,
                "maxReplicas": self.bounds.maximum,
                "metrics": metrics,
                "behavior": {"scaleUp": wire(self.behavior.up), "scaleDown": wire(self.behavior.down)},
            },
            "status": {"currentReplicas": self.current, "desiredReplicas": self.current},
        }


def wire(rules: Rules) -> dict[str, Any]:
    return {
        "stabilizationWindowSeconds": int(rules.stabilization_s),
        "selectPolicy": rules.select.value,
        "tolerance": f"{round(rules.tolerance * 1000)}m",
        "policies": [{"type": p.type.value, "value": p.value, "periodSeconds": int(p.period_s)} for p in rules.policies],
    }


def some_rules(rng: random.Random) -> Rules:
    return Rules(
        stabilization_s=rng.choice([0.0, 0.0, 0.0, 300.0]),
        select=rng.choice([SelectPolicy.MAX, SelectPolicy.MAX, SelectPolicy.MIN, SelectPolicy.DISABLED]),
        tolerance=rng.choice([0.0, 0.1, 0.1, 0.25]),
        policies=tuple(
            RatePolicy(type=rng.choice(list(PolicyType)), value=rng.choice([1, 4, 10, 50, 100, 300]), period_s=60.0)
            for _ in range(rng.randint(1, 3))
        ),
    )


def make_cases() -> list[Case]:
    rng = random.Random(SEED)
    cases = []
    for number in range(EXTERNAL_CASES + POD_CASES):
        current = rng.randint(1, 30)
        low = rng.randint(1, min(12, current + 1))
        common = {
            "name": f"case-{number}",
            "current": current,
            "bounds": Bounds(minimum=low, maximum=max(low, current + rng.choice([-2, 0, 2, 10, 40, 200]))),
            "behavior": Behavior(up=some_rules(rng), down=some_rules(rng)),
        }
        if number < EXTERNAL_CASES:
            totals = tuple(
                None
                if rng.random() < 0.1
                else round(1000 * current * rng.choice([0.0, 0.3, 0.85, 0.9, 1.0, 1.1, 1.15, 2.0, 6.0]))
                for _ in range(rng.choice([1, 1, 2, 3]))
            )
            cases.append(Case(**common, totals=totals))
        else:
            load = rng.choice([0, 300, 800, 950, 1050, 1150, 1500, 4000])
            pods: tuple[int | str | None, ...] = tuple(
                rng.choices([load, load + 40, None, "Pending"], weights=[6, 3, rng.choice([0, 2]), rng.choice([0, 2])])[0]
                for _ in range(current)
            )
            cases.append(Case(**common, pods=pods))
    return cases


CASES = {case.name: case for case in make_cases()}


@dataclass
class FakeApi:
    """The part of the Kubernetes API that the autoscaler's controller uses."""

    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    all_seen: threading.Event = field(default_factory=threading.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if request.method == "POST":
            return web.json_response(json.loads(await request.read()), status=201)
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if request.method == "PUT":
            return await self._put(request)
        if request.query.get("watch"):
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await asyncio.sleep(3600)
            return response
        found = self._get(path.strip("/").split("/"), request.query.get("labelSelector", ""))
        if found is None:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            return web.json_response(status, status=404)
        return web.json_response(found)

    async def _put(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if request.path.endswith("/status"):
            self.statuses.setdefault(body["metadata"]["name"], body["status"])
            if len(self.statuses) == len(CASES):
                self.all_seen.set()
        return web.json_response(body)

    def _get(self, parts: list[str], selector: str) -> dict[str, Any] | None:
        match parts:
            case ["version"]:
                return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group("apps", "v1"), group("autoscaling", "v2")]}
            case ["api", "v1"]:
                return resources("v1", resource("pods", "Pod"), resource("events", "Event"))
            case ["apis", "apps", "v1"]:
                scale = resource("deployments/scale", "Scale") | {"group": "autoscaling", "version": "v1"}
                return resources("apps/v1", resource("deployments", "Deployment"), scale)
            case ["apis", "autoscaling", "v2"]:
                return resources("autoscaling/v2", resource("horizontalpodautoscalers", "HorizontalPodAutoscaler"))
            case ["api", "v1", "pods"]:
                return listing("v1", "PodList", [p for case in CASES.values() for p in pods_of(case)])
            case ["apis", "autoscaling", "v2", "horizontalpodautoscalers"]:
                items = [case.autoscaler() for case in CASES.values()]
                return listing("autoscaling/v2", "HorizontalPodAutoscalerList", items)
            case ["apis", "apps", "v1", "namespaces", _, "deployments", name, "scale"]:
                return scale_of(CASES[name])
            case ["apis", "external.metrics.k8s.io", "v1beta1", "namespaces", _, metric]:
                return external_value(CASES[selector.split("=")[1]].totals[int(metric[1:])], metric)
            case ["apis", "metrics.k8s.io", "v1beta1", "namespaces", _, "pods"]:
                return listing("metrics.k8s.io/v1beta1", "PodMetricsList", usages_of(CASES[selector.split("=")[1]]))
        return None


def group(name: str, version: str) -> dict[str, Any]:
    entry = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def resource(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list", "watch", "update"]}


def resources(group_version: str, *items: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list(items)}


def listing(api_version: str, kind: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"resourceVersion": "10"}, "items": items}


def scale_of(case: Case) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": case.name, "namespace": NAMESPACE, "resourceVersion": "5"},
        "spec": {"replicas": case.current},
        "status": {"replicas": case.current, "selector": f"app={case.name}"},
    }


def pods_of(case: Case) -> Iterator[dict[str, Any]]:
    for k, usage in enumerate(case.pods):
        yield {
            "metadata": {
                "name": f"{case.name}-{k}",
                "namespace": NAMESPACE,
                "labels": {"app": case.name},
                "uid": f"{case.name}-{k}",
            },
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": {
                "phase": "Pending" if usage == "Pending" else "Running",
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}],
            },
        }


def usages_of(case: Case) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {"name": f"{case.name}-{k}", "namespace": NAMESPACE},
            "timestamp": "2026-01-01T01:00:00Z",
            "window": "30s",
            "containers": [{"name": "c", "usage": {"memory": f"{usage}m"}}],
        }
        for k, usage in enumerate(case.pods)
        if isinstance(usage, int)
    ]


def external_value(value: int | None, metric: str) -> dict[str, Any] | None:
    if value is None:
        return None
    item = {"metricName": metric, "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z", "value": f"{value}m"}
    return listing("external.metrics.k8s.io/v1beta1", "ExternalMetricValueList", [item])


def serve(api: FakeApi, started: Future[int], stop: threading.Event) -> None:
    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", api.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        started.set_result(runner.addresses[0][1])
        await asyncio.to_thread(stop.wait)
        await runner.cleanup()

    asyncio.run(run())
