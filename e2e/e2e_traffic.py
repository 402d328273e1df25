"""The pod that plays a pool's caller (`traffic_client.py`), its narrow rights, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e_pool import RESTRICTED, Pool
from e2e_release import Object

from testbed.patience import eventually

_CLIENT = Path(__file__).resolve().with_name("traffic_client.py")
_NAME = "traffic"
PER_SECOND = 30


@dataclass(frozen=True)
class Counts:
    """Requests since the start of the client, and the answers of each instance.

    `refused` and `slow` were answered by the next owner, if not `failed` as well. `elsewhere` were answered through a gateway by
    another instance than the table in force names.
    """

    sent: int
    answered: int
    refused: int
    slow: int
    failed: int
    elsewhere: int
    generation: int
    instances: dict[str, int]
    problems: dict[str, str]


@dataclass(frozen=True)
class Traffic:
    """Requests that keep coming."""

    pool: Pool

    def counts(self) -> Counts | None:
        """What the client last said; None before its first line."""
        release, namespace = self.pool.release, self.pool.namespace
        said = release.cluster.kubectl("logs", _NAME, "-n", namespace, "--tail=20", check=False).stdout
        lines = [line for line in said.splitlines() if line.startswith("{")]
        if not lines:
            return None
        return Counts(**json.loads(lines[-1]))

    def until(self, happened: Callable[[Counts], bool], *, timeout_seconds: float = 60) -> Counts:
        """Wait until the counts show something."""

        def seen() -> Counts | None:
            counts = self.counts()
            return counts if counts is not None and happened(counts) else None

        found: Counts = eventually(
            seen, why=lambda: (self.counts(), self.pool.release.why(self.pool.namespace)), timeout_seconds=timeout_seconds
        )
        return found

    def goes_on(self, *, requests: int = 2 * PER_SECOND) -> Counts:
        """Wait until so many more requests have been answered; fails if meanwhile one got no answer."""
        before = self.until(lambda counts: True)
        after = self.until(lambda counts: counts.answered >= before.answered + requests)
        assert after.failed == before.failed, after
        return after

    def undisturbed_since(self, before: Counts, *, requests: int = 2 * PER_SECOND) -> None:
        """Wait for so many more answers; fails if instances have refused requests since then, even if others answered those.

        One in a hundred is let pass, for a machine that is out of breath resets connections; where a drain does not wait, or a
        table names who has gone, all requests of some users are refused.
        """
        after = self.goes_on(requests=requests)
        assert after.failed == before.failed, (before, after)
        assert after.refused - before.refused <= 0.01 * (after.sent - before.sent), (before, after)


@contextmanager
def traffic(pool: Pool, *, gateway: str = "") -> Iterator[Traffic]:
    """Send requests to a pool while entered: to its instances, or all to the URL of a gateway."""
    release, namespace = pool.release, pool.namespace
    release.apply(*_rights(namespace), _program(namespace), _pod(pool, gateway))
    try:
        running = Traffic(pool)
        running.until(lambda counts: counts.answered > 0)
        yield running
    finally:
        release.cluster.kubectl("delete", "pod", _NAME, "-n", namespace, "--grace-period=0", "--force", check=False)


def _rights(namespace: str) -> list[Object]:
    """May read tables, nothing else."""
    rbac = "rbac.authorization.k8s.io"
    metadata = {"name": _NAME, "namespace": namespace}
    rule = {"apiGroups": ["grfleet.dev"], "resources": ["grroutingtables"], "verbs": ["get", "list", "watch"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": _NAME},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
    ]


def _program(namespace: str) -> Object:
    data = {_CLIENT.name: _CLIENT.read_text()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _NAME, "namespace": namespace}, "data": data}


def _pod(pool: Pool, gateway: str) -> Object:
    images = pool.release.images
    container = {
        "name": "client",
        "image": images["engine"],  # any image with grfleet.client
        "imagePullPolicy": images.pull_policy,
        "command": ["python3", f"/client/{_CLIENT.name}", pool.namespace, "ranker", str(PER_SECOND), *filter(None, [gateway])],
        "securityContext": RESTRICTED,
        "resources": {"requests": {"cpu": "100m"}},  # a caller that starves takes answers for late ones
        "volumeMounts": [{"name": "client", "mountPath": "/client", "readOnly": True}],
    }
    spec = {
        "serviceAccountName": _NAME,
        "securityContext": {"runAsUser": 65532, "runAsGroup": 65532},
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",  # its counts begin with it
        "containers": [container],
        "volumes": [{"name": "client", "configMap": {"name": _NAME}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _NAME, "namespace": pool.namespace}, "spec": spec}
