"""The operator as the chart runs it: real pods, real probes, real leader election, and a pool that it serves from there."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2e_pool import Pool, pool_of_pods
from e2e_release import SYSTEM, Object, Release

from testbed.patience import eventually

STATIC = {"strategy": "Static", "bounds": {"fallbackEmbPercent": 40}, "step": {"maxPercentPerSecond": 50}}


@pytest.fixture(scope="module")
def pool(release: Release) -> Iterator[Pool]:
    with pool_of_pods(release, "a", "b", hbm_policy=STATIC) as running:
        running.wait_ready()
        yield running


def container_status(pod: Object) -> Object:
    (status,) = pod["status"]["containerStatuses"]
    return status


def test_two_replicas_run_with_green_probes_and_one_of_them_leads(release: Release) -> None:
    def both_ready() -> list[Object] | None:
        pods = release.operator_pods()
        return pods if len(pods) == 2 and all(container_status(pod)["ready"] for pod in pods) else None

    pods = eventually(both_ready, why=release.logs)  # at once, unless a test before this one has killed one
    assert [container_status(pod)["restartCount"] for pod in pods] == [0, 0]
    eventually(lambda: release.leader() in {pod["metadata"]["name"] for pod in pods}, why=release.logs)


def test_metrics_are_served_behind_the_charts_service(release: Release) -> None:
    (service,) = release.get("services", "-n", SYSTEM, "-l", "app.kubernetes.io/part-of=grfleet")["items"]
    port = service["spec"]["ports"][0]["port"]
    with release.cluster.reach(f"service/{service['metadata']['name']}", port, namespace=SYSTEM) as url:
        text = httpx.get(f"{url}/metrics", trust_env=False).text

    assert "controller_runtime_reconcile_total" in text


def test_a_pool_is_served_from_the_pod_its_split_settles_and_its_table_names_both_instances(pool: Pool) -> None:
    release = pool.release

    def published() -> set[str]:
        return {each["name"] for each in release.get("grt", "ranker", "-n", pool.namespace)["status"]["instances"]}

    eventually(lambda: published() == {"ranker-a", "ranker-b"}, why=lambda: release.why(pool.namespace))
    eventually(lambda: pool.emb_percent() == pytest.approx([40, 40], abs=2), why=lambda: release.why(pool.namespace))
    status = release.get("grp", "ranker", "-n", pool.namespace)["status"]
    assert (status["replicas"], status["instances"]["ready"]) == (2, 2)


def test_a_changed_policy_reaches_the_engines(pool: Pool) -> None:
    change = '{"spec": {"bounds": {"fallbackEmbPercent": 60}}}'
    pool.release.cluster.kubectl("patch", "hbmp", "split", "-n", pool.namespace, "--type=merge", "-p", change)

    eventually(
        lambda: pool.emb_percent() == pytest.approx([60, 60], abs=2),
        why=lambda: (pool.emb_percent(), pool.release.why(pool.namespace)),
        timeout_seconds=150,
    )


def test_a_killed_agent_comes_back_and_the_split_stays(pool: Pool) -> None:
    before = pool.emb_percent()

    pool.release.cluster.kill_container(pool.namespace, "a", "agent")

    def restarted() -> bool:
        (status,) = pool.release.get("pod", "a", "-n", pool.namespace)["status"]["initContainerStatuses"]
        return bool(status["restartCount"] == 1 and status["ready"])

    eventually(restarted, why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    assert pool.emb_percent() == pytest.approx(before, abs=2)


def test_when_the_leader_is_killed_the_other_replica_takes_over_and_serves_the_pool(pool: Pool) -> None:
    release = pool.release
    old = eventually(release.leader)
    generation = release.get("grt", "ranker", "-n", pool.namespace)["status"]["generation"]

    release.cluster.kubectl("delete", "pod", old, "-n", SYSTEM, "--grace-period=0", "--force")

    new = eventually(lambda: (name := release.leader()) != old and name, why=release.logs)
    eventually(lambda: len([p for p in release.operator_pods() if container_status(p)["ready"]]) == 2, why=release.logs)
    assert new
    pool.wait_ready()
    assert release.get("grt", "ranker", "-n", pool.namespace)["status"]["generation"] >= generation


def test_the_operator_was_never_refused_by_the_roles_of_the_chart(pool: Pool) -> None:
    """A namespace that is being deleted refuses everybody; that is no role's doing."""
    said = pool.release.logs()

    refused = [line for line in said.lower().splitlines() if "forbidden" in line and "being terminated" not in line]
    assert not refused
    assert '"level": "CRITICAL"' not in said
