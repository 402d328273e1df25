"""Pools of reference engines: one whose pods grfleet manages, and one of external instances that happen to be pods.

For the latter the operator sees only the addresses of the pool's entries, each a Service, as it would for machines elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from e2e_release import Object, Release

from testbed.patience import eventually

POOL_BYTES = 2 << 30
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True)
class Pool:
    """One pool `ranker` in a namespace of its own."""

    release: Release
    namespace: str

    def ready(self) -> bool:
        """Whether exactly the wanted instances are there and ready, and the pool and its splits are as wanted."""
        pool = self.release.get("grp", "ranker", "-n", self.namespace)
        wanted = len(pool["spec"]["instances"].get("external", ())) or pool["spec"]["replicas"]
        instances = pool.get("status", {}).get("instances", {})
        if (instances.get("ready"), instances.get("total")) != (wanted, wanted):
            return False
        conditions = [self.release.condition("grp", "ranker", self.namespace, of) for of in ("Ready", "SplitSettled")]
        return all(each.get("status") == "True" for each in conditions)

    def wait_ready(self, *, timeout_seconds: float = 90) -> None:
        """Wait for it; fails with what the cluster shows."""
        eventually(self.ready, why=lambda: self.release.why(self.namespace), timeout_seconds=timeout_seconds)

    def emb_percent(self) -> list[float]:
        """EMB share in force of each instance, in percent of the pool's bytes."""
        found = self.release.get("gri", "-n", self.namespace)["items"]
        splits = [each.get("status", {}).get("split", {}).get("accepted", {}) for each in found]
        return [100 * each["embBytes"] / POOL_BYTES for each in splits if each]

    def pods(self) -> dict[str, Object]:
        """Pods of a managed pool by name, those on their way out left out."""
        found = self.release.get("pods", "-n", self.namespace, "-l", "grfleet.dev/pool=ranker")["items"]
        return {each["metadata"]["name"]: each for each in found if "deletionTimestamp" not in each["metadata"]}

    def serving(self) -> set[str]:
        """Names of the instances in the published table that have slots."""
        table = self.release.get("grt", "ranker", "-n", self.namespace)["status"]
        return {each["name"] for each in table["instances"] if each["state"] != "Draining"}


@contextmanager
def managed_pool(
    release: Release,
    *,
    replicas: int,
    hbm_policy: Object,
    routing_policy: Object,
    before: Callable[[Pool], None] = lambda pool: None,
) -> Iterator[Pool]:
    """Apply a pool whose pods grfleet runs, after what has to be in its namespace `before`; the namespace goes afterwards."""
    with _space(release) as pool:
        before(pool)
        split, routes = (
            _ours(kind, name, pool.namespace, spec)
            for kind, name, spec in (("HBMPolicy", "split", hbm_policy), ("RoutingPolicy", "routes", routing_policy))
        )
        release.apply(split, routes)
        apply_managed(pool, replicas=replicas, version="1")
        yield pool


def apply_managed(pool: Pool, *, replicas: int, version: str) -> None:
    """Apply the pool as a person would, with engines of that model version."""
    template = {
        "spec": {
            "securityContext": {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
            "containers": [_engine(pool.release, version)],
        }
    }
    policies = {"hbm": "split", "routing": "routes"}
    spec = _spec({"managed": {"template": template}}, version=version) | {"replicas": replicas, "policies": policies}
    pool.release.apply(_ours("GRServingPool", "ranker", pool.namespace, spec))


@contextmanager
def pool_of_pods(release: Release, *instances: str, hbm_policy: Object) -> Iterator[Pool]:
    """Run a pool of external instances; the namespace goes afterwards."""
    with _space(release) as pool:
        release.apply(*[_service(pool.namespace, name) for name in instances])
        entries = [
            {"name": name, "serviceURL": f"http://{address}:8000", "agentURL": f"http://{address}:9001"}
            for name in instances
            if (address := release.get("service", name, "-n", pool.namespace)["spec"]["clusterIP"])
        ]
        spec = _spec({"external": entries}, version="1") | {"policies": {"hbm": "split"}}
        release.apply(
            _ours("HBMPolicy", "split", pool.namespace, hbm_policy), _ours("GRServingPool", "ranker", pool.namespace, spec)
        )
        release.apply(*[_pod(release, pool.namespace, name) for name in instances])
        yield pool


@contextmanager
def _space(release: Release) -> Iterator[Pool]:
    """A namespace that refuses pods which are not restricted."""
    pool = Pool(release, f"e2e-{secrets.token_hex(4)}")
    space = {"name": pool.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    release.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": space})
    try:
        yield pool
    finally:
        release.cluster.kubectl("delete", "namespace", pool.namespace, "--wait=false")


def _ours(kind: str, name: str, namespace: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "grfleet.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _spec(instances: Object, *, version: str) -> Object:
    return {
        "model": {"name": "ranker", "version": version, "kvBytesPerToken": 1024, "embRowBytes": 256, "maxHistoryTokens": 4096},
        "instances": instances,
        "memory": {"hbmBytes": str(POOL_BYTES)},
        "slo": {"p99Ms": 100},
    }


def _service(namespace: str, name: str) -> Object:
    ports = [{"name": port, "port": number} for port, number in (("gr", 8000), ("grfleet-agent", 9001))]
    spec = {"selector": {"instance": name}, "ports": ports, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _engine(release: Release, version: str) -> Object:
    """The engine's container: the agent has its socket, callers have its port."""
    return {
        "name": "engine",
        "image": release.images["engine"],
        "imagePullPolicy": release.images.pull_policy,
        "securityContext": RESTRICTED,
        "resources": {"requests": {"cpu": "50m"}},  # a pod without requests starves on a busy machine, and seems to be down
        "args": [
            "--listen=unix:/run/grfleet/engine.sock",
            "--serve=http://0.0.0.0:8000",
            f"--hbm-bytes={POOL_BYTES}",
            f"--model=ranker:{version}",
            "--rows-one-in=128",
        ],
        "ports": [{"name": "gr", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/gr/v1/ready", "port": "gr"}, "periodSeconds": 1},
    }


def _pod(release: Release, namespace: str, name: str) -> Object:
    """Engine as the main container, agent as a native sidecar; they meet at a socket on a memory volume."""
    socket = {"name": "socket", "mountPath": "/run/grfleet"}
    key = {"name": "key", "mountPath": "/etc/grfleet", "readOnly": True}
    engine = _engine(release, "1") | {"volumeMounts": [socket]}
    agent = {
        "name": "agent",
        "image": release.images["agent"],
        "restartPolicy": "Always",
        "args": [
            "--engine=unix:/run/grfleet/engine.sock",
            "--listen=http://0.0.0.0:9001",
            "--intent-key=/etc/grfleet/public.key",
            "--memory-seconds=15",
        ],
        "ports": [{"name": "grfleet-agent", "containerPort": 9001}],
        "volumeMounts": [socket, key],
        "imagePullPolicy": release.images.pull_policy,
        "securityContext": RESTRICTED,
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
        "terminationGracePeriodSeconds": 5,
        "initContainers": [agent],
        "containers": [engine],
        "volumes": [
            {"name": "socket", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "key", "configMap": {"name": "grfleet-intent-key"}},
        ],
    }
    metadata = {"name": name, "namespace": namespace, "labels": {"instance": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
