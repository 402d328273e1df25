"""The testbed's node runs real pods: security, services, logs, exec, scaling, tokens, and what breaks when parts die."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.images import product
from testbed.kubectl import KubectlError
from testbed.node.cluster import LocalCluster
from testbed.node.namespaces import NodeError
from testbed.node.runtime import BASE_IMAGE
from testbed.patience import eventually

RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
PYTHON = "/opt/python/bin/python3"
SERVER = [PYTHON, "-u", "-m", "http.server", "8000", "--directory", "/opt/grfleet"]
FETCH = """
import sys, time, urllib.request as u
for left in range(20, -1, -1):  # a Service answers once kube-proxy has heard of its endpoints
    try:
        print(u.urlopen(sys.argv[1], timeout=2).status)
        break
    except OSError:
        if not left:
            raise
        time.sleep(0.5)
"""


@pytest.fixture
def space(node_cluster: LocalCluster) -> Iterator[str]:
    """A namespace that refuses pods which are not restricted."""
    name = f"test-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    node_cluster.kubectl("create", "-f", "-", input=json.dumps(named("v1", "Namespace", name, labels=labels)))
    eventually(lambda: node_cluster.kubectl("get", "serviceaccount", "default", "-n", name, check=False).returncode == 0)
    yield name
    node_cluster.kubectl("delete", "namespace", name, "--wait=false")


def named(version: str, kind: str, name: str, *, labels: dict[str, str] | None = None, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels or {}}, **rest}


def container(command: list[str], *, image: str = BASE_IMAGE, **rest: Any) -> dict[str, Any]:
    return {"name": "main", "image": image, "imagePullPolicy": "Never", "command": command, "securityContext": RESTRICTED, **rest}


def pod(name: str, command: list[str], **rest: Any) -> dict[str, Any]:
    return named("v1", "Pod", name, spec={"restartPolicy": "Never", "containers": [container(command, **rest)]})


def servers(replicas: int) -> list[dict[str, Any]]:
    labels = {"app": "web"}
    ready = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container(SERVER, readinessProbe=ready)]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]}
    return [named("apps/v1", "Deployment", "web", spec=spec), named("v1", "Service", "web", spec=service)]


def apply(cluster: LocalCluster, space: str, *objects: dict[str, Any]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    cluster.kubectl("apply", "-n", space, "-f", "-", input=json.dumps(listed))


def run_to_end(cluster: LocalCluster, space: str, body: dict[str, Any]) -> str:
    """Create a pod, wait until it has succeeded, return its log."""
    name = body["metadata"]["name"]
    apply(cluster, space, body)
    try:
        cluster.kubectl("wait", "-n", space, f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    except KubectlError as error:
        said = cluster.kubectl("describe", "pod", name, "-n", space).stdout + cluster.kubectl("logs", name, "-n", space).stdout
        raise AssertionError(said) from error
    return cluster.kubectl("logs", name, "-n", space).stdout


def serve(cluster: LocalCluster, space: str, replicas: int) -> list[str]:
    """Run web servers behind a Service; returns the pods' names."""
    apply(cluster, space, *servers(replicas))
    cluster.kubectl("rollout", "status", "deployment/web", "-n", space, "--timeout=90s")
    return cluster.kubectl("get", "pods", "-n", space, "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}").stdout.split()


def ready_endpoints(cluster: LocalCluster, space: str) -> int:
    listed = cluster.kubectl("get", "endpointslices", "-n", space, "-l", "kubernetes.io/service-name=web", "-o", "json").stdout
    return sum(e["conditions"]["ready"] for item in json.loads(listed)["items"] for e in item["endpoints"] or ())


def node_condition(cluster: LocalCluster) -> str:
    return cluster.kubectl("get", "node", "-o", "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].status}").stdout


def test_the_node_is_a_real_one_with_the_pinned_kubelet_and_containerd(node_cluster: LocalCluster) -> None:
    (node,) = json.loads(node_cluster.kubectl("get", "nodes", "-o", "json").stdout)["items"]

    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.4"
    assert node_condition(node_cluster) == "True"


@pytest.mark.parametrize("thin", [True, False], ids=["without base layers", "whole archive"])
def test_product_images_run_restricted_with_a_read_only_root(
    node_cluster: LocalCluster, space: str, tmp_path: Path, thin: bool
) -> None:
    images = product.build(tmp_path, omit=node_cluster.base_layers if thin else ())
    assert thin == (images.archive.stat().st_size < 20 << 20)
    node_cluster.load_image(images.archive)

    for name in product.COMMANDS if thin else ["agent"]:
        body = pod(name, [], image=images[name], args=["--help"])
        del body["spec"]["containers"][0]["command"]
        assert "usage: grfleet-" in run_to_end(node_cluster, space, body)


def test_a_pod_that_is_not_restricted_is_refused_in_a_restricted_namespace(node_cluster: LocalCluster, space: str) -> None:
    body = pod("root", ["/pause"])
    del body["spec"]["containers"][0]["securityContext"]

    with pytest.raises(KubectlError, match=r'violates PodSecurity "restricted'):
        apply(node_cluster, space, body)


