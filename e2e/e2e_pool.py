"""A pool of external instances that happen to be pods: a reference engine and its agent beside it, behind a Service each.

The operator sees only the addresses of the pool's entries, exactly as it would for machines outside the cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from e2e_release import Object, Release, eventually

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
    instances: tuple[str, ...]

    def ready(self) -> bool:
        """Whether every instance is known and ready and the pool and its splits are as wanted."""
        status = self.release.get("grp", "ranker", "-n", self.namespace).get("status", {})
        if status.get("instances", {}).get("ready") != len(self.instances):
            return False
        conditions = [self.release.condition("grp", "ranker", self.namespace, of) for of in ("Ready", "SplitSettled")]
        return all(each.get("status") == "True" for each in conditions)

    def wait_ready(self) -> None:
        """Wait for it; fails with what the cluster shows."""
        eventually(self.ready, why=lambda: self.release.why(self.namespace))

    def emb_percent(self) -> list[float]:
        """EMB share in force of each instance, in percent of the pool's bytes."""
        found = self.release.get("gri", "-n", self.namespace)["items"]
        splits = [each.get("status", {}).get("split", {}).get("accepted", {}) for each in found]
        return [100 * each["embBytes"] / POOL_BYTES for each in splits if each]


@contextmanager
def pool_of_pods(release: Release, *instances: str, hbm_policy: Object | None = None) -> Iterator[Pool]:
    """Run a pool; the namespace goes afterwards."""
    pool = Pool(release, f"e2e-{secrets.token_hex(4)}", instances)
    space = {"name": pool.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    release.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": space})
    try:
        release.apply(*[_service(pool.namespace, name) for name in instances])
        entries = [
            {"name": name, "serviceURL": f"http://{address}:8000", "agentURL": f"http://{address}:9001"}
            for name in instances
            if (address := release.get("service", name, "-n", pool.namespace)["spec"]["clusterIP"])
        ]
        policies = [] if hbm_policy is None else [_ours("HBMPolicy", "split", pool.namespace, hbm_policy)]
        release.apply(*policies, _pool(pool.namespace, entries, policies=bool(policies)))
        release.apply(*[_pod(release, pool.namespace, name) for name in instances])
        yield pool
    finally:
        release.cluster.kubectl("delete", "namespace", pool.namespace, "--wait=false")


def _ours(kind: str, name: str, namespace: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "grfleet.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _pool(namespace: str, entries: list[Object], *, policies: bool) -> Object:
    spec: Object = {
        "model": {"name": "ranker", "version": "1", "kvBytesPerToken": 1024, "embRowBytes": 256, "maxHistoryTokens": 4096},
        "instances": {"external": entries},
        "memory": {"hbmBytes": str(POOL_BYTES)},
        "slo": {"p99Ms": 100},
    }
    return _ours("GRServingPool", "ranker", namespace, spec | ({"policies": {"hbm": "split"}} if policies else {}))


def _service(namespace: str, name: str) -> Object:
    ports = [{"name": port, "port": number} for port, number in (("gr", 8000), ("grfleet-agent", 9001))]
    spec = {"selector": {"instance": name}, "ports": ports, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _pod(release: Release, namespace: str, name: str) -> Object:
    """Engine as the main container, agent as a native sidecar; they meet at a socket on a memory volume."""
    socket = {"name": "socket", "mountPath": "/run/grfleet"}
    key = {"name": "key", "mountPath": "/etc/grfleet", "readOnly": True}
    common: Object = {"imagePullPolicy": release.images.pull_policy, "securityContext": RESTRICTED}
    engine = {
        "name": "engine",
        "image": release.images["engine"],
        "args": [
            "--listen=unix:/run/grfleet/engine.sock",
            "--serve=http://0.0.0.0:8000",
            f"--hbm-bytes={POOL_BYTES}",
            "--model=ranker:1",
            "--rows-one-in=128",
        ],
        "ports": [{"name": "gr", "containerPort": 8000}],
        "volumeMounts": [socket],
        **common,
    }
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
        **common,
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
