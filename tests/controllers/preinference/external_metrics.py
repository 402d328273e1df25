"""An external metrics API behind the real aggregator: what a Prometheus adapter or KEDA serves, with numbers of the test."""

from __future__ import annotations

import datetime
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from testbed.credentials import Authority

GROUP = "external.metrics.k8s.io"
API_SERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{GROUP}"


@contextmanager
def external_metrics(api: httpx.Client, namespace: str, directory: Path, values: dict[str, str]) -> Iterator[None]:
    """Serve `values` by the name of the metric, in every namespace and for every selector, until the block ends."""
    server = _server(directory, values)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    port = server.server_address[1]
    try:
        _register(api, namespace, port)
        _wait(api)
        yield
    finally:
        api.delete(API_SERVICE)
        server.shutdown()
        server.server_close()
        thread.join()


def _server(directory: Path, values: dict[str, str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.split("?")[0].strip("/").split("/")
            body: dict[str, Any] = {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{GROUP}/v1beta1",
                "resources": [],
            }
            if len(parts) == 6:
                item = {
                    "metricName": parts[5],
                    "metricLabels": {},
                    "timestamp": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "value": values[parts[5]],
                }
                body = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/v1beta1", "metadata": {}, "items": [item]}
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            return

    now = datetime.datetime.now(datetime.UTC)
    keys = directory / "external-metrics"
    keys.mkdir()
    Authority.create(keys, now).issue("proxy", now)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "proxy.crt", keys / "proxy.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def _register(api: httpx.Client, namespace: str, port: int) -> None:
    """The aggregator dials the name of an ExternalName Service as it stands, so a process on loopback can be behind one."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "external-metrics"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    answer = api.post(f"/api/v1/namespaces/{namespace}/services", json=service)
    assert answer.status_code == 201, answer.text
    registered = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "service": {"namespace": namespace, "name": "external-metrics", "port": port},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
    answer = api.post("/apis/apiregistration.k8s.io/v1/apiservices", json=registered)
    assert answer.status_code == 201, answer.text


def _wait(api: httpx.Client) -> None:
    end = time.monotonic() + 30.0
    status: Any = None
    while time.monotonic() < end:
        status = api.get(API_SERVICE).json().get("status", {})
        if any(each["type"] == "Available" and each["status"] == "True" for each in status.get("conditions", ())):
            return
        time.sleep(0.2)
    raise AssertionError(f"the aggregator does not reach the external metrics: {status}")
