"""The release on a cluster: its life by helm, and what the tests look at (operator pods, their Lease, pools, conditions)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.binaries import find_binaries
from testbed.inference_api import CRD
from testbed.node.provider import ClusterProvider

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "grfleet"
SYSTEM = "grfleet-system"
_PARTS = "app.kubernetes.io/part-of=grfleet"
Object = dict[str, Any]


def find_helm() -> Path | None:
    """helm of the testbed, or of this machine; None if there is neither."""
    found = find_binaries(["helm"]).paths.get("helm") or shutil.which("helm")
    return None if found is None else Path(found)


@dataclass(frozen=True)
class Images:
    """Reference of each image (operator, agent, picker, engine), and when a kubelet shall pull it."""

    references: Mapping[str, str]
    pull_policy: str

    def __getitem__(self, name: str) -> str:
        return self.references[name]


@dataclass(frozen=True, kw_only=True)
class Release:
    """The operator on a cluster."""

    cluster: ClusterProvider
    images: Images
    helm: Path
    home: Path

    # Life --------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Install the chart in the two documented steps: kinds and operator, then the default policies."""
        system = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": SYSTEM, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }
        self.apply(system)
        for _ in ("kinds and operator", "default policies"):
            self.run_helm("upgrade", "--install", "grfleet", str(CHART), "--set", self._values(), "--wait", "--timeout", "120s")

    def uninstall(self) -> None:
        """Take the operator away; kinds and objects stay."""
        self.run_helm("uninstall", "grfleet", "--wait", "--timeout", "60s")

    def remove(self) -> None:
        """Take everything away, kinds and objects as well."""
        self.run_helm("uninstall", "grfleet", "--ignore-not-found", "--wait", "--timeout", "60s")
        self.cluster.kubectl("delete", "crd", "--selector", _PARTS, "--ignore-not-found", "--timeout=60s")
        self.cluster.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=60s")

    def traces(self) -> list[str]:
        """Names of what a release has on a cluster: its kinds and its namespace."""
        kinds = self.cluster.kubectl("get", "crd", "--output=name").stdout.split()
        spaces = self.cluster.kubectl("get", "namespace", SYSTEM, "--ignore-not-found", "--output=name").stdout.split()
        return [each for each in kinds if each.endswith(".grfleet.dev")] + spaces

    def run_helm(self, *arguments: str) -> str:
        """helm in the release's namespace, with caches of its own; fails with what it says."""
        places = {f"HELM_{name}_HOME": str(self.home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **places, "HOME": str(self.home), "KUBECONFIG": str(self.cluster.kubeconfig)}
        command = [str(self.helm), *arguments, "--namespace", SYSTEM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode != 0:
            pods = self.cluster.kubectl("describe", "pods", "-n", SYSTEM, check=False).stdout
            raise AssertionError(f"helm {' '.join(arguments[:2])}: {done.stderr}\n{pods[-3000:]}")
        return done.stdout

    def _values(self) -> str:
        return ",".join([*self.image_values("image", "operator"), *self.image_values("agent.image", "agent")])

    def image_values(self, value: str, image: str) -> list[str]:
        """Values that name one of the images at a place of the chart."""
        name, _, digest = self.images[image].partition("@")
        repository, _, tag = (name, "", "") if digest else name.rpartition(":")
        which = f"{value}.digest={digest}" if digest else f"{value}.tag={tag}"
        return [f"{value}.repository={repository}", which, f"{value}.pullPolicy={self.images.pull_policy}"]

    # Objects -----------------------------------------------------------------------------------------------------

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

    @property
    def serves_inference_pools(self) -> bool:
        """Whether the cluster has the kind InferencePool."""
        return bool(self.cluster.kubectl("get", "crd", CRD, "--ignore-not-found", "--output=name").stdout.strip())

    def is_ready(self, pod: str, namespace: str) -> bool:
        """Whether all containers of a pod are ready."""
        conditions = self.get("pod", pod, "-n", namespace)["status"].get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

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
