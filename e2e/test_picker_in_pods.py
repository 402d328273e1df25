"""The endpoint picker as the chart runs it: two pods that a real Envoy asks, before engine pods, under requests that never stop.

Envoy goes on by its own hash where it gets no pick, and then nobody says who answered. So a request that fails was lost, and one
whose answer bears no name was not picked. The caller knows from the published table who should have answered.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2e_edge import QUICK, install, keep_key, kill, ready_pods, settled
from e2e_envoy import ADMIN, CLOSED, NAME, OPEN, envoy, of_page
from e2e_pool import Pool, managed_pool
from e2e_release import Object, Release
from e2e_traffic import PER_SECOND, Counts, Traffic, traffic

from testbed.images import product
from testbed.node.cluster import LocalCluster
from testbed.node.provider import ClusterProvider, NotOfferedError
from testbed.patience import eventually
from testbed.wheels import WheelError

pytestmark = pytest.mark.journey
SELECTOR = "grfleet.dev/picker=ranker"
ACCOUNT = "ranker-picker"
STATIC = {"strategy": "Static", "bounds": {"fallbackEmbPercent": 50}}
# On a busy machine more than eight requests may be in flight for a moment, and the bound would spread them.
ROUTES = QUICK | {"boundedLoad": {"percent": 200, "floor": 1000}}


@pytest.fixture(scope="module")
def envoy_image(cluster: ClusterProvider, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of Envoy, on the node."""
    omit = cluster.base_layers if isinstance(cluster, LocalCluster) else ()
    try:
        archive, reference = product.build_envoy(tmp_path_factory.mktemp("envoy"), omit=omit)
    except WheelError as error:
        pytest.skip(f"no Envoy: {error}")
    cluster.load_image(archive)
    return reference


@pytest.fixture(scope="module")
def pool(release: Release, envoy_image: str) -> Iterator[Pool]:
    """A pool with an InferencePool, two pickers and an Envoy."""
    with managed_pool(release, replicas=2, hbm_policy=STATIC, routing_policy=ROUTES, before=in_front) as running:
        keep_key(running)
        release.apply(*envoy(running, envoy_image))
        named = [f"picker.pools[0].{name}={value}" for name, value in {"name": "ranker", "namespace": running.namespace}.items()]
        values = ["picker.enabled=true", *named, "picker.pools[0].keySecret.name=user-key"]
        install(release, [*values, *release.image_values("picker.image", "picker")])
        try:
            running.wait_ready()
            settled(running)
            yield running
        finally:
            install(release, ["picker.enabled=false"])


def in_front(pool: Pool) -> None:
    """Apply the InferencePool of the page, where that kind is served; the operator looks for it when it first sees a pool."""
    if not pool.release.serves_inference_pools:
        return
    pool.release.apply(of_page(pool.namespace, holds="kind: InferencePool"))


@pytest.fixture(scope="module")
def requests(pool: Pool) -> Iterator[Traffic]:
    release = pool.release
    eventually(lambda: release.is_ready(NAME, pool.namespace), why=lambda: why(pool))
    eventually(lambda: "x-gr-instance" in answer(pool, OPEN).headers, why=lambda: why(pool))
    # By the pod's address: a Service refuses connections for as long as a busy machine answers a probe too late.
    address = release.get("pod", NAME, "-n", pool.namespace)["status"]["podIP"]
    with traffic(pool, gateway=f"http://{address}:{OPEN}") as running:
        yield running


def answer(pool: Pool, port: int) -> httpx.Response:
    """What somebody is answered at a listener of Envoy."""
    with pool.release.cluster.reach(f"pod/{NAME}", port, namespace=pool.namespace) as url:
        return httpx.get(f"{url}/gr/v1/ready", headers={"x-user-id": "ann"}, trust_env=False, timeout=20)


def pickers(pool: Pool) -> dict[str, Object]:
    return ready_pods(pool, SELECTOR, containers=1)


def unpicked(counts: Counts) -> int:
    """Requests that Envoy sent on without a pick: nobody's name is in the answer."""
    return counts.instances.get("", 0)


def why(pool: Pool) -> tuple[str, str]:
    logs = [
        pool.release.cluster.kubectl("logs", *of, "-n", pool.namespace, "--tail=20", "--prefix", check=False).stdout
        for of in (("-l", SELECTOR), (f"pod/{NAME}",))
    ]
    with pool.release.cluster.reach(f"pod/{NAME}", ADMIN, namespace=pool.namespace) as url:
        stats = httpx.get(f"{url}/stats?usedonly&filter=picker|ext_proc|retry", trust_env=False).text
        clusters = httpx.get(f"{url}/clusters", trust_env=False).text
    return "\n".join((*logs, stats, clusters)), pool.release.why(pool.namespace)


