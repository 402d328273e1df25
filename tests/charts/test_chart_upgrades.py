"""Upgrades with live objects: from the release before, back again, and one that fails in the middle.

`released/grfleet-0.1.0.tgz` is the chart as it was packaged (`helm package`) before pools had pods. A new release leaves its
own package there, so that the next one is tried against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chart_cluster import PODS, POOL, SYSTEM, TEMPLATE, Cluster, wait_for
from chart_tools import POLICY_KINDS

RELEASED = Path(__file__).parent / "released" / "grfleet-0.1.0.tgz"
HERE = f"--namespace {SYSTEM}"
UPGRADE = f"helm upgrade grfleet charts/grfleet {HERE} --reset-then-reuse-values"
INSTANCE = {
    "apiVersion": "grfleet.dev/v1alpha1",
    "kind": "GRInstance",
    "metadata": {"name": "home-0", "namespace": "default"},
    "spec": {
        "poolRef": "home",
        "source": {"kind": "External", "serviceURL": "http://127.0.0.1:9", "agentURL": "http://127.0.0.1:9"},
    },
}
KINDS = ("grp,gri", "-A")


def install_the_release_before(cluster: Cluster, *flags: str) -> None:
    """Both documented commands with the old chart, then objects of every kind that people and loops write."""
    chosen = " ".join(flags)
    cluster.shell(f"helm install grfleet {RELEASED} {HERE} --create-namespace {chosen}")
    cluster.wait_for_kinds()
    cluster.shell(f"helm upgrade grfleet {RELEASED} {HERE} --reset-then-reuse-values")
    assert sorted(cluster.policies()) == sorted(POLICY_KINDS)
    cluster.apply(POOL, PODS, INSTANCE)


def stored(cluster: Cluster) -> dict[str, tuple[str, str, str]]:
    """What must not change of an object that nobody writes; the release's own policies take its new values."""
    people, chart = cluster.get(*KINDS)["items"], cluster.get("hbmp,rtp,pip", "-A")["items"]
    found = {f"{each['kind']}/{each['metadata']['name']}": identity(each) for each in people}
    return found | {f"{each['kind']}/{each['metadata']['name']}": (*identity(each)[:2], "") for each in chart}


def identity(each: dict[str, Any]) -> tuple[str, str, str]:
    return each["metadata"]["namespace"], each["metadata"]["uid"], each["metadata"]["resourceVersion"]


def kinds(cluster: Cluster) -> dict[str, str]:
    found = {each["metadata"]["name"]: each["metadata"]["uid"] for each in cluster.get("crd")["items"]}
    assert len(found) == 7
    return found


def managed(cluster: Cluster) -> dict[str, Any]:
    result: dict[str, Any] = cluster.get("grp", "pods", "-n", "default")["spec"]["instances"]["managed"]
    return result


def test_an_upgrade_of_the_kinds_and_back_keeps_every_object(cluster: Cluster) -> None:
    install_the_release_before(cluster)
    before, names = stored(cluster), kinds(cluster)
    assert "rollout" not in managed(cluster), "the release before did not know it"

    cluster.shell(UPGRADE)
    wait_for(lambda: "rollout" in managed(cluster))
    assert managed(cluster)["rollout"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert managed(cluster)["disruption"] == {"maxUnavailable": 1}
    assert stored(cluster) == before, "a default is read, not written"

    draining = {"spec": {"drain": {"reason": "ScaleDown", "startedAt": "2026-01-01T00:00:00Z", "deadlineSeconds": 60}}}
    cluster.plane.kubectl("patch", "gri", "home-0", "-n", "default", "--type=merge", "-p", json.dumps(draining))
    assert "drain" in cluster.get("gri", "home-0", "-n", "default")["spec"]

    cluster.shell(f"helm rollback grfleet 2 {HERE}")
    wait_for(lambda: "rollout" not in managed(cluster))
    after = stored(cluster)
    assert {name: each[:2] for name, each in after.items()} == {name: each[:2] for name, each in before.items()}
    assert kinds(cluster) == names
    assert "drain" not in cluster.get("gri", "home-0", "-n", "default")["spec"], "the older kind does not show it"
    assert managed(cluster)["template"] == TEMPLATE

    cluster.shell(UPGRADE)
    wait_for(lambda: "rollout" in managed(cluster))
    assert "drain" in cluster.get("gri", "home-0", "-n", "default")["spec"], "it was not written over, so it is still there"
    assert stored(cluster) == after


def test_an_atomic_upgrade_that_the_server_refuses_is_taken_back_with_its_kinds(cluster: Cluster) -> None:
    install_the_release_before(cluster, "--set replicas=0")  # nothing here could make pods ready, and --atomic waits for them
    before, names = stored(cluster), kinds(cluster)
    crossed = (
        "policies.hbm.bounds.minEmbPercent=60,policies.hbm.bounds.maxEmbPercent=50,policies.hbm.bounds.fallbackEmbPercent=55"
    )
    said = cluster.refusal(f"{UPGRADE} --atomic --timeout 60s --set logLevel=DEBUG,{crossed}")
    assert "minEmbPercent" in said, "the server's message names the field"
    assert "rolled back due to atomic being set" in said

    history = json.loads(cluster.shell(f"helm history grfleet {HERE} --output json"))
    assert [each["status"] for each in history] == ["superseded", "superseded", "failed", "deployed"]
    container = cluster.get("deployment", "grfleet", "-n", SYSTEM)["spec"]["template"]["spec"]["containers"][0]
    assert "--log-level=INFO" in container["args"]
    assert not [each for each in container["env"] if each["name"].startswith("GRFLEET_")], "the Deployment of the release before"
    assert cluster.get("hbmp", "default", "-n", SYSTEM)["spec"]["bounds"]["minEmbPercent"] == 5
    assert stored(cluster) == before
    assert kinds(cluster) == names
    wait_for(lambda: "rollout" not in managed(cluster))

    cluster.shell(f"{UPGRADE} --atomic --timeout 60s")
    wait_for(lambda: "rollout" in managed(cluster))
    assert stored(cluster) == before


def test_an_atomic_upgrade_whose_pods_never_get_ready_is_taken_back(cluster: Cluster) -> None:
    install_the_release_before(cluster, "--set replicas=0")
    before = stored(cluster)
    said = cluster.refusal(f"{UPGRADE} --atomic --timeout 10s --set replicas=1,image.tag=missing")
    assert "rolled back due to atomic being set" in said
    deployment = cluster.get("deployment", "grfleet", "-n", SYSTEM)["spec"]
    assert deployment["replicas"] == 0
    assert deployment["template"]["spec"]["containers"][0]["image"] == "grfleet/operator:0.1.0"
    wait_for(lambda: "rollout" not in managed(cluster))
    assert stored(cluster) == before


def test_a_failed_upgrade_without_atomic_leaves_the_objects_and_the_next_one_mends_it(cluster: Cluster) -> None:
    install_the_release_before(cluster)
    before = stored(cluster)
    account = "serviceAccount.annotations.bad=x,commonLabels.bad=-not-a-label-"
    assert "label" in cluster.refusal(f"{UPGRADE} --set {account}")
    last = json.loads(cluster.shell(f"helm history grfleet {HERE} --output json"))[-1]
    assert last["status"] == "failed"
    assert stored(cluster) == before
    cluster.shell(f"helm upgrade grfleet charts/grfleet {HERE} --reset-values")
    wait_for(lambda: "rollout" in managed(cluster))
    assert {name: each[:2] for name, each in stored(cluster).items()} == {name: each[:2] for name, each in before.items()}
