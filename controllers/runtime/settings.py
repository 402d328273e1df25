"""What an operator process can be told, by flag or by environment variable; everything else lives in the API objects.

Flags win over variables. The names of the variables are the flags' in upper case with the prefix ``GRFLEET_``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_TRUE, _FALSE = ("on", "true", "yes", "1"), ("off", "false", "no", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one process.

    Parameters
    ----------
    namespaces
        Namespaces to serve; empty means the whole cluster. The operator's own is always among those that are watched,
        because default policies live there.
    kubeconfig
        Path of a kubeconfig; None means in-cluster credentials if there are any, else the usual kubeconfig.
    operator_namespace
        Where the Lease, the signing Secret and default policies live.
    identity
        Name of this process in the Lease and in Events; made unique for each start.
    metrics_port
        Port of /metrics, /healthz and /readyz; 0 takes a free one and logs it.
    agent_image, agent_pull_policy
        The image of the agent beside the engines of managed pools, and when the kubelet pulls it; empty: there is none, and
        managed pools are refused with that word.
    prometheus_url
        Where capacity decisions find their measurements; empty: the agents are asked directly.
    """

    namespaces: tuple[str, ...] = ()
    kubeconfig: str | None = None
    operator_namespace: str = "default"
    lease_name: str = "grfleet-operator"
    identity: str = field(default_factory=lambda: unique_identity())
    leader_elect: bool = True
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 8080
    log_level: str = "INFO"
    workers: int = 8
    agent_image: str = ""
    agent_pull_policy: str = "IfNotPresent"
    prometheus_url: str = ""

    @property
    def cluster_wide(self) -> bool:
        """Whether all namespaces are served."""
        return not self.namespaces

    @property
    def watched_namespaces(self) -> tuple[str, ...]:
        """Namespaces to list and watch; empty means all."""
        return tuple(sorted({*self.namespaces, self.operator_namespace})) if self.namespaces else ()


def unique_identity(base: str | None = None) -> str:
    """Host (or pod) name with a random end, so that a restarted process is somebody else to the elector."""
    return f"{base or socket.gethostname()}_{secrets.token_hex(4)}"


def parse_settings(arguments: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read flags (None: no flags at all) and environment.

    Raises
    ------
    SystemExit
        With code 2 and a usage message for flags or values that make no sense.
    """
    parser = _parser(environment)
    options = parser.parse_args([] if arguments is None else list(arguments))
    namespaces = [name.strip() for value in options.namespace for name in value.split(",") if name.strip()]
    if not 0 <= options.metrics_port <= 65535:
        parser.error("--metrics-port must lie between 0 and 65535")
    if options.prometheus_url and (problem := _url_problem(options.prometheus_url)):
        parser.error(f"--prometheus-url {problem}; give it the form http://prometheus.monitoring:9090")
    return Settings(
        namespaces=tuple(dict.fromkeys(namespaces)),
        kubeconfig=options.kubeconfig or None,
        operator_namespace=options.lease_namespace,
        lease_name=options.lease_name,
        identity=unique_identity(options.identity or None),
        leader_elect=options.leader_elect,
        metrics_host=options.metrics_host,
        metrics_port=options.metrics_port,
        log_level=options.log_level,
        workers=options.workers,
        agent_image=options.agent_image,
        agent_pull_policy=options.agent_pull_policy,
        prometheus_url=options.prometheus_url,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    def variable(name: str, default: str) -> str:
        return environment.get(f"GRFLEET_{name}", default)

    parser = argparse.ArgumentParser(
        prog="grfleet-operator",
        description="Control plane of grfleet. Each flag has a variable GRFLEET_NAME, e.g. GRFLEET_METRICS_PORT.",
    )
    add = parser.add_argument
    served = variable("NAMESPACE", "")
    add("--namespace", action="append", default=[served] if served else [], help="serve only this namespace (repeat, or a,b)")
    add("--kubeconfig", default=variable("KUBECONFIG", ""), help="default: in-cluster, else the usual kubeconfig")
    own = variable("LEASE_NAMESPACE", "") or _own_namespace()
    add("--lease-namespace", default=own, help="namespace of the operator: Lease, signing Secret, default policies")
    add("--lease-name", default=variable("LEASE_NAME", "grfleet-operator"), help="replicas that share it lead one at a time")
    add("--identity", default=variable("IDENTITY", ""), help="name in the Lease and in Events (default: host name)")
    elects = _switch(variable("LEADER_ELECT", "on"))
    add("--leader-elect", type=_switch, default=elects, metavar="on|off", help="off leads at once, without a Lease; default on")
    add("--metrics-host", default=variable("METRICS_HOST", "127.0.0.1"), help="address of /metrics, /healthz, /readyz")
    add("--metrics-port", type=int, default=int(variable("METRICS_PORT", "8080")), help="0 takes a free one")
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    add("--log-level", default=variable("LOG_LEVEL", "INFO"), choices=levels, help="JSON lines on stderr; default INFO")
    add("--agent-image", default=variable("AGENT_IMAGE", ""), help="image of the agent beside engines of managed pools")
    pull = variable("AGENT_PULL_POLICY", "IfNotPresent")
    add("--agent-pull-policy", default=pull, choices=("Always", "IfNotPresent", "Never"), help="when that image is pulled")
    prometheus = variable("PROMETHEUS_URL", "")
    add("--prometheus-url", default=prometheus, help="take measurements from this Prometheus (default: from the agents)")
    add("--workers", type=int, default=int(variable("WORKERS", "8")), help="concurrent reconciles of each loop")
    return parser


def _url_problem(url: str) -> str | None:
    """What is wrong with the base address of an HTTP server, or None."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not parts.hostname or port == 0 or any(not c.isprintable() or c.isspace() for c in url):
        return "names no host"
    if "@" in parts.netloc:
        return "carries a password, which everybody would read in the process list"
    if parts.query or parts.fragment:
        return "has a query or a fragment, to which nothing can be added"
    return None


def _switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"
