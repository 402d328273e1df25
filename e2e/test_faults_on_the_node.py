"""What breaks on a node, and what may be killed beside it, under requests that never stop: none may go without an answer.

The faults come one after the other upon one managed pool; each step leaves it as it found it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import Pool, managed_pool
from e2e_release import ROOT, SYSTEM, Object, Release
from e2e_traffic import Traffic, traffic

from testbed.node.cluster import LocalCluster
from testbed.node.provider import NotOfferedError
from testbed.patience import eventually

STILL = {"strategy": "Static", "bounds": {"fallbackEmbPercent": 50}, "step": {"maxPercentPerSecond": 50}}
QUICK = {"churn": {"maxMovedPercent": 100, "windowSeconds": 1}, "warmup": {"maxSeconds": 3}, "drain": {"deadlineSeconds": 15}}
PAGE = ROOT / "docs" / "operations.md"


@pytest.fixture(scope="module")
def requests(release: Release) -> Iterator[Traffic]:
    with managed_pool(release, replicas=2, hbm_policy=STILL, routing_policy=QUICK) as pool:
        pool.wait_ready(timeout_seconds=120)
        with traffic(pool) as running:
            running.until(lambda counts: len(counts.instances) == 2)
            yield running


def table_of(pool: Pool) -> tuple[int, set[str]]:
    """Generation of the published table, and the uids of its instances."""
    status = pool.release.get("grt", "ranker", "-n", pool.namespace)["status"]
    return status["generation"], {each["uid"] for each in status["instances"]}


def node_status(release: Release) -> str:
    (node,) = release.get("nodes")["items"]
    return str(next(each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready"))


def restarts(pool: Pool) -> int:
    """How often a container of the pool has started again."""
    found = [each for pod in pool.pods().values() for each in pod["status"].get("containerStatuses", ())]
    return sum(each["restartCount"] for each in found)


def local(release: Release) -> LocalCluster:
    """The testbed's own node, whose parts a test may kill."""
    if not isinstance(release.cluster, LocalCluster):
        raise NotOfferedError("only the testbed's own cluster lets a test kill the API server")
    return release.cluster


