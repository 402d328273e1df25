"""What the tests of gateways and pickers share: a policy that moves users quickly, the pool's key, the chart's values, pods."""

from __future__ import annotations

import base64

from e2e_pool import Pool
from e2e_release import CHART, Object, Release
from traffic_client import POOL_KEY

from testbed.patience import eventually

QUICK = {
    "churn": {"maxMovedPercent": 100, "windowSeconds": 1},
    "warmup": {"maxSeconds": 5},
    "drain": {"deadlineSeconds": 15},
}


def keep_key(pool: Pool) -> None:
    """Make the Secret `user-key` with the key that the caller hashes with."""
    secret = {"name": "user-key", "namespace": pool.namespace}
    key = base64.b64encode(POOL_KEY).decode()
    pool.release.apply({"apiVersion": "v1", "kind": "Secret", "metadata": secret, "data": {"key": key}})


def install(release: Release, values: list[str]) -> None:
    """Upgrade the release with some more values; ends when the pods that they ask for are ready."""
    release.run_helm("upgrade", "grfleet", str(CHART), "--reuse-values", "--set", ",".join(values), "--wait", "--timeout", "120s")


def settled(pool: Pool) -> None:
    """Wait until nobody warms up any more: users whose slots move later stay where their state is, whatever the table says."""

    def quiet() -> bool:
        rows = pool.release.get("grt", "ranker", "-n", pool.namespace)["status"]["instances"]
        return len(rows) == len(pool.pods()) and all((row["state"], row["weightPercent"]) == ("Ready", 100) for row in rows)

    eventually(quiet, why=lambda: pool.release.why(pool.namespace))


def ready_pods(pool: Pool, selector: str, *, containers: int) -> dict[str, Object]:
    """Pods that are ready with so many containers, and not on their way out, by name."""
    found = pool.release.get("pods", "-n", pool.namespace, "-l", selector)["items"]
    return {
        each["metadata"]["name"]: each
        for each in found
        if "deletionTimestamp" not in each["metadata"]
        and len(statuses := each["status"].get("containerStatuses", ())) == containers
        and all(status["ready"] for status in statuses)
    }


def kill(pool: Pool, pod: str) -> None:
    """Delete a pod without waiting for its end."""
    pool.release.cluster.kubectl("delete", "pod", pod, "-n", pool.namespace, "--wait=false")
