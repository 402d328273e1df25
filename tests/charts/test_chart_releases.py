"""Several releases, in one cluster or one after the other: who may serve what, and what is left to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chart_cluster import PODS, POOL, SYSTEM, Cluster, operator_of, wait_for, wait_until_it_is_ready_and_leads
from chart_tools import CLAIM

from controllers.runtime.rbac import Scope, grants

ELSEWHERE = "--set crds.enabled=false --create-namespace"


def pool_in(namespace: str) -> dict[str, Any]:
    return {**POOL, "metadata": {"name": "home", "namespace": namespace}}


def install(name: str, *serves: str) -> str:
    """A release `name` in the namespace of that name; serves these namespaces, or everything."""
    only = f"--set 'watchNamespaces={{{','.join(serves)}}}'" if serves else ""
    return f"helm install {name} charts/grfleet --namespace {name} {ELSEWHERE} {only}"


def claims(cluster: Cluster) -> set[tuple[str, str, str]]:
    """Kind, namespace and release of everything that says who serves."""
    items = cluster.get("roles,clusterroles", "-A")["items"]
    ours = [each for each in items if each["metadata"]["name"] == CLAIM]
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["annotations"]["meta.helm.sh/release-name"])
        for each in ours
    }


def versions(cluster: Cluster, namespace: str) -> dict[str, str]:
    """resourceVersion of all objects of ours in a namespace, Lease and claims included."""
    found = cluster.get("grp,gri,grt,configmaps,leases,roles,rolebindings", "-n", namespace)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in found}


def test_two_operators_serve_their_own_namespaces_side_by_side(cluster: Cluster, tmp_path: Path) -> None:
    cluster.install_kinds()
    cluster.shell("kubectl create namespace team-a && kubectl create namespace team-b")
    cluster.shell(install("one", "team-a"))
    cluster.shell(install("two", "team-b"))
    cluster.apply(pool_in("team-a"), pool_in("team-b"))
    with operator_of(cluster, tmp_path, namespace="one", name="one-grfleet") as log:
        wait_until_it_is_ready_and_leads(cluster, log, namespace="one")
        wait_for(lambda: cluster.get("gri", "-n", "team-a")["items"], says=log.read_text)
        assert not cluster.get("gri,grt,configmaps", "-n", "team-b", "--field-selector=metadata.name!=kube-root-ca.crt")[
            "items"
        ], "the second namespace is not its own"
        with operator_of(cluster, tmp_path, namespace="two", name="two-grfleet") as other:
            wait_until_it_is_ready_and_leads(cluster, other, namespace="two")
            wait_for(lambda: cluster.get("gri", "-n", "team-b")["items"], says=other.read_text)
    # With the first one gone, nothing in its namespace moves while the second one works.
    before = versions(cluster, "team-a"), versions(cluster, "one")
    with operator_of(cluster, tmp_path, namespace="two", name="two-grfleet") as other:
        wait_until_it_is_ready_and_leads(cluster, other, namespace="two")
        cluster.plane.kubectl("patch", "grp", "home", "-n", "team-b", "--type=merge", "-p", '{"spec":{"paused":true}}')
        wait_for(lambda: paused(cluster, "team-b"), says=other.read_text)
    assert (versions(cluster, "team-a"), versions(cluster, "one")) == before


def paused(cluster: Cluster, namespace: str) -> bool:
    status = cluster.get("grp", "home", "-n", namespace).get("status", {})
    return any(each["type"] == "Paused" and each["status"] == "True" for each in status.get("conditions", ()))


def test_a_second_release_for_what_is_served_already_is_refused_and_says_by_whom(cluster: Cluster) -> None:
    cluster.install_kinds()
    cluster.shell(install("one"))
    assert claims(cluster) == {("ClusterRole", "", "one")}
    said = cluster.refusal(install("two"))
    assert 'release "one" in namespace "one" serves the whole cluster already' in said
    assert "watchNamespaces" in said
    assert cluster.plane.kubectl("get", "deployment", "-n", "two", "--output=name").stdout == ""
    cluster.shell(f"helm upgrade one charts/grfleet --namespace one {ELSEWHERE} --set workers=4")
    cluster.shell("helm uninstall one --namespace one")
    assert claims(cluster) == set()
    cluster.shell(install("two"))


def test_releases_for_namespaces_meet_in_the_one_that_both_name(cluster: Cluster) -> None:
    cluster.install_kinds()
    cluster.shell("for name in a b c; do kubectl create namespace team-$name; done")
    cluster.shell(install("one", "team-a", "team-b"))
    assert claims(cluster) == {("Role", each, "one") for each in ("one", "team-a", "team-b")}
    assert "serves namespace team-b already" in cluster.refusal(install("two", "team-b", "team-c"))
    assert "serves namespace one already" in cluster.refusal(install("two", "one")), "an operator's own namespace is served too"
    cluster.shell(install("two", "team-c"))
    assert "serves some namespaces already" in cluster.refusal(install("three")), "and for the whole cluster it is too late"
    wider = f"helm upgrade two charts/grfleet --namespace two {ELSEWHERE} --set 'watchNamespaces={{team-c,team-a}}'"
    assert "serves namespace team-a already" in cluster.refusal(wider)
    cluster.shell(f"helm upgrade one charts/grfleet --namespace one {ELSEWHERE} --set 'watchNamespaces={{team-b}}'")
    cluster.shell(wider)
    assert claims(cluster) == {
        *(("Role", each, "one") for each in ("one", "team-b")),
        *(("Role", each, "two") for each in ("two", "team-a", "team-c")),
    }


def test_kinds_that_were_left_behind_go_to_another_name_only_when_asked(cluster: Cluster) -> None:
    cluster.shell(f"helm install grfleet charts/grfleet --namespace {SYSTEM} --create-namespace")
    cluster.wait_for_kinds()
    cluster.apply(pool_in("default"))
    uid = cluster.get("grp", "home", "-n", "default")["metadata"]["uid"]
    cluster.run("uninstall")
    renamed = "helm install renamed charts/grfleet --namespace elsewhere --create-namespace"
    assert "invalid ownership metadata" in cluster.refusal(renamed)
    cluster.run("take-ownership")
    owners = {each["metadata"]["annotations"]["meta.helm.sh/release-name"] for each in cluster.get("crd")["items"]}
    assert owners == {"renamed"}
    assert cluster.get("grp", "home", "-n", "default")["metadata"]["uid"] == uid
    cluster.shell("helm uninstall renamed --namespace elsewhere")
    assert cluster.get("grp", "home", "-n", "default")["metadata"]["uid"] == uid, "the new owner keeps them too"


def test_the_roles_of_a_namespaced_release_allow_everything_there_and_nothing_elsewhere(cluster: Cluster) -> None:
    cluster.install_kinds()
    cluster.shell("kubectl create namespace team-a")
    cluster.shell(install("one", "team-a"))
    account = "system:serviceaccount:one:one-grfleet"

    def allowed(namespace: str) -> set[tuple[str, str, str]]:
        command = ("auth", "can-i", "--list", "--no-headers", "--as", account, "-n", namespace)
        rows = [line.split() for line in cluster.plane.kubectl(*command).stdout.splitlines()]
        found = set()
        for row in rows:
            resource, _, subresource = row[0].partition("/")
            plural, _, group = resource.partition(".")
            verbs = " ".join(row).rpartition("[")[2].rstrip("]").split()
            found |= {(group, f"{plural}/{subresource}" if subresource else plural, verb) for verb in verbs}
        return found

    needed = {(rule.group, rule.resource, verb) for rule, verb in grants() if rule.scope is Scope.SERVED}
    assert {("", "pods", "patch"), ("apps", "deployments", "create"), ("apps", "deployments/scale", "patch")} <= needed
    assert needed <= allowed("team-a")
    assert needed <= allowed("one")
    assert not needed & allowed("default")
    secrets = {("", "secrets", verb) for verb in ("get", "create", "patch")}
    assert secrets <= allowed("one")
    assert not secrets & allowed("team-a"), "no secret of the teams"


def test_the_pods_of_a_pool_outlive_the_release_and_go_with_the_pool(cluster: Cluster, tmp_path: Path) -> None:
    cluster.install_kinds()
    cluster.shell("kubectl create namespace team-a")
    cluster.shell(f"{install('one', 'team-a')} --set agent.image.tag=tried")
    owned = ("deployments,poddisruptionbudgets", "-n", "team-a")
    with operator_of(cluster, tmp_path, namespace="one", name="one-grfleet") as log:
        wait_until_it_is_ready_and_leads(cluster, log, namespace="one")
        cluster.apply({**PODS, "metadata": {"name": "pods", "namespace": "team-a"}})
        wait_for(lambda: len(cluster.get(*owned)["items"]) == 2, says=log.read_text)
    [deployment] = cluster.get("deployments", "-n", "team-a")["items"]
    images = [each["image"] for each in deployment["spec"]["template"]["spec"]["initContainers"]]
    assert images == ["grfleet/agent:tried"], "the one that the values name"
    cluster.shell("helm uninstall one --namespace one")
    assert len(cluster.get(*owned)["items"]) == 2
    cluster.shell("kubectl delete grp pods --namespace team-a --timeout=20s")
    wait_for(lambda: not cluster.get(*owned)["items"])


def test_monitoring_objects_need_their_kinds_on_a_live_server_too(cluster: Cluster) -> None:
    cluster.install_kinds()
    assert "podMonitor.enabled needs the kind PodMonitor" in cluster.refusal(f"{install('one')} --set podMonitor.enabled=true")