def test_both_picker_pods_are_ready_where_only_restricted_pods_may_run(pool: Pool) -> None:
    eventually(lambda: len(pickers(pool)) == 2, why=lambda: why(pool))
    assert {pod["spec"]["serviceAccountName"] for pod in pickers(pool).values()} == {ACCOUNT}


def test_their_account_may_follow_tables_see_whether_the_pool_is_there_and_nothing_else(pool: Pool) -> None:
    def rights(account: str) -> set[str]:
        name = f"--as=system:serviceaccount:{pool.namespace}:{account}"
        return set(pool.release.cluster.kubectl("auth", "can-i", "--list", name, "-n", pool.namespace).stdout.splitlines())

    tables, pools = sorted(rights(ACCOUNT) - rights("default"))
    assert tables.split() == ["grroutingtables.grfleet.dev", "[]", "[]", "[get", "list", "watch]"]
    assert pools.split() == ["grservingpools.grfleet.dev", "[]", "[ranker]", "[get]"]


def test_the_inference_pool_that_names_the_picker_is_seen_and_fits(pool: Pool) -> None:
    if not pool.release.serves_inference_pools:
        raise NotOfferedError("the kind InferencePool is not served")

    def seen() -> object:
        return pool.release.get("grp", "ranker", "-n", pool.namespace)["status"].get("inferencePools")

    eventually(lambda: seen() == [{"name": "ranker", "state": "Fits", "picker": ACCOUNT, "ports": [8000]}], why=seen)


def test_each_user_is_answered_by_the_instance_that_the_table_names(requests: Traffic) -> None:
    pool = requests.pool
    eventually(lambda: set(requests.until(bool).instances) == set(pool.pods()), why=lambda: why(pool))
    after = requests.goes_on()
    assert (after.failed, after.elsewhere) == (0, 0), (after, why(pool))


def test_pickers_that_are_replaced_one_by_one_cost_neither_a_request_nor_a_pick(requests: Traffic) -> None:
    pool = requests.pool
    old = set(pickers(pool))
    pool.release.cluster.kubectl("rollout", "restart", f"deployment/{ACCOUNT}", "-n", pool.namespace)

    def replaced() -> bool:
        there = {each["metadata"]["name"] for each in pool.release.get("pods", "-n", pool.namespace, "-l", SELECTOR)["items"]}
        return len(pickers(pool)) == 2 and not there & old

    eventually(replaced, why=lambda: why(pool))
    after = requests.goes_on(requests=PER_SECOND)
    assert (after.failed, after.elsewhere) == (0, 0), (after, why(pool))


def test_an_engine_pod_that_is_deleted_costs_no_request_and_its_successor_gets_users(requests: Traffic) -> None:
    pool = requests.pool
    old = set(pool.pods())
    kill(pool, min(old))
    eventually(lambda: len(set(pool.pods()) - old) == 1, why=lambda: why(pool))
    (new,) = set(pool.pods()) - old
    after = requests.until(lambda counts: counts.instances.get(new, 0) > 0, timeout_seconds=150)
    assert (after.failed, unpicked(after)) == (0, 0), (after, why(pool))


def test_with_all_pickers_killed_envoy_goes_on_where_it_fails_open_and_refuses_where_it_fails_closed(requests: Traffic) -> None:
    pool = requests.pool
    cluster, space = pool.release.cluster, ("-n", pool.namespace)
    cluster.kubectl("scale", f"deployment/{ACCOUNT}", "--replicas=0", *space)
    cluster.kubectl("delete", "pods", "-l", SELECTOR, "--grace-period=0", "--force", *space)
    eventually(lambda: answer(pool, CLOSED).status_code in (500, 503), why=lambda: why(pool))  # the node ends them a moment later
    assert answer(pool, OPEN).status_code == 200
    assert requests.goes_on(requests=PER_SECOND).failed == 0

    cluster.kubectl("scale", f"deployment/{ACCOUNT}", "--replicas=2", *space)
    after = requests.until(lambda counts: unpicked(counts) == unpicked(requests.goes_on(requests=PER_SECOND)))
    assert after.failed == 0, (after, why(pool))
