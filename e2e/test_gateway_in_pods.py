"""The gateway as the chart runs it: two pods of HAProxy and its agent in front of engine pods, under requests that never stop.

The gateway gets the raw user id, hashes it and looks it up; the caller knows from the published table who should answer. Nothing
is tried twice by the caller, so each answer that is missing was lost by the gateway or on the way to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_edge import QUICK, install, keep_key, kill, ready_pods, settled
from e2e_pool import Pool, managed_pool
from e2e_release import Object, Release
from e2e_traffic import Traffic, traffic

from testbed.debian import DebianError
from testbed.images import product
from testbed.node.cluster import LocalCluster
from testbed.node.provider import ClusterProvider
from testbed.patience import eventually

pytestmark = pytest.mark.journey
STATIC = {"strategy": "Static", "bounds": {"fallbackEmbPercent": 50}}


@pytest.fixture(scope="module")
def haproxy(cluster: ClusterProvider, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Values that name an image of HAProxy: that of this machine's packages, or where the cluster can pull, the official one."""
    if not isinstance(cluster, LocalCluster):
        return []
    try:
        archive, reference = product.build_haproxy(tmp_path_factory.mktemp("haproxy"), omit=cluster.base_layers)
    except DebianError as error:
        pytest.skip(f"no HAProxy: {error}")
    cluster.load_image(archive)
    repository, _, tag = reference.rpartition(":")
    image = "gateway.haproxy.image"
    return [f"{image}.repository={repository}", f"{image}.tag={tag}", f"{image}.pullPolicy=Never"]


@pytest.fixture(scope="module")
def pool(release: Release, haproxy: list[str]) -> Iterator[Pool]:
    with managed_pool(release, replicas=2, hbm_policy=STATIC, routing_policy=QUICK) as running:
        keep_key(running)
        running.wait_ready()
        named = [f"gateway.pools[0].{name}={value}" for name, value in {"name": "ranker", "namespace": running.namespace}.items()]
        quick = ["gateway.drainSeconds=15", "gateway.stopDelaySeconds=3", "gateway.pools[0].keySecret.name=user-key"]
        install(release, ["gateway.enabled=true", *named, *quick, *haproxy, *release.image_values("gateway.image", "agent")])
        try:
            settled(running)
            yield running
        finally:
            install(release, ["gateway.enabled=false"])


@pytest.fixture(scope="module")
def requests(pool: Pool) -> Iterator[Traffic]:
    # By address: a look-up of the name that is late would count as a lost request.
    address = pool.release.get("service", "ranker-gateway", "-n", pool.namespace)["spec"]["clusterIP"]
    with traffic(pool, gateway=f"http://{address}") as running:
        yield running


def gateways(pool: Pool) -> dict[str, Object]:
    return ready_pods(pool, "grfleet.dev/gateway=ranker", containers=2)


def why(pool: Pool) -> tuple[str, str]:
    logs = ("logs", "-l", "grfleet.dev/gateway=ranker", "-n", pool.namespace, "--all-containers", "--tail=20", "--prefix")
    return pool.release.cluster.kubectl(*logs, check=False).stdout, pool.release.why(pool.namespace)


def test_both_gateway_pods_are_ready_where_only_restricted_pods_may_run(pool: Pool) -> None:
    eventually(lambda: len(gateways(pool)) == 2, why=lambda: why(pool))


def test_each_user_is_answered_by_the_instance_that_the_table_names_whichever_gateway_was_asked(requests: Traffic) -> None:
    pool = requests.pool
    requests.until(lambda counts: set(counts.instances) == set(pool.pods()))
    before = requests.goes_on()
    after = requests.goes_on(requests=120)
    assert after.elsewhere == before.elsewhere, after
    assert after.failed == 0


def test_a_gateway_pod_that_is_deleted_costs_no_request_and_is_replaced(requests: Traffic) -> None:
    pool, before = requests.pool, requests.goes_on()
    old = set(gateways(pool))
    kill(pool, min(old))
    eventually(lambda: len(now := set(gateways(pool))) == 2 and min(old) not in now, why=lambda: why(pool))
    after = requests.goes_on(requests=120)
    assert after.failed == before.failed == 0, after


def test_a_killed_agent_of_a_gateway_costs_no_request(requests: Traffic) -> None:
    pool, before = requests.pool, requests.goes_on()
    name = min(gateways(pool))
    pool.release.cluster.kill_container(pool.namespace, name, "agent")

    def restarted() -> bool:
        found = pool.release.get("pod", name, "-n", pool.namespace)["status"]["containerStatuses"]
        agent = next(each for each in found if each["name"] == "agent")
        return bool(agent["restartCount"] == 1 and agent["ready"])

    eventually(restarted, why=lambda: why(pool))
    assert requests.goes_on().failed == before.failed == 0


def test_an_engine_pod_that_is_deleted_costs_no_request_and_its_successor_gets_users(requests: Traffic) -> None:
    pool, before = requests.pool, requests.goes_on()
    old = set(pool.pods())
    kill(pool, min(old))
    eventually(lambda: len(set(pool.pods()) - old) == 1, why=lambda: why(pool))
    pool.wait_ready()
    (new,) = set(pool.pods()) - old
    after = requests.until(lambda counts: counts.instances.get(new, 0) > 0, timeout_seconds=150)
    assert after.failed == before.failed == 0, (after, why(pool))


def test_the_gateway_of_a_deleted_pool_sends_nothing_any_more(requests: Traffic) -> None:
    pool = requests.pool
    pool.release.cluster.kubectl("delete", "grp", "ranker", "-n", pool.namespace, "--wait=false")

    def empty() -> bool:
        # Where the collector was first, there is none for a moment, and then a new one.
        found = pool.release.get("grt", "-n", pool.namespace)["items"]
        return [each.get("status", {}).get("instances") for each in found] == [[]]

    eventually(empty, why=lambda: why(pool))
    requests.until(lambda counts: "503" in counts.problems.get("gateway", ""))
