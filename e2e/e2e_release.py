"""The installed release and what the tests look at: operator pods, their Lease, pools and their conditions."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.images.product import ProductImages
from testbed.node.provider import ClusterProvider

ROOT = Path(__file__).resolve().parent.parent
SYSTEM = "grfleet-system"
Object = dict[str, Any]


def eventually(check: Callable[[], Any], *, why: Callable[[], object] = lambda: "", timeout_seconds: float = 90) -> Any:
    """Poll until the check returns something true."""
    deadline = time.monotonic() + timeout_seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {timeout_seconds:.0f} s: {why()}"
        time.sleep(0.2)
    return found


@dataclass(frozen=True)
class Release:
    """The operator on a cluster."""

    cluster: ClusterProvider
    images: ProductImages

    def get(self, *arguments: str) -> Any:
        """Objects, or one, as `kubectl get -o json` has them."""
        return json.loads(self.cluster.kubectl("get", *arguments, "-o", "json").stdout)

    def apply(self, *objects: Object) -> None:
        """`kubectl apply`."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def operator_pods(self) -> list[Object]:
        """Operator pods that are not on their way out."""
        found = self.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=grfleet")["items"]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def leader(self) -> str:
        """Name of the pod that holds the Lease; empty when nobody does."""
        done = self.cluster.kubectl("get", "lease", "grfleet-operator", "-n", SYSTEM, "-o", "json", check=False)
        identity = json.loads(done.stdout)["spec"].get("holderIdentity") or "" if done.returncode == 0 else ""
        return str(identity).partition("_")[0]  # what follows tells two starts of one pod apart

    def logs(self) -> str:
        """What all operator pods have said since they started."""
        names = [pod["metadata"]["name"] for pod in self.operator_pods()]
        return "".join(self.cluster.kubectl("logs", name, "-n", SYSTEM, "--tail=-1").stdout for name in names)

    def condition(self, kind: str, name: str, namespace: str, of: str) -> Object:
        """One condition of an object; empty when it has none of that type."""
        done = self.cluster.kubectl("get", kind, name, "-n", namespace, "-o", "json", check=False)
        conditions = json.loads(done.stdout).get("status", {}).get("conditions", []) if done.returncode == 0 else []
        return next((each for each in conditions if each["type"] == of), {})

    def why(self, namespace: str) -> str:
        """What a failed test should show."""
        pools = self.cluster.kubectl("get", "grp,gri,grt,pods", "-n", namespace, "-o", "wide", check=False).stdout
        return f"{pools}\n{self.logs()[-3000:]}"


def install(cluster: ClusterProvider, images: ProductImages, *, helm: Path, home: Path) -> Release:
    """Install the chart in the two documented steps: kinds and operator, then the default policies."""
    repository, tag = images["operator"].rsplit(":", 1)
    system = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": SYSTEM, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(system))
    places = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    environment = {**os.environ, **places, "HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig)}
    values = f"image.repository={repository},image.tag={tag},image.pullPolicy=Never"
    command = [str(helm), "upgrade", "--install", "grfleet", str(ROOT / "charts" / "grfleet"), "-n", SYSTEM, "--set", values]
    release = Release(cluster, images)
    for step in ("kinds and operator", "default policies"):
        done = subprocess.run(
            [*command, "--wait", "--timeout", "120s"], env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, f"{step}: {done.stderr}\n{cluster.kubectl('describe', 'pods', '-n', SYSTEM).stdout[-3000:]}"
    return release
