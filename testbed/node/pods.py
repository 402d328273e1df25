"""What is done with pods in the same way on every cluster: reach a port, and tell a container from the outside.

A port is reached by ``kubectl port-forward``, which belongs to somebody's record (see :mod:`testbed.state`), so it ends with its
owner, however that ends.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from testbed import processes
from testbed.node.namespaces import NodeError
from testbed.node.provider import ClusterProvider
from testbed.processes import Identity

_START_SECONDS = 30.0


@contextlib.contextmanager
def port_forward(
    kubectl: Path,
    target: str,
    port: int,
    *,
    namespace: str,
    environment: Mapping[str, str],
    logs: Path,
    record: Callable[[Identity], None],
) -> Iterator[str]:
    """``http://`` address at which this process reaches a port of ``pod/NAME`` or ``service/NAME``.

    Parameters
    ----------
    environment
        Of kubectl; names the kubeconfig.
    logs
        Folder for what kubectl says.
    record
        Called with the process before it begins (`processes.start`).

    Raises
    ------
    NodeError
        The target cannot be reached.
    """
    log = logs / f"port-forward-{time.monotonic_ns()}.log"
    command: list[str | Path] = [kubectl, "port-forward", f"--namespace={namespace}", target, f":{port}"]
    child = processes.start(log.stem, command, log=log, record=record, environment=environment)
    identity = processes.identify(log.stem, child.pid)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (found := re.search(r"Forwarding from (127\.0\.0\.1:\d+)", log.read_text())):
            if child.poll() is not None or time.monotonic() > deadline:
                raise NodeError(f"{target} port {port} cannot be reached: {log.read_text()[-500:]}")
            time.sleep(0.02)
        yield f"http://{found[1]}"
    finally:
        processes.stop(identity, grace_seconds=0)
        child.wait()


def container_id(cluster: ClusterProvider, namespace: str, pod: str, container: str) -> str:
    """The runtime's identifier of a container, be it an init container (a native sidecar) or not.

    Raises
    ------
    NodeError
        The pod has no such container, or it has not started yet.
    """
    each = "{range .status.%s[*]}{.name}={.containerID}{'\\n'}{end}"
    path = f"jsonpath={each % 'containerStatuses'}{each % 'initContainerStatuses'}"
    listed = cluster.kubectl("get", "pod", pod, "-n", namespace, "-o", path).stdout
    identifiers = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    if not (found := identifiers.get(container, "").rpartition("//")[2]):
        raise NodeError(f"pod {namespace}/{pod} has no container {container}")
    return found
