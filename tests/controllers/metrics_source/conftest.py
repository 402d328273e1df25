"""A tiny exporter whose instances can be broken one by one, and a real Prometheus server that scrapes it each second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from testbed.prometheus import Target, prometheus_server

sys.path.insert(0, str(Path(__file__).resolve().parent))

POOLS = {
    "steady": ("steady-0", "steady-1"),
    "quiet": ("quiet-0",),
    "nan": ("nan-0",),
    "ends": ("ends-0",),
    "half": ("half-0", "half-1"),
    "restarts": ("restarts-0",),
}


@dataclass
class FakeEngine:
    """An engine that ranks 50 requests a second at 20 ms and admits 4 prefixes a second, each busy for 250 ms."""

    born: float = field(default_factory=time.monotonic)
    broken: bool = False
    quiet: bool = False
    nan_queue: bool = False

    def text(self) -> str:
        alive = 0.0 if self.quiet else time.monotonic() - self.born
        served = 50.0 * alive
        lines = [
            f"gr_requests_total {served}",
            f"gr_pre_infer_accepted_total {4.0 * alive}",
            f"gr_pre_infer_rejected_total {1.0 * alive}",
            f"gr_pre_infer_used_total {3.0 * alive}",
            f"gr_pre_infer_late_total {1.0 * alive}",
            "gr_pre_infer_wasted_total 0",
            f"gr_pre_infer_slot_ms_total {1000.0 * alive}",
            "gr_live_prefix_bytes 1048576",
            f"gr_queue {'NaN' if self.nan_queue else 2}",
            'gr_latency_ms_bucket{le="10"} 0',
            f'gr_latency_ms_bucket{{le="20"}} {served}',
            f'gr_latency_ms_bucket{{le="+Inf"}} {served}',
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Site:
    """A Prometheus server and the engines that it scrapes."""

    url: str
    engines: dict[str, FakeEngine]


@pytest.fixture(scope="module")
def site(prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that has scraped every engine for a while."""
    engines = {name: FakeEngine() for names in POOLS.values() for name in names}
    engines["quiet-0"].quiet = True
    engines["nan-0"].nan_queue = True

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            engine = engines[self.path.removeprefix("/metrics/")]
            self.send_response(500 if engine.broken else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(b"" if engine.broken else engine.text().encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    exporter = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=exporter.serve_forever, daemon=True)
    thread.start()
    address = f"127.0.0.1:{exporter.server_address[1]}"
    targets = [
        Target(
            address=address,
            path=f"/metrics/{name}",
            labels={"namespace": "shop", "grfleet_dev_pool": pool, "pod": name},
        )
        for pool, names in POOLS.items()
        for name in names
    ]
    try:
        with prometheus_server(prometheus_program, tmp_path_factory.mktemp("prometheus"), targets=targets) as url:
            yield Site(url=url, engines=engines)
    finally:
        exporter.shutdown()
        exporter.server_close()