def test_a_service_answers_pods_and_the_test_and_logs_and_exec_work(node_cluster: LocalCluster, space: str) -> None:
    first, second = serve(node_cluster, space, 2)
    address = node_cluster.kubectl("get", "service", "web", "-n", space, "-o", "jsonpath={.spec.clusterIP}").stdout

    assert run_to_end(node_cluster, space, pod("client", [PYTHON, "-c", FETCH, f"http://{address}/"])) == "200\n"
    with node_cluster.reach("service/web", 80, namespace=space) as url:
        assert "lib/" in httpx.get(url, trust_env=False).text
    log = "".join(node_cluster.kubectl("logs", name, "-n", space).stdout for name in (first, second))
    assert '"GET / HTTP/1.1" 200' in log
    said = node_cluster.kubectl("exec", first, "-n", space, "--", PYTHON, "-c", "import os; print(os.getuid())")
    assert said.stdout == "65532\n"


def test_names_of_services_resolve_in_pods_and_other_names_are_refused_at_once(node_cluster: LocalCluster, space: str) -> None:
    serve(node_cluster, space, 1)
    other = (
        "import socket, sys\ntry:\n    socket.getaddrinfo('example.com', 80)\nexcept socket.gaierror as e:\n    print(e.errno)"
    )

    assert run_to_end(node_cluster, space, pod("short", [PYTHON, "-c", FETCH, "http://web/"])) == "200\n"
    long = f"http://web.{space}.svc.cluster.local/"
    assert run_to_end(node_cluster, space, pod("long", [PYTHON, "-c", FETCH, long])) == "200\n"
    assert run_to_end(node_cluster, space, pod("other", [PYTHON, "-c", other])) == "-2\n"


def test_reaching_a_target_that_does_not_exist_says_so(node_cluster: LocalCluster, space: str) -> None:
    with pytest.raises(NodeError, match="not found"), node_cluster.reach("pod/nobody", 80, namespace=space):
        pass


def test_scaling_one_to_four_makes_four_ready_endpoints_and_back(node_cluster: LocalCluster, space: str) -> None:
    serve(node_cluster, space, 1)

    node_cluster.kubectl("scale", "deployment/web", "-n", space, "--replicas=4")
    eventually(lambda: ready_endpoints(node_cluster, space) == 4)

    node_cluster.kubectl("scale", "deployment/web", "-n", space, "--replicas=1")
    eventually(lambda: ready_endpoints(node_cluster, space) == 1)


def test_a_pod_speaks_to_the_api_server_as_its_service_account(node_cluster: LocalCluster, space: str) -> None:
    ask = """
import os, ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}/api/v1/nodes"
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(f"{folder}/token").read()})
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=f"{folder}/ca.crt"), timeout=10)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
    said = run_to_end(node_cluster, space, pod("asks", [PYTHON, "-c", ask]))

    assert said.startswith("403")
    assert f"system:serviceaccount:{space}:default" in said


# What breaks when parts die -----------------------------------------------------------------------------------------


def test_a_killed_container_starts_again_in_the_same_pod(node_cluster: LocalCluster, space: str) -> None:
    (name,) = serve(node_cluster, space, 1)
    count = "jsonpath={.status.containerStatuses[0].restartCount}"

    node_cluster.kill_container(space, name, "main")

    eventually(lambda: node_cluster.kubectl("get", "pod", name, "-n", space, "-o", count).stdout == "1")
    eventually(lambda: ready_endpoints(node_cluster, space) == 1)


def test_pods_serve_on_while_containerd_is_down_and_are_managed_afterwards(node_cluster: LocalCluster, space: str) -> None:
    serve(node_cluster, space, 1)
    address = node_cluster.kubectl("get", "pods", "-n", space, "-o", "jsonpath={.items[0].status.podIP}").stdout

    with node_cluster.fault("containerd"):
        assert httpx.get(f"http://{address}:8000/", trust_env=False, timeout=10).status_code == 200

    node_cluster.kubectl("scale", "deployment/web", "-n", space, "--replicas=2")
    eventually(lambda: ready_endpoints(node_cluster, space) == 2)


def test_a_dead_kubelet_makes_node_and_endpoints_unready_until_it_is_back(node_cluster: LocalCluster, space: str) -> None:
    serve(node_cluster, space, 1)

    with node_cluster.fault("kubelet"):
        eventually(lambda: node_condition(node_cluster) == "Unknown")
        eventually(lambda: ready_endpoints(node_cluster, space) == 0)

    eventually(lambda: node_condition(node_cluster) == "True")
    eventually(lambda: ready_endpoints(node_cluster, space) == 1)


def test_an_unknown_component_cannot_be_faulted(node_cluster: LocalCluster) -> None:
    with pytest.raises(NotImplementedError, match="disk"), node_cluster.fault("disk"):
        pass
