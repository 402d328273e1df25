"""A real API server with nothing installed, a shell on it, and the operator run as a live Deployment says.

The server has no nodes, so the tests stand in for the kubelet: they start the operator with the flags and variables of the
Deployment and a token of its ServiceAccount.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from chart_tools import ROOT, Helm, documented_commands

from testbed.control_plane import ControlPlane

SYSTEM = "grfleet-system"
POOL: dict[str, Any] = {
    "apiVersion": "grfleet.dev/v1alpha1",
    "kind": "GRServingPool",
    "metadata": {"name": "home", "namespace": "default"},
    "spec": {
        "model": {"name": "m", "version": "1", "kvBytesPerToken": 1024, "embRowBytes": 256, "maxHistoryTokens": 4096},
        "instances": {"external": [{"name": "a", "serviceURL": "http://127.0.0.1:9", "agentURL": "http://127.0.0.1:9"}]},
        "memory": {"hbmBytes": "1Gi"},
        "slo": {"p99Ms": 100},
    },
}
TEMPLATE: dict[str, Any] = {
    "spec": {"containers": [{"name": "engine", "image": "engine:1", "ports": [{"name": "gr", "containerPort": 9000}]}]}
}
PODS: dict[str, Any] = {
    **POOL,
    "metadata": {"name": "pods", "namespace": "default"},
    "spec": {**POOL["spec"], "instances": {"managed": {"template": TEMPLATE}}},
}


@dataclass(frozen=True)
class Cluster:
    """A control plane and a shell that reaches it by `helm` and `kubectl`."""

    plane: ControlPlane
    helm: Helm
    programs: Path

    def run(self, name: str) -> str:
        """Run one documented block; fails with its output."""
        text = next(text for how, what, text in documented_commands() if (how, what) == ("run", name))
        return self.shell(text)

    def shell(self, text: str) -> str:
        """Run commands in the checkout; fails with their output."""
        done = self._run(text)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _run(self, text: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.helm.environment(), "KUBECONFIG": str(self.plane.kubeconfig)}
        environment["PATH"] = f"{self.programs}{os.pathsep}{environment['PATH']}"
        command = ["bash", "-euc", text]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)

    def get(self, *arguments: str) -> Any:
        """Objects, or one, as `kubectl get -o json` has them."""
        return json.loads(self.plane.kubectl("get", *arguments, "-o", "json").stdout)

    def wait_for_kinds(self) -> None:
        """Wait until discovery lists the kinds, which is what helm and kubectl read; Established comes a moment earlier."""
        headers = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}

        def listed() -> int:
            groups = client.get("/apis", headers=headers).raise_for_status().json()["items"]
            ours = [version for group in groups if group["metadata"]["name"] == "grfleet.dev" for version in group["versions"]]
            return sum(len(version.get("resources", ())) for version in ours)

        with self.plane.client() as client:
            wait_for(lambda: listed() == 7)

    def install_kinds(self) -> None:
        """The documented way to have the kinds without a release."""
        kinds, _, _ = next(text for _, what, text in documented_commands() if what == "separate").rpartition("helm install")
        self.shell(kinds)
        self.wait_for_kinds()

    def apply(self, *objects: dict[str, Any]) -> None:
        """`kubectl apply` of each object."""
        for each in objects:
            self.plane.kubectl("apply", "-f", "-", input=json.dumps(each))

    def refusal(self, text: str) -> str:
        """What a command says that must fail."""
        done = self._run(text)
        assert done.returncode != 0, f"not refused: {text}"
        return done.stderr

    def policies(self) -> list[str]:
        """Kinds of the policies in the release's namespace."""
        return [each["kind"] for each in self.get("hbmp,rtp,pip", "-n", SYSTEM)["items"]]


def wait_for(look: Callable[[], Any], *, seconds: float = 90, says: Callable[[], str] = lambda: "") -> Any:
    """Poll until the look returns something true."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s; {says()}"
        time.sleep(0.1)
    return found


@contextmanager
def operator_of(cluster: Cluster, directory: Path, *, namespace: str = SYSTEM, name: str = "grfleet") -> Iterator[Path]:
    """Run the operator as the live Deployment says, under its ServiceAccount; gives the file with its log."""
    pod = cluster.get("deployment", name, "-n", namespace)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    known = {"POD_NAMESPACE": namespace, "POD_NAME": f"{name}-0"}
    arguments = [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], each) for each in container["args"]]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    on_loopback = ["--metrics-host=127.0.0.1", "--metrics-port=0"]  # a later flag wins; a test must not listen elsewhere
    kubeconfig = cluster.plane.service_account_kubeconfig(namespace, pod["serviceAccountName"])
    log = directory / f"operator-{namespace}.log"
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, str(ROOT / "operator" / "main.py"), *arguments, *on_loopback],
            cwd=directory,
            env={**os.environ, **variables, "KUBECONFIG": str(kubeconfig), "PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)},
            stdout=stream,
            stderr=stream,
        )
    try:
        yield log
        assert child.poll() is None, log.read_text()
    finally:
        child.terminate()
        child.wait(timeout=20)


def wait_until_it_is_ready_and_leads(cluster: Cluster, log: Path, *, namespace: str = SYSTEM) -> None:
    """Ready means that the preflight passed and every kind was listed; leading means that it could write its Lease."""
    lease = ("get", "lease", "grfleet-operator", "-n", namespace)

    def address() -> str | None:
        found = re.search(r'"address": ?"([^"]+)"', log.read_text())
        return found[1] if found else None

    where = wait_for(address, says=log.read_text)
    wait_for(lambda: httpx.get(f"http://{where}/readyz", timeout=5).status_code == 200, says=log.read_text)
    wait_for(lambda: cluster.plane.kubectl(*lease, check=False).returncode == 0, says=log.read_text)
