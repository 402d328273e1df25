"""One fleet from its installation to its reinstallation, step by step, under requests that never stop.

The steps run in this order on one release and one pool; each leaves the fleet as the next one expects it. A request that gets no
answer fails the step in which it happened, whatever was being killed meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from e2e_pool import Pool, pool_of_pods
from e2e_release import SYSTEM, Object, Release, eventually
from e2e_traffic import Traffic, traffic

pytestmark = pytest.mark.journey
BRISK = {"strategy": "MissRatioCurve", "step": {"maxPercentPerSecond": 20, "deadbandPercent": 1, "intervalMs": 500}}


@pytest.fixture(scope="module")
def pool(release: Release) -> Iterator[Pool]:
    with pool_of_pods(release, "a", "b", hbm_policy=BRISK) as running:
        yield running


@pytest.fixture(scope="module")
def requests(pool: Pool) -> Iterator[Traffic]:
    pool.wait_ready()
    with traffic(pool) as running:
        yield running


def identities(pool: Pool) -> dict[str, str]:
    """Name and uid of every object of the pool that people or the operator wrote."""
    found = pool.release.get("grp,gri,grt,hbmp", "-n", pool.namespace)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["uid"] for each in found}


def restarts(pool: Pool, pod: str, of: str) -> int:
    """How often the one container of such a list (`containerStatuses`, ...) has started again; -1 while it is not ready."""
    (status,) = pool.release.get("pod", pod, "-n", pool.namespace)["status"][of]
    return int(status["restartCount"]) if status["ready"] else -1


def test_installed_two_operators_are_ready_and_one_leads(release: Release) -> None:
    pods = release.operator_pods()

    assert len(pods) == 2
    assert all(status["ready"] for pod in pods for status in pod["status"]["containerStatuses"])
    eventually(lambda: release.leader() in {pod["metadata"]["name"] for pod in pods}, why=release.logs)


def test_applied_the_pool_gets_ready(pool: Pool) -> None:
    pool.wait_ready()

    assert pool.emb_percent() == pytest.approx([50, 50], abs=2)


def test_a_caller_in_a_pod_follows_the_table_and_every_instance_serves(requests: Traffic) -> None:
    counts = requests.goes_on()

    assert set(counts.instances) == {"ranker-a", "ranker-b"}
    assert counts.failed == 0


def test_under_returning_users_the_split_moves_to_the_kv_cache(requests: Traffic) -> None:
    pool = requests.pool
    eventually(
        lambda: len(pool.emb_percent()) == 2 and max(pool.emb_percent()) < 35,
        why=lambda: (pool.emb_percent(), requests.counts(), pool.release.why(pool.namespace)),
        timeout_seconds=120,
    )


def test_changed_bounds_hold_the_split_back(requests: Traffic) -> None:
    pool = requests.pool
    bounds = '{"spec": {"bounds": {"minEmbPercent": 45}}}'
    pool.release.cluster.kubectl("patch", "hbmp", "split", "-n", pool.namespace, "--type=merge", "-p", bounds)

    eventually(
        lambda: len(pool.emb_percent()) == 2 and min(pool.emb_percent()) > 43,
        why=lambda: (pool.emb_percent(), pool.release.why(pool.namespace)),
        timeout_seconds=60,
    )


def test_a_killed_engine_comes_back_and_its_users_are_served_elsewhere_meanwhile(requests: Traffic) -> None:
    pool = requests.pool
    before = requests.goes_on()

    pool.release.cluster.kill_container(pool.namespace, "a", "engine")

    eventually(lambda: restarts(pool, "a", "containerStatuses") == 1, why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    requests.until(lambda counts: counts.instances["ranker-a"] > before.instances["ranker-a"])
    assert requests.goes_on().failed == before.failed


def test_a_killed_agent_comes_back_and_no_request_notices(requests: Traffic) -> None:
    pool = requests.pool
    before = requests.goes_on()

    pool.release.cluster.kill_container(pool.namespace, "b", "agent")

    eventually(lambda: restarts(pool, "b", "initContainerStatuses") == 1, why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    requests.undisturbed_since(before)


def test_a_killed_leader_is_followed_by_the_other_operator_and_no_request_notices(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before, old = requests.goes_on(), eventually(release.leader)

    release.cluster.kubectl("delete", "pod", old, "-n", SYSTEM, "--grace-period=0", "--force")

    eventually(lambda: release.leader() not in ("", old), why=release.logs)
    pool.wait_ready()
    requests.undisturbed_since(before)


def test_uninstalled_the_objects_survive_and_requests_are_served_on(requests: Traffic) -> None:
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
    change: Object = {"spec": {"bounds": {"minEmbPercent": 60, "fallbackEmbPercent": 60}}}
    pool.release.cluster.kubectl("patch", "hbmp", "split", "-n", pool.namespace, "--type=merge", "-p", json.dumps(change))
    eventually(
        lambda: len(pool.emb_percent()) == 2 and min(pool.emb_percent()) > 58,
        why=lambda: (pool.emb_percent(), release.why(pool.namespace)),
        timeout_seconds=90,
    )
    pool.wait_ready()
    assert identities(pool) == objects
    requests.undisturbed_since(before)
