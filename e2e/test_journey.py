"""One fleet from its installation to its reinstallation, step by step, under requests that never stop.

The steps run in this order on one release and one managed pool; each leaves the fleet as the next one expects it. A request that
gets no answer fails the step in which it happened, whatever was being killed, added, drained or replaced meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from e2e_pool import Pool, apply_managed, managed_pool
from e2e_release import SYSTEM, Object, Release
from e2e_traffic import Traffic, traffic

from testbed.patience import eventually

pytestmark = pytest.mark.journey
BRISK = {"strategy": "MissRatioCurve", "step": {"maxPercentPerSecond": 20, "deadbandPercent": 1, "intervalMs": 500}}
# Users move at once, new instances count as warm soon, leaving ones are not waited for long.
QUICK = {
    "churn": {"maxMovedPercent": 100, "windowSeconds": 1},
    "warmup": {"maxSeconds": 5},
    "drain": {"deadlineSeconds": 15},
}


@pytest.fixture(scope="module")
def pool(release: Release) -> Iterator[Pool]:
    with managed_pool(release, replicas=2, hbm_policy=BRISK, routing_policy=QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def requests(pool: Pool) -> Iterator[Traffic]:
    pool.wait_ready()
    with traffic(pool) as running:
        yield running


def identities(pool: Pool) -> dict[str, str]:
    """Name and uid of every object of the pool that people or the operator wrote, and of its pods."""
    found = pool.release.get("grp,gri,grt,hbmp,rtp,deployments,pods", "-n", pool.namespace)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["uid"] for each in found}


def patch(pool: Pool, kind: str, name: str, spec: Object) -> None:
    change = json.dumps({"spec": spec})
    pool.release.cluster.kubectl("patch", kind, name, "-n", pool.namespace, "--type=merge", "-p", change)


def emb_percent_becomes(pool: Pool, low: float, high: float, *, instances: int = 2) -> None:
    """Wait until the split of every instance lies between two percentages; slow machines take long to trust an estimate."""
    eventually(
        lambda: len(found := pool.emb_percent()) == instances and low <= min(found) and max(found) <= high,
        why=lambda: (pool.emb_percent(), pool.release.why(pool.namespace)),
        timeout_seconds=180,
    )


def has_restarted(pool: Pool, pod: str, of: str) -> bool:
    """Whether the one container of such a list (`containerStatuses`, ...) has started again once and is ready."""
    (status,) = pool.release.get("pod", pod, "-n", pool.namespace)["status"][of]
    return (status["restartCount"], status["ready"]) == (1, True)


# Begin -----------------------------------------------------------------------------------------------------------------


def test_installed_two_operators_are_ready_and_one_leads(release: Release) -> None:
    pods = release.operator_pods()

    assert len(pods) == 2
    assert all(status["ready"] for pod in pods for status in pod["status"]["containerStatuses"])
    eventually(lambda: release.leader() in {pod["metadata"]["name"] for pod in pods}, why=release.logs)


def test_an_applied_pool_gets_pods_with_the_agent_beside_the_engine_and_becomes_ready(pool: Pool) -> None:
    pool.wait_ready()

    pods = pool.pods()
    assert len(pods) == 2
    for pod in pods.values():
        assert [each["name"] for each in pod["spec"]["initContainers"]] == ["grfleet-agent"]
    eventually(lambda: pool.serving() == set(pods), why=lambda: pool.release.why(pool.namespace))
    assert pool.emb_percent() == pytest.approx([50, 50], abs=2)


def test_a_caller_in_a_pod_follows_the_table_and_every_instance_serves(requests: Traffic) -> None:
    counts = requests.until(lambda counts: len(counts.instances) == 2 and counts.answered > 50)

    assert set(counts.instances) == set(requests.pool.pods())
    assert counts.failed == 0


# The split -------------------------------------------------------------------------------------------------------------


def test_under_returning_users_the_split_moves_to_the_kv_cache(requests: Traffic) -> None:
    emb_percent_becomes(requests.pool, 5, 35)


def test_changed_bounds_hold_the_split_back(requests: Traffic) -> None:
    patch(requests.pool, "hbmp", "split", {"bounds": {"minEmbPercent": 45}})

    emb_percent_becomes(requests.pool, 43, 60)


# What is killed --------------------------------------------------------------------------------------------------------


def test_a_killed_engine_comes_back_and_its_users_are_served_elsewhere_meanwhile(requests: Traffic) -> None:
    pool, name = requests.pool, min(requests.pool.pods())
    before = requests.goes_on()

    pool.release.cluster.kill_container(pool.namespace, name, "engine")

    eventually(lambda: has_restarted(pool, name, "containerStatuses"), why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    requests.until(lambda counts: counts.instances[name] > before.instances[name])
    assert requests.goes_on().failed == before.failed


def test_a_killed_agent_comes_back_and_no_request_gets_lost(requests: Traffic) -> None:
    pool, name = requests.pool, max(requests.pool.pods())
    before = requests.goes_on()

    pool.release.cluster.kill_container(pool.namespace, name, "grfleet-agent")

    eventually(lambda: has_restarted(pool, name, "initContainerStatuses"), why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    assert requests.goes_on().failed == before.failed


def test_a_killed_leader_is_followed_by_the_other_operator_and_no_request_notices(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before, old = requests.goes_on(), eventually(release.leader)

    release.cluster.kubectl("delete", "pod", old, "-n", SYSTEM, "--grace-period=0", "--force")

    eventually(lambda: release.leader() not in ("", old), why=release.logs)
    pool.wait_ready()
    requests.undisturbed_since(before)


# What comes and goes ---------------------------------------------------------------------------------------------------


def test_scaled_up_by_kubectl_the_new_instance_gets_users(requests: Traffic) -> None:
    pool, before, old = requests.pool, requests.goes_on(), set(requests.pool.pods())

    pool.release.cluster.kubectl("scale", "grp", "ranker", "-n", pool.namespace, "--replicas=3")

    eventually(lambda: len(pool.pods()) == 3, why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    (new,) = set(pool.pods()) - old
    requests.until(lambda counts: counts.instances.get(new, 0) > 0)
    requests.undisturbed_since(before)


def test_scaled_down_an_instance_leaves_when_it_is_drained_and_no_request_notices(requests: Traffic) -> None:
    pool, before, old = requests.pool, requests.goes_on(), set(requests.pool.pods())

    pool.release.cluster.kubectl("scale", "grp", "ranker", "-n", pool.namespace, "--replicas=2")

    eventually(lambda: len(pool.pods()) == 2, why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    assert set(pool.pods()) < old
    eventually(lambda: pool.serving() == set(pool.pods()), why=lambda: pool.release.why(pool.namespace))
    requests.undisturbed_since(before)


def test_another_model_version_replaces_the_pods_one_by_one_and_no_request_notices(requests: Traffic) -> None:
    pool, before, old = requests.pool, requests.goes_on(), set(requests.pool.pods())

    apply_managed(pool, replicas=2, version="2")

    def replaced() -> bool:
        pods = pool.pods()
        return len(pods) == 2 and {pod["metadata"]["labels"]["grfleet.dev/model-version"] for pod in pods.values()} == {"2"}

    eventually(replaced, why=lambda: pool.release.why(pool.namespace), timeout_seconds=180)
    pool.wait_ready()
    assert not old & set(pool.pods())
    eventually(lambda: pool.serving() == set(pool.pods()), why=lambda: pool.release.why(pool.namespace))
    requests.undisturbed_since(before)


# End -------------------------------------------------------------------------------------------------------------------


def test_uninstalled_the_objects_and_pods_survive_and_requests_are_served_on(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before, objects = requests.goes_on(), identities(pool)

    release.uninstall()

    assert not release.operator_pods()
    assert identities(pool) == objects
    requests.undisturbed_since(before, requests=200)


def test_reinstalled_the_operator_takes_over_what_is_there(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before, objects = requests.goes_on(), identities(pool)

    release.install()

    eventually(lambda: release.leader() in {pod["metadata"]["name"] for pod in release.operator_pods()}, why=release.logs)
    patch(pool, "hbmp", "split", {"bounds": {"minEmbPercent": 60, "fallbackEmbPercent": 60}})
    emb_percent_becomes(pool, 58, 100)
    pool.wait_ready()
    after = identities(pool)
    gone = objects.keys() - after.keys()
    assert after.items() <= objects.items(), "nothing was made anew"
    assert not {name for name in gone if f"Pod/{name.partition('/')[2]}" in objects}, "only instances whose pods had gone may go"
    requests.undisturbed_since(before)
