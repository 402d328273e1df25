"""The documented commands, in their order, on a real API server; and the operator under what the chart has installed.

The server has no nodes, so the test stands in for the kubelet: it starts the operator with the flags of the live
Deployment and a token of the live ServiceAccount.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from chart_tools import ROOT, Helm, documented_commands

from testbed.control_plane import ControlPlane

SYSTEM = "grfleet-system"
POOL = {
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
        """Run commands in the checkout."""
        environment = {**self.helm.environment(), "KUBECONFIG": str(self.plane.kubeconfig)}
        environment["PATH"] = f"{self.programs}{os.pathsep}{environment['PATH']}"
        command = ["bash", "-euc", text]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

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

    def policies(self) -> list[str]:
        """Kinds of the policies in the release's namespace."""
        return [each["kind"] for each in self.get("hbmp,rtp,pip", "-n", SYSTEM)["items"]]


@pytest.fixture
def cluster(own_control_plane: ControlPlane, helm: Helm, tmp_path: Path) -> Cluster:
    """A control plane on which nothing was installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").symlink_to(helm.program)
    (programs / "kubectl").symlink_to(own_control_plane.binaries["kubectl"])
    return Cluster(own_control_plane, helm, programs)


def wait_for(look: Callable[[], Any], *, seconds: float = 40, says: Callable[[], str] = lambda: "") -> Any:
    """Poll until the look returns something true."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s; {says()}"
        time.sleep(0.1)
    return found


@contextmanager
def operator_of(cluster: Cluster, directory: Path) -> Iterator[Path]:
    """Run the operator as the live Deployment says, under its ServiceAccount; gives the file with its log."""
    pod = cluster.get("deployment", "grfleet", "-n", SYSTEM)["spec"]["template"]["spec"]
    known = {"POD_NAMESPACE": SYSTEM, "POD_NAME": "grfleet-0"}
    arguments = [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], each) for each in pod["containers"][0]["args"]]
    on_loopback = ["--metrics-host=127.0.0.1", "--metrics-port=0"]  # a later flag wins; a test must not listen elsewhere
    kubeconfig = cluster.plane.service_account_kubeconfig(SYSTEM, pod["serviceAccountName"])
    log = directory / "operator.log"
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, str(ROOT / "operator" / "main.py"), *arguments, *on_loopback],
            cwd=directory,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)},
            stdout=stream,
            stderr=stream,
        )
    try:
        yield log
        assert child.poll() is None, log.read_text()
    finally:
        child.terminate()
        child.wait(timeout=20)


def wait_until_it_is_ready_and_leads(cluster: Cluster, log: Path, *, lease: str = "grfleet-operator") -> None:
    """Ready means that the preflight passed and every kind was listed; leading means that it could write its Lease."""

    def address() -> str | None:
        found = re.search(r'"address": ?"([^"]+)"', log.read_text())
        return found[1] if found else None

    where = wait_for(address, says=log.read_text)
    wait_for(lambda: httpx.get(f"http://{where}/readyz", timeout=5).status_code == 200, says=log.read_text)
    wait_for(lambda: cluster.plane.kubectl("get", "lease", lease, "-n", SYSTEM, check=False).returncode == 0, says=log.read_text)


def min_emb_percent(cluster: Cluster) -> tuple[int, str]:
    policy = cluster.get("hbmp", "default", "-n", SYSTEM)
    return policy["spec"]["bounds"]["minEmbPercent"], policy["metadata"]["uid"]


def test_a_release_from_nothing_to_tuned_to_gone_as_documented(cluster: Cluster, tmp_path: Path) -> None:
    notes = cluster.run("install")
    assert "The default policies are NOT there yet" in notes
    cluster.wait_for_kinds()
    assert cluster.policies() == []

    cluster.run("policies")
    assert sorted(cluster.policies()) == ["HBMPolicy", "PreInferencePolicy", "RoutingPolicy"]
    before = min_emb_percent(cluster)
    assert before[0] == 5

    cluster.run("tune")
    assert min_emb_percent(cluster) == (20, before[1]), "changed in place, not made anew"
    cluster.run("rollback")
    assert min_emb_percent(cluster) == before

    with operator_of(cluster, tmp_path) as log:
        wait_until_it_is_ready_and_leads(cluster, log)
        cluster.plane.kubectl("apply", "-f", "-", input=json.dumps(POOL))
        wait_for(lambda: cluster.get("gri", "-n", "default")["items"], says=log.read_text)
        cluster.run("upgrade")

    cluster.run("uninstall")
    assert cluster.get("grp", "home", "-n", "default")["spec"]["memory"]["hbmBytes"] == "1Gi"
    assert not cluster.get(
        "hbmp,rtp,pip,deployments,serviceaccounts,roles", "-n", SYSTEM, "-l", "app.kubernetes.io/part-of=grfleet"
    )["items"]
    cluster.shell(f"helm install grfleet charts/grfleet --namespace {SYSTEM}")
    assert min_emb_percent(cluster)[0] == 5, "where the kinds are known one command is enough"
    assert cluster.get("grp", "home", "-n", "default")

    cluster.run("uninstall")
    cluster.run("remove")
    assert cluster.plane.kubectl("get", "grp", "-A", check=False).returncode != 0


