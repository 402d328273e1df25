"""A managed pool on a real API server without pods, engines that are nothing but metrics, and a real Prometheus between them.

The instances are made by the test, as the pool loop makes them from pods; the operator runs the pre-inference loop alone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from testbed.control_plane import ControlPlane
from testbed.prometheus import Target

GROUP = "/apis/grfleet.dev/v1alpha1"
MERGE = {"content-type": "application/merge-patch+json"}
OPERATOR = [
    sys.executable,
    "-c",
    "from controllers.agent_book import AgentBook\n"
    "from controllers.parsed import ParsedObjects\n"
    "from controllers.preinference.controller import PreInferenceLoop\n"
    "from controllers.runtime.process import main\n"
    "raise SystemExit(main(loops=lambda: [PreInferenceLoop(ParsedObjects(), AgentBook())]))",
]
MIB = 1 << 20


@dataclass
class Engine:
    """The metrics of an engine: 50 requests a second at 20 ms or 80 ms, and so much pre-inference as the test says."""

    busy_slots: float = 0.0
    refused_per_s: float = 0.0
    slow: bool = False
    nan_queue: bool = False
    _since: float = field(default_factory=time.monotonic)
    _counts: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        self._advance()
        count = self._counts.get
        return "\n".join(
            [
                f"gr_requests_total {count('requests', 0.0)}",
                f"gr_pre_infer_accepted_total {count('accepted', 0.0)}",
                f"gr_pre_infer_rejected_total {count('rejected', 0.0)}",
                f"gr_pre_infer_used_total {count('accepted', 0.0)}",
                "gr_pre_infer_late_total 0",
                "gr_pre_infer_wasted_total 0",
                f"gr_pre_infer_slot_ms_total {count('slot_ms', 0.0)}",
                f"gr_live_prefix_bytes {self.busy_slots * 32 * MIB}",
                f"gr_queue {'NaN' if self.nan_queue else 0}",
                f'gr_latency_ms_bucket{{le="20"}} {count("quick", 0.0)}',
                f'gr_latency_ms_bucket{{le="80"}} {count("requests", 0.0)}',
                f'gr_latency_ms_bucket{{le="+Inf"}} {count("requests", 0.0)}',
                "",
            ]
        )

    def _advance(self) -> None:
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        steps = {
            "requests": 50.0,
            "quick": 0.0 if self.slow else 50.0,
            "accepted": 20.0 * self.busy_slots,
            "rejected": self.refused_per_s,
            "slot_ms": 1000.0 * self.busy_slots,
        }
        for name, per_second in steps.items():
            self._counts[name] = self._counts.get(name, 0.0) + per_second * seconds


@contextmanager
def exporter(engines: dict[str, Engine]) -> Iterator[str]:
    """Serve the metrics of each engine under /metrics/NAME; gives host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(engines[self.path.removeprefix("/metrics/")].text().encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def targets(address: str, namespace: str, pools: dict[str, Sequence[str]]) -> list[Target]:
    """The engines of each pool, with the labels that the PodMonitor gives them."""
    return [
        Target(
            address=address,
            path=f"/metrics/{name}",
            labels={"namespace": namespace, "grfleet_dev_pool": pool, "pod": name},
        )
        for pool, names in pools.items()
        for name in names
    ]


class Site:
    """The namespace of a test, as an administrator sees and writes it."""

    def __init__(self, plane: ControlPlane, api: httpx.Client, namespace: str) -> None:
        self.plane, self.api, self.namespace = plane, api, namespace

    def path(self, plural: str, name: str = "", sub: str = "") -> str:
        return "/".join(part for part in (f"{GROUP}/namespaces/{self.namespace}/{plural}", name, sub) if part)

    def create(self, plural: str, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        body = {"apiVersion": "grfleet.dev/v1alpha1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
        answer = self.api.post(self.path(plural), json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def create_pool(self, name: str, *instances: str, mode: str, replicas: int, policy: str = "default", **spec: Any) -> None:
        """A managed pool, and its instances as the pool loop would make them: ready, with the pool as owner."""
        scaling = {"mode": mode, **({"minReplicas": 1, "maxReplicas": 6} if mode != "Manual" else {})}
        template = {"spec": {"containers": [{"name": "engine", "image": "engine"}]}}
        pool = self.create(
            "grservingpools",
            "GRServingPool",
            name,
            {
                "model": {
                    "name": "ranker",
                    "version": "1",
                    "kvBytesPerToken": 4096,
                    "embRowBytes": 512,
                    "maxHistoryTokens": 8192,
                },
                "instances": {"managed": {"template": template}},
                "memory": {"hbmBytes": "40Gi"},
                "slo": {"p99Ms": 50},
                "replicas": replicas,
                "scaling": scaling,
                "policies": {"preInference": policy},
                **spec,
            },
        )
        self.report(name, replicas)
        owner = {
            "apiVersion": "grfleet.dev/v1alpha1",
            "kind": "GRServingPool",
            "name": name,
            "uid": pool["metadata"]["uid"],
            "controller": True,
        }
        for each in instances:
            self.create_instance(name, each, owner)

    def create_instance(self, pool: str, name: str, owner: dict[str, Any]) -> None:
        source = {
            "kind": "Pod",
            "podName": name,
            "podUID": f"uid-{name}",
            "serviceURL": f"http://{name}.example:80",
            "agentURL": f"http://{name}.example:81",
        }
        self.create("grinstances", "GRInstance", name, {"poolRef": pool, "source": source}, ownerReferences=[owner])
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "InstanceReady",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
        self._patch("grinstances", name, {"status": {"conditions": [ready]}}, "status")

    def report(self, pool: str, replicas: int) -> None:
        """What the pool loop says of the pool, for the scale subresource."""
        self._patch("grservingpools", pool, {"status": {"replicas": replicas, "selector": f"grfleet.dev/pool={pool}"}}, "status")

    def edit(self, pool: str, spec: dict[str, Any]) -> None:
        self._patch("grservingpools", pool, {"spec": spec})

    def get(self, plural: str, name: str) -> dict[str, Any]:
        answer = self.api.get(self.path(plural, name))
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def pool(self, name: str) -> dict[str, Any]:
        return self.get("grservingpools", name)

    def replicas(self, name: str) -> int:
        return int(self.pool(name)["spec"]["replicas"])

    def capacity(self, name: str) -> dict[str, int] | None:
        found: dict[str, int] | None = self.get("grinstances", name)["spec"].get("preInfer")
        return found

    def condition(self, pool: str, type_: str) -> tuple[str, str]:
        items = self.pool(pool).get("status", {}).get("conditions") or []
        item = next((each for each in items if each["type"] == type_), {})
        return item.get("status", ""), item.get("reason", "")

    def writers_of_replicas(self, pool: str) -> set[tuple[str, str]]:
        """(manager, subresource) of every field manager that has spec.replicas."""
        return {
            (entry["manager"], entry.get("subresource", ""))
            for entry in self.pool(pool)["metadata"]["managedFields"]
            if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
        }

    def managers_of_capacity(self, name: str) -> set[str]:
        return {
            entry["manager"]
            for entry in self.get("grinstances", name)["metadata"]["managedFields"]
            if "f:preInfer" in entry["fieldsV1"].get("f:spec", {})
        }

    def _patch(self, plural: str, name: str, body: dict[str, Any], sub: str = "") -> None:
        answer = self.api.patch(self.path(plural, name, sub), json=body, headers=MERGE)
        assert answer.status_code == 200, answer.text
