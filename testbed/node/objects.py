"""Objects that a cluster with a node has from the start: the address of the API server for pods, and roles of node parts."""

from __future__ import annotations

import json

import httpx

_RBAC = "rbac.authorization.k8s.io"
_MANAGER = {"fieldManager": "grfleet-testbed", "force": "true"}


def apply(client: httpx.Client, *, host: str, port: int) -> None:
    """Apply them; `host` and `port` are where pods reach the API server.

    Raises
    ------
    httpx.HTTPStatusError
        The API server refused one.
    """
    headers = {"Content-Type": "application/apply-patch+yaml"}
    for path, body in _objects(host, port):
        client.patch(path, params=_MANAGER, headers=headers, content=json.dumps(body)).raise_for_status()


def _objects(host: str, port: int) -> list[tuple[str, dict[str, object]]]:
    # The API server listens on loopback, which it may not publish of itself.
    endpoints: dict[str, object] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    rules: list[dict[str, list[str]]] = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    names: dict[str, object] = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "testbed:coredns"},
        "rules": rules,
    }
    return [
        ("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", endpoints),
        _binding("testbed:kubelet-client", user="apiserver", role="system:kubelet-api-admin"),
        (f"/apis/{_RBAC}/v1/clusterroles/testbed:coredns", names),
        _binding("testbed:coredns", user="testbed:coredns", role="testbed:coredns"),
    ]


def _binding(name: str, *, user: str, role: str) -> tuple[str, dict[str, object]]:
    body: dict[str, object] = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
    }
    return f"/apis/{_RBAC}/v1/clusterrolebindings/{name}", body