def test_a_namespaced_release_serves_with_roles_only(cluster: Cluster, tmp_path: Path) -> None:
    kinds, _, _ = next(text for _, what, text in documented_commands() if what == "separate").rpartition("helm install")
    cluster.shell(kinds)
    cluster.wait_for_kinds()
    cluster.run("namespaced")
    assert min_emb_percent(cluster)[0] == 5
    names = {each["metadata"]["name"] for each in cluster.get("clusterroles,clusterrolebindings")["items"]}
    assert not [name for name in names if "grfleet" in name]
    with operator_of(cluster, tmp_path) as log:
        wait_until_it_is_ready_and_leads(cluster, log)
        served, other = ({**POOL, "metadata": {"name": "home", "namespace": name}} for name in ("team-a", "default"))
        for pool in (other, served):
            cluster.plane.kubectl("apply", "-f", "-", input=json.dumps(pool))
        wait_for(lambda: cluster.get("gri", "-n", "team-a")["items"], says=log.read_text)
        assert not cluster.get("gri", "-n", "default")["items"]


def test_one_command_is_enough_where_the_kinds_are_there_and_pods_pass_restricted_admission(cluster: Cluster) -> None:
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    cluster.shell(f"kubectl create namespace {SYSTEM} && kubectl label namespace {SYSTEM} {enforce}")
    cluster.run("separate")
    assert min_emb_percent(cluster)[0] == 5
    pods = wait_for(lambda: len(found := cluster.get("pods", "-n", SYSTEM)["items"]) == 2 and found)
    assert {pod["status"]["phase"] for pod in pods} == {"Pending"}
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"grfleet"}


def test_an_upgrade_brings_the_kinds_of_the_new_release(cluster: Cluster, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(ROOT / "charts" / "grfleet", older)
    crd = older / "files" / "crds" / "hbmpolicies.yaml"
    crd.write_text(crd.read_text().replace("- hbmp\n", "- older\n"))
    cluster.shell(f"helm install grfleet {older} --namespace {SYSTEM} --create-namespace")
    assert short_names(cluster) == ["older"]
    cluster.run("upgrade")
    assert short_names(cluster) == ["hbmp"]


def short_names(cluster: Cluster) -> Any:
    return cluster.get("crd", "hbmpolicies.grfleet.dev")["spec"]["names"]["shortNames"]


def test_people_get_the_rights_of_their_cluster_role(cluster: Cluster) -> None:
    cluster.run("separate")
    for role in ("view", "edit", "admin"):
        cluster.shell(f"kubectl create rolebinding {role} --clusterrole {role} --user {role} --namespace default")

    def may(user: str, verb: str, plural: str) -> bool:
        question = ("auth", "can-i", verb, f"{plural}.grfleet.dev", "--as", user, "-n", "default")
        return cluster.plane.kubectl(*question, check=False).stdout.strip() == "yes"

    wait_for(lambda: may("admin", "delete", "grinstances"))  # the controllers gather the rules a moment later
    assert may("view", "list", "grroutingtables")
    assert not may("view", "create", "grservingpools")
    assert may("edit", "create", "grservingpools")
    assert not may("edit", "delete", "grinstances")


def test_every_variant_is_accepted_by_the_server(cluster: Cluster) -> None:
    cluster.shell(next(text for _, what, text in documented_commands() if what == "separate").rpartition("helm install")[0])
    cluster.wait_for_kinds()
    cluster.shell("kubectl create namespace team-a && kubectl create namespace team-b")
    for values in sorted((ROOT / "charts/grfleet/ci").glob("*-values.yaml")):
        flags = "--set crds.enabled=false --set metrics.serviceMonitor.enabled=false"
        name = f"v-{values.name.removesuffix('-values.yaml')}"
        cluster.shell(f"helm install {name} charts/grfleet -n {name} --create-namespace -f {values} {flags}")
        cluster.shell(f"helm uninstall {name} -n {name}")


def test_every_documented_block_is_run_or_says_why_not() -> None:
    source = Path(__file__).read_text()
    for how, what, text in documented_commands():
        assert how, f"no marker above: {text}"
        if how == "run":
            assert f'"{what}"' in source, f"nothing runs the block {what}"
        else:
            assert what.startswith("needs "), what
