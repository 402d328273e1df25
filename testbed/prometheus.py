"""A real Prometheus server on loopback, from the unpacked Debian package, for tests and the demonstration.

It scrapes a fixed list of targets with the labels that a PodMonitor would give them. It takes a free port itself and says which
in its log, so no stranger can take the port in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from testbed import processes
from testbed.processes import Identity

_START_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """One endpoint to scrape.

    Attributes
    ----------
    address
        Host and port.
    path
        Path of the metrics.
    labels
        Labels that all of its series get.
    """

    address: str
    labels: Mapping[str, str]
    path: str = "/metrics"


@contextlib.contextmanager
def prometheus_server(
    program: Path,
    directory: Path,
    *,
    targets: Sequence[Target] = (),
    jobs: Sequence[Mapping[str, object]] = (),
    scrape_seconds: float = 1.0,
    port: int = 0,
) -> Iterator[str]:
    """Run Prometheus until the block ends; gives its URL.

    Parameters
    ----------
    program
        The binary, for example `testbed.debian.ensure_debian_program("prometheus", "prometheus")`.
    directory
        For its configuration, data and log; a server that is started there later goes on with the data.
    jobs
        Further entries of `scrape_configs`, for targets that it has to find itself.
    port
        0 takes a free one.

    Raises
    ------
    RuntimeError
        It ended, or was not ready in time; the message has the end of its log.
    """
    config, log = directory / "prometheus.yml", directory / "prometheus.log"
    config.write_text(json.dumps(_configuration(targets, jobs, scrape_seconds)))  # JSON is YAML
    started: list[Identity] = []
    child = processes.start(
        "prometheus",
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--storage.tsdb.retention.time=1h",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        log=log,
        record=started.append,
        environment={**os.environ, "GOMAXPROCS": "1"},
    )
    try:
        yield _wait_ready(started[0], log)
    finally:
        processes.stop(started[0], grace_seconds=5)
        child.wait()


def _configuration(targets: Sequence[Target], jobs: Sequence[Mapping[str, object]], scrape_seconds: float) -> dict[str, object]:
    period = f"{round(scrape_seconds * 1000)}ms"
    static = [{"targets": [target.address], "labels": {**target.labels, "__metrics_path__": target.path}} for target in targets]
    return {
        "global": {"scrape_interval": period, "scrape_timeout": period},
        "scrape_configs": [{"job_name": "engines", "static_configs": static}, *jobs],
    }


def _wait_ready(server: Identity, log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and processes.is_alive(server):
        found = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
        if found:
            url = f"http://{found.group(1)}"
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/-/ready", timeout=1, trust_env=False).is_success:
                    return url
        time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not become ready:\n{log.read_text()[-2000:]}")
