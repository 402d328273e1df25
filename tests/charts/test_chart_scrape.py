"""With the labels of the PodMonitor a real Prometheus knows each engine by the names that the operator asks for.

There is no Prometheus operator here, and Debian's server cannot watch pods: `scrape_jobs` says in Prometheus' own words what that
operator makes of a PodMonitor, and `targets` what discovery says of a pod. The rest, from relabelling to the answer, is real.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from chart_cluster import wait_for
from chart_tools import Helm, the

from controllers.metrics_source.port import InstanceName, PoolName
from controllers.metrics_source.prometheus import PrometheusMetrics, connect_to
from controllers.pool.sidecar import AGENT_CONTAINER
from controllers.runtime.resources import AGENT_PORT, SERVING_PORT
from policies.measurement import Fresh
from testbed.debian import DebianError, ensure_debian_program
from testbed.prometheus import prometheus_server


def scrape_jobs(monitor: dict[str, Any], discovered: Path) -> list[dict[str, Any]]:
    """Entries of scrape_configs with the labels that the Prometheus operator documents."""
    meta, spec = monitor["metadata"], monitor["spec"]

    def take(source: str, target: str) -> dict[str, Any]:
        return {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}

    def keep(source: str, regex: str) -> dict[str, Any]:
        return {"source_labels": [f"__meta_kubernetes_{source}"], "action": "keep", "regex": regex}

    def sane(label: str) -> str:
        return re.sub(r"[^a-zA-Z0-9_]", "_", label)

    assert spec["namespaceSelector"] == {"any": True}
    [chosen] = spec["selector"]["matchExpressions"]
    assert chosen["operator"] == "Exists"
    return [
        {
            "job_name": f"{meta['name']}/{endpoint['port']}",
            "metrics_path": endpoint["path"],
            "honor_labels": endpoint["honorLabels"],
            "file_sd_configs": [{"files": [str(discovered)]}],
            "relabel_configs": [
                keep(f"pod_labelpresent_{sane(chosen['key'])}", "true"),
                keep("pod_container_port_name", endpoint["port"]),
                take("namespace", "namespace"),
                take("pod_container_name", "container"),
                take("pod_name", "pod"),
                *(take(f"pod_label_{sane(label)}", sane(label)) for label in spec["podTargetLabels"]),
            ],
        }
        for endpoint in spec["podMetricsEndpoints"]
    ]


def targets(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """What Prometheus' discovery of pods says: one target for each port of each container, those of sidecars included."""
    meta, spec = pod["metadata"], pod["spec"]
    common = {"__meta_kubernetes_namespace": meta["namespace"], "__meta_kubernetes_pod_name": meta["name"]}
    for name, value in meta["labels"].items():
        sane = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        common |= {f"__meta_kubernetes_pod_label_{sane}": value, f"__meta_kubernetes_pod_labelpresent_{sane}": "true"}
    found = []
    for container in [*spec["containers"], *spec["initContainers"]]:
        for port in container["ports"]:
            labels = {"container_name": container["name"], "container_port_name": port["name"]}
            own = {f"__meta_kubernetes_pod_{name}": value for name, value in labels.items()}
            found.append({"targets": [f"127.0.0.1:{port['containerPort']}"], "labels": {**common, **own}})
    return found


@pytest.fixture
def exporter() -> Iterator[int]:
    """The port of something that answers like an engine and claims to be another one."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'gr_queue{pod="somebody-else"} 3\ngrfleet_agent_frozen 0\n')

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def pod(name: str, port: int, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {f"grfleet.dev/{key}": labels[key] for key in labels}},
        "spec": {
            "initContainers": [{"name": AGENT_CONTAINER, "ports": [{"name": AGENT_PORT, "containerPort": port}]}],
            "containers": [{"name": "engine", "ports": [{"name": SERVING_PORT, "containerPort": port}]}],
        },
    }


async def test_the_operator_finds_the_engines_of_a_pool_under_the_labels_of_the_pod_monitor(
    helm: Helm, exporter: int, tmp_path: Path
) -> None:
    try:
        program = ensure_debian_program("prometheus", "prometheus")
    except DebianError as error:
        pytest.skip(f"no real Prometheus: {error}")
    pods = [pod("home-0", exporter, **{"pool": "home", "model-version": "7"}), pod("stranger", exporter)]
    discovered = tmp_path / "discovered.json"
    discovered.write_text(json.dumps([target for each in pods for target in targets(each)]))
    monitor = the(helm.render("--set", "podMonitor.enabled=true"), "PodMonitor")
    with prometheus_server(program, tmp_path, jobs=scrape_jobs(monitor, discovered)) as url:

        def up() -> list[dict[str, str]]:
            answer = httpx.get(f"{url}/api/v1/query", params={"query": "up == 1"}, trust_env=False).json()
            return [row["metric"] for row in answer["data"]["result"]]

        wait_for(lambda: len(up()) >= 2)
        seen = {(row["pod"], row["container"], row["grfleet_dev_pool"], row["grfleet_dev_model_version"]) for row in up()}
        assert seen == {("home-0", "engine", "home", "7"), ("home-0", "grfleet-agent", "home", "7")}
        source = PrometheusMetrics(connect_to(url))
        try:
            metrics = await source.read(PoolName(namespace="default", name="home"), [InstanceName(name="home-0", uid="u")])
        finally:
            await source.aclose()
    [load] = metrics.instances
    assert isinstance(load.queue, Fresh)
    assert load.queue.value == 3
