"""The documented commands, in their order, on a real API server; and the operator under what the chart has installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from chart_cluster import POOL, SYSTEM, Cluster, operator_of, wait_for, wait_until_it_is_ready_and_leads
from chart_tools import MONITORING_KINDS, POLICY_KINDS, ROOT, VARIANTS, documented_commands


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

    cluster.shell("kubectl create namespace feed")
    shown = cluster.run("gateway")
    assert "deployment.apps/ranker-gateway" in shown
    assert "service/ranker-gateway" in shown
    assert cluster.get("rtp", "default", "-n", SYSTEM)["spec"]["userKeySecret"]["name"] == "user-key"

    with operator_of(cluster, tmp_path) as log:
        wait_until_it_is_ready_and_leads(cluster, log)
        cluster.plane.kubectl("apply", "-f", "-", input=json.dumps(POOL))
        wait_for(lambda: cluster.get("gri", "-n", "default")["items"], says=log.read_text)
        patch = json.dumps({"spec": {"strategy": "Static"}})
        cluster.plane.kubectl("patch", "hbmp", "default", "-n", SYSTEM, "--type=merge", "-p", patch)
        cluster.run("upgrade")
        policy = cluster.get("hbmp", "default", "-n", SYSTEM)
        assert policy["spec"]["strategy"] == "Static", "as docs/operations.md has it: helm leaves what people patch"

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
    cluster.install_kinds()
    cluster.run("namespaced")
    assert min_emb_percent(cluster)[0] == 5
    names = {each["metadata"]["name"] for each in cluster.get("clusterroles,clusterrolebindings")["items"]}
    assert not [name for name in names if "grfleet" in name]
    cluster.run("second")
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
    cluster.install_kinds()
    install_monitoring_kinds(cluster)
    cluster.shell("kubectl create namespace team-a && kubectl create namespace team-b")
    for values in VARIANTS:
        name = f"v-{values.name.removesuffix('-values.yaml')}"
        cluster.shell(f"helm install {name} charts/grfleet -n {name} --create-namespace -f {values} --set crds.enabled=false")
        if name == "v-everything":
            assert sorted(each["kind"] for each in cluster.get(MONITORING, "-n", name)["items"]) == sorted(MONITORING_KINDS)
            wanted = yaml.safe_load(values.read_text())["policies"]
            live = {each["kind"]: each["spec"] for each in cluster.get("hbmp,rtp,pip", "-n", name)["items"]}
            assert live == dict(zip(POLICY_KINDS, (wanted["hbm"], wanted["routing"], wanted["preInference"]), strict=True))
        cluster.shell(f"helm uninstall {name} -n {name}")


MONITORING = ",".join(f"{kind.lower()}s.monitoring.coreos.com" for kind in MONITORING_KINDS)


def install_monitoring_kinds(cluster: Cluster) -> None:
    """The names of the Prometheus operator's kinds, with any content."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in MONITORING_KINDS:
        singular = kind.lower()
        spec = {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": f"{singular}s", "singular": singular, "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        }
        metadata = {"name": f"{singular}s.monitoring.coreos.com"}
        cluster.apply(
            {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}
        )
    cluster.shell("kubectl wait --for=condition=Established --timeout=30s crd --all")
    wait_for(lambda: cluster.plane.kubectl("get", MONITORING, "-A", check=False).returncode == 0)


def test_every_documented_block_is_run_or_says_why_not() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_chart_*.py"))
    for how, what, text in documented_commands():
        assert how, f"no marker above: {text}"
        if how == "run":
            assert f'"{what}"' in source, f"nothing runs the block {what}"
        else:
            assert what.startswith("needs "), what
