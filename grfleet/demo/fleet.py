"""The processes of the demonstration: operator, engines, agents, gateways, driver; started, watched, measured and stopped.

Each is recorded with the control plane before it begins, so whatever happens to this process, the testbed's watchdog stops them
all; and `grfleet testbed down` stops them when they were left running on purpose.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec

from engines.reference.options import ConfigFile, ServiceFile
from grfleet.demo.gateways import MAX_CONNECTIONS, TABLE_PATHS, HAProxy, announced, table_address, wait_for
from grfleet.demo.objects import AGENT_MEMORY_SECONDS, INSTANCES, NAMESPACES, POOL, STATIC_PERCENT, Endpoint
from simulator.core.config import InstanceConfig
from simulator.workloads import demo_instance
from testbed import processes
from testbed.control_plane import ControlPlane
from testbed.ports import ReservedPort, free_port
from testbed.processes import Usage

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_SOCKET_PATH = 100


class DemoFailed(RuntimeError):
    """The demonstration cannot go on; the message says what failed and which log file tells more."""


class Fleet:
    """The processes beside one control plane.

    Parameters
    ----------
    plane : ControlPlane
        Running.
    logs : Path
        Folder of the log files; outlives the run.
    """

    def __init__(self, plane: ControlPlane, logs: Path) -> None:
        self._plane = plane
        self._logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        sockets = plane.directory / "s"
        sockets.mkdir(mode=0o700, exist_ok=True)
        if len(str(sockets)) > LONGEST_SOCKET_PATH - 20:
            raise DemoFailed(f"{sockets} is too long for a Unix socket; set TMPDIR to a shorter folder")
        self._ports = [ReservedPort() for _ in range(len(NAMESPACES) * INSTANCES)]
        ports = iter(self._ports)
        self.endpoints = tuple(
            Endpoint(
                namespace=namespace,
                name=str(index),
                service_url=f"http://127.0.0.1:{next(ports).number}",
                engine_url=f"unix:{sockets}/{namespace[0]}{index}e",
                agent_url=f"unix:{sockets}/{namespace[0]}{index}a",
            )
            for namespace in NAMESPACES
            for index in range(INSTANCES)
        )

    def start_operator(self, kubeconfig: Path, *, lease_namespace: str) -> None:
        """Start the operator under the account of `kubeconfig`."""
        flags = ["--kubeconfig", str(kubeconfig), "--lease-namespace", lease_namespace, "--metrics-port", "0"]
        self._start("operator", "controllers.runtime.process", *flags)

    def start_engines(self) -> None:
        """Start every engine at the static split, EMB cache warm."""
        config = self._plane.directory / "engine.json"
        config.write_bytes(msgspec.json.encode(engine_file(demo_instance(STATIC_PERCENT))))
        for port in self._ports:
            port.release()
        for endpoint in self.endpoints:
            flags = [
                "--listen",
                endpoint.engine_url,
                "--serve",
                endpoint.service_url,
                "--config",
                str(config),
                "--seed",
                str(int(endpoint.name) + 1),
                "--warm",
            ]
            self._start(f"engine-{endpoint.namespace}-{endpoint.name}", "engines.reference.main", *flags)

    def start_agents(self, intent_key: Path) -> None:
        """Start an agent beside every engine."""
        for endpoint in self.endpoints:
            flags = ["--engine", endpoint.engine_url, "--listen", endpoint.agent_url, "--intent-key", str(intent_key)]
            flags += ["--memory-seconds", str(AGENT_MEMORY_SECONDS)]
            self._start(f"agent-{endpoint.namespace}-{endpoint.name}", "dataplane.agent.main", *flags)

    def start_gateways(self, haproxy: HAProxy, *, pool_key: bytes) -> dict[str, str]:
        """Start a HAProxy and its agent before each pool; return their addresses by namespace once they hold the tables.

        Raises
        ------
        DemoFailed
            Names what did not start.
        """
        proxy_port = free_port()
        flags = ["--kubeconfig", str(self._plane.kubeconfig), "proxy", f"--port={proxy_port}", f"--accept-paths={TABLE_PATHS}"]
        self._start_program("kubectl-proxy", [self._plane.binaries["kubectl"], *flags])
        key_file = self._plane.directory / "pool.key"
        key_file.touch(mode=0o600)
        key_file.write_bytes(pool_key)
        addresses = {}
        for namespace in NAMESPACES:
            folder = self._plane.directory / f"g{namespace[0]}"
            folder.mkdir(mode=0o700)
            bind = f"127.0.0.1:{free_port()}"
            agent = f"gateway-{namespace}"
            flags = ["--table", table_address(proxy_port, namespace, POOL), "--pool-key", str(key_file)]
            flags += ["--directory", str(folder), "--bind", bind, "--max-connections", str(MAX_CONNECTIONS)]
            self._start(agent, "dataplane.gateway.main", *flags)
            self._wait_for((folder / "haproxy.cfg").exists, agent)
            command = [str(haproxy.path), "-db", "-f", str(folder / "haproxy.cfg")]
            self._start_program(f"haproxy-{namespace}", command, haproxy.environment)
            self._wait_for(partial(announced, self.log(agent)), agent)
            addresses[namespace] = f"http://{bind}"
        return addresses

    def _wait_for(self, found: Callable[[], bool], name: str) -> None:
        if not wait_for(found, check=self.check, seconds=30.0):
            raise DemoFailed(f"{name} does not get ready; its log is {self.log(name)}\n{self.tail(name)}")

    def start_driver(self, plan: Path) -> subprocess.Popen[bytes]:
        """Start the driver with its plan and return its process."""
        return self._start("driver", "grfleet.demo.driver", str(plan))

    def wait_for_sockets(self, *, seconds: float = 60.0) -> None:
        """Wait until every engine and agent has opened its socket.

        Raises
        ------
        DemoFailed
            Names what did not.
        """
        paths = [Path(url.removeprefix("unix:")) for e in self.endpoints for url in (e.engine_url, e.agent_url)]
        deadline = time.monotonic() + seconds
        while missing := [path for path in paths if not path.exists()]:
            self.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{len(missing)} engines or agents did not open their sockets; logs: {self._logs}")
            time.sleep(0.05)

    def check(self, *, but: Sequence[str] = ()) -> None:
        """Raise DemoFailed when a process has ended that should run."""
        for name, child in self._children.items():
            if name not in but and child.poll() is not None:
                raise DemoFailed(f"{name} ended with code {child.returncode}; its log is {self.log(name)}\n{self.tail(name)}")

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self._logs / f"{name}.log"

    def tail(self, name: str, *, lines: int = 12) -> str:
        """The end of a log."""
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return f"(no log: {error.strerror})"

    def usage(self) -> Usage:
        """Memory and processor time of everything that runs for the demonstration, this process included."""
        pids = [os.getpid(), *self._plane.process_ids().values(), *(c.pid for c in self._children.values() if c.poll() is None)]
        seen = [found for pid in pids if (found := processes.usage(pid)) is not None]
        return Usage(rss_bytes=sum(one.rss_bytes for one in seen), cpu_seconds=sum(one.cpu_seconds for one in seen))

    def stop(self) -> None:
        """Ask all processes to end, at once; the control plane's stop makes sure."""
        running = [child for child in self._children.values() if child.poll() is None]
        for child in running:
            child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5.0
        for child in running:
            try:
                child.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _start(self, name: str, module: str, *flags: str) -> subprocess.Popen[bytes]:
        code = f"import sys; from {module} import main; sys.exit(main(sys.argv[1:]))"
        # Nine processes of small arrays: threads of a linear algebra library would only fight for the two cores.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return self._start_program(name, [sys.executable, "-c", code, *flags], {"PYTHONPATH": str(ROOT), **threads})

    def _start_program(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        inherited = {key: value for key, value in os.environ.items() if key != "KUBECONFIG" and not key.startswith("GRFLEET_")}
        child = processes.start(
            name,
            command,
            log=self.log(name),
            record=self._plane.adopt,
            environment={**inherited, **(environment or {})},
            directory=self._plane.directory,
        )
        self._children[name] = child
        return child


def engine_file(config: InstanceConfig) -> ConfigFile:
    """Return the configuration file of a reference engine that is `config`."""
    return ConfigFile(
        hbm_bytes=config.pool_bytes,
        emb_percent=config.emb_percent,
        p99_ms=config.p99_ms,
        granule_bytes=config.granule_bytes,
        rows_one_in=config.sampling.rows_one_in,
        users_one_in=config.sampling.users_one_in,
        model=f"{config.model.name}:{config.model.version}",
        popularity=config.popularity,
        service=ServiceFile(**asdict(config.service)),
    )