def test_while_the_kubelet_is_dead_pods_serve_on_and_nobody_is_moved(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before, table = requests.goes_on(), table_of(pool)

    with release.cluster.fault("kubelet"):
        eventually(lambda: node_status(release) != "True", timeout_seconds=60)
        # Nobody reads logs from a node without a kubelet, so what callers saw is read when it is back.
        assert table_of(pool) == table
        assert release.condition("grp", "ranker", pool.namespace, "Ready")["status"] == "True"

    eventually(lambda: node_status(release) == "True", timeout_seconds=60)
    pool.wait_ready()
    assert table_of(pool) == table
    requests.undisturbed_since(before)
    assert restarts(pool) == 0


def test_while_containerd_restarts_containers_serve_on(requests: Traffic) -> None:
    pool = requests.pool
    before, table = requests.goes_on(), table_of(pool)

    with pool.release.cluster.fault("containerd"):
        time.sleep(2)

    eventually(lambda: node_status(pool.release) == "True", timeout_seconds=60)
    pool.wait_ready()
    requests.undisturbed_since(before)
    assert table_of(pool) == table
    assert restarts(pool) == 0


def test_a_killed_engine_is_stood_in_for_and_comes_back(requests: Traffic) -> None:
    pool = requests.pool
    before, name = requests.goes_on(), sorted(pool.pods())[0]

    pool.release.cluster.kill_container(pool.namespace, name, "engine")

    eventually(lambda: restarts(pool) == 1, why=lambda: pool.release.why(pool.namespace))
    pool.wait_ready()
    after = requests.until(lambda counts: counts.instances[name] > before.instances[name])
    assert after.failed == before.failed
    requests.goes_on()


def test_with_every_operator_gone_requests_go_on_and_a_replaced_pod_waits_for_one(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before = requests.goes_on()
    release.cluster.kubectl("scale", "deployment/grfleet", "-n", SYSTEM, "--replicas=0")
    eventually(lambda: not release.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=grfleet")["items"])
    table, names = table_of(pool), set(pool.pods())

    gone = sorted(names)[0]
    release.cluster.kubectl("delete", "pod", gone, "-n", pool.namespace, "--wait=false")
    (new,) = eventually(lambda: set(pool.pods()) - names)
    # It ends by its own agent's judgement: callers have nobody to tell them, so it is the deadline that ends the wait.
    eventually(
        lambda: not release.cluster.kubectl("get", "pod", gone, "-n", pool.namespace, check=False).stdout, timeout_seconds=60
    )
    requests.goes_on()
    assert table_of(pool) == table
    gate = [each for each in pool.pods()[new]["status"]["conditions"] if each["type"] == "grfleet.dev/warm"]
    assert not gate

    release.cluster.kubectl("scale", "deployment/grfleet", "-n", SYSTEM, "--replicas=2")
    pool.wait_ready()
    eventually(lambda: new in pool.serving() and gone not in pool.serving())
    after = requests.goes_on()
    assert after.failed == before.failed


def test_an_evicted_pod_is_drained_and_ends_when_its_requests_are_done_and_the_budget_holds_the_next(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before, names = requests.goes_on(), sorted(pool.pods())

    eventually(lambda: evict(pool, names[0]) == "")
    refused = evict(pool, names[1])
    assert "disruption budget" in refused
    drain = eventually(lambda: release.get("gri", names[0], "-n", pool.namespace)["spec"].get("drain"))
    assert drain["reason"] == "Terminating"
    eventually(lambda: names[0] not in pool.serving())
    pod = release.get("pod", names[0], "-n", pool.namespace)
    assert pod["status"]["containerStatuses"][0]["state"].get("running"), "the hook holds the engine until it is idle"

    eventually(lambda: not release.cluster.kubectl("get", "pod", names[0], "-n", pool.namespace, check=False).stdout)
    pool.wait_ready()
    requests.undisturbed_since(before)
    assert names[1] in pool.pods()


def evict(pool: Pool, name: str) -> str:
    """What `kubectl drain` asks for; returns what the API server says against it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": pool.namespace}}
    path = f"/api/v1/namespaces/{pool.namespace}/pods/{name}/eviction"
    done = pool.release.cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(body), check=False)
    return "" if done.returncode == 0 else done.stderr


def test_while_the_api_server_is_dead_requests_go_on(requests: Traffic) -> None:
    pool = requests.pool
    plane = local(pool.release).plane
    before, table = requests.goes_on(), table_of(pool)

    plane.kill_api_server()
    time.sleep(6)
    plane.start_api_server()

    local(pool.release).wait_ready()
    pool.wait_ready()
    requests.undisturbed_since(before)
    assert table_of(pool) == table
    eventually(pool.release.leader, why=pool.release.logs)


def test_the_commands_of_the_operations_page_work_in_their_order(requests: Traffic) -> None:
    pool, release = requests.pool, requests.pool.release
    before = requests.goes_on()
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks[0].startswith("export NS=")
    names = f"export NS={pool.namespace} POOL=ranker SYSTEM={SYSTEM}"
    script = "\n".join(["set -euo pipefail", names, *blocks[1:]])

    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=surroundings(release), capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    pool.wait_ready()
    # The key is another one by now, and agents that were never restarted take what it signs.
    change: Object = {"spec": {"bounds": {"fallbackEmbPercent": 60}}}
    release.cluster.kubectl("patch", "hbmp", "split", "-n", pool.namespace, "--type=merge", "-p", json.dumps(change))

    def arrived() -> bool:
        touch = f"touched={time.monotonic()}"  # has the kubelet look at what it has mounted
        release.cluster.kubectl("annotate", "pods", "--all", "-n", pool.namespace, touch, "--overwrite")
        return bool(pool.emb_percent() == pytest.approx([60, 60], abs=2))

    eventually(arrived, why=lambda: (pool.emb_percent(), release.why(pool.namespace)), timeout_seconds=120)
    after = requests.goes_on()
    assert after.failed == before.failed


def surroundings(release: Release) -> dict[str, str]:
    """An environment in which kubectl, its plugin and helm are those of this checkout."""
    cluster = release.cluster
    kubectl = cluster.plane.binaries["kubectl"] if isinstance(cluster, LocalCluster) else None
    places = [
        str(Path(sys.executable).parent),
        *([] if kubectl is None else [str(Path(kubectl).parent)]),
        str(release.helm.parent),
    ]
    return {**os.environ, "PATH": ":".join([*places, os.environ["PATH"]]), "KUBECONFIG": str(cluster.kubeconfig)}
