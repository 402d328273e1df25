"""pytest fixtures: one real control plane per test process, one namespace per test.

Tests that need the control plane carry the marker ``testbed`` by themselves. Where its programs are missing they are
skipped, each with the reason, and the closing summary says how many.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from typing import Protocol

import httpx
import pytest

from testbed import kwok
from testbed.binaries import Binaries, find_binaries
from testbed.control_plane import ControlPlane
from testbed.node.cluster import LocalCluster, why_not
from testbed.versions import CONTROL_PLANE_PROGRAMS

_REASON = "no Kubernetes control plane"
_NODE_REASON = "no Kubernetes node"
_KWOK_REASON = "no fake nodes"
_NODE_FIXTURES = {"node_parts", "node_cluster"}


class Kubectl(Protocol):
    """`ControlPlane.kubectl`: run kubectl as the administrator; raises `KubectlError` unless told not to check."""

    def __call__(self, *args: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that reaches the control plane or a node, directly or through another fixture."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if "testbed_binaries" in used:
            item.add_marker(pytest.mark.testbed)
        if used & _NODE_FIXTURES:
            item.add_marker(pytest.mark.node)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly how many tests did not run because the programs are missing."""
    reasons = [str(getattr(report, "longrepr", "")) for report in terminalreporter.stats.get("skipped", ())]
    for reason, remedy in (
        (_REASON, "`make setup` builds its programs"),
        (_KWOK_REASON, "`grfleet testbed build --kwok` makes their programs"),
        (_NODE_REASON, "`grfleet testbed build --node` makes its programs, and it needs root"),
    ):
        if count := sum(reason in text for text in reasons):
            terminalreporter.section("real Kubernetes", sep="!", red=True, bold=True)
            terminalreporter.line(f"{count} tests did NOT run: {reason}; {remedy}")


@pytest.fixture(scope="session")
def testbed_binaries() -> Binaries:
    """The programs of a control plane, for tests that start their own; skips where they are missing."""
    binaries = find_binaries(CONTROL_PLANE_PROGRAMS)
    missing = [name for name in CONTROL_PLANE_PROGRAMS if name not in binaries.paths]
    if missing:
        # Building takes minutes, longer than a test may: `make test` does it before pytest starts.
        pytest.skip(f"{_REASON}: {', '.join(missing)} missing; run `python -m testbed build`")
    return binaries


@pytest.fixture(scope="session")
def control_plane(testbed_binaries: Binaries) -> Iterator[ControlPlane]:
    """The control plane of this test process; a test that stops or kills parts takes `own_control_plane`."""
    with ControlPlane(binaries=testbed_binaries) as running:
        yield running


@pytest.fixture
def own_control_plane(testbed_binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane for this test alone, which may break it (about 4 s to start and stop)."""
    with ControlPlane(binaries=testbed_binaries) as running:
        yield running


@pytest.fixture(scope="session")
def node_parts() -> None:
    """Skips the test where this machine cannot run a node; for tests that start their own."""
    if (reason := why_not()) is not None:
        pytest.skip(f"{_NODE_REASON}: {reason}")


@pytest.fixture(scope="session")
def node_cluster(node_parts: None) -> Iterator[LocalCluster]:
    """The cluster with one real node of this test process (about 10 s to start); a namespace for each test."""
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="session")
def kwok_parts(testbed_binaries: Binaries) -> None:
    """Skips the test where the programs of fake nodes are missing; for tests that start their own."""
    if (reason := kwok.why_not()) is not None:
        pytest.skip(f"{_KWOK_REASON}: {reason}")


@pytest.fixture(scope="session")
def kwok_cluster(kwok_parts: None) -> Iterator[kwok.FakeCluster]:
    """The cluster with a few fake nodes of this test process (about 4 s to start); a namespace for each test."""
    with kwok.FakeCluster(4) as running:
        yield running


@pytest.fixture(scope="session")
def kube_api(control_plane: ControlPlane) -> Iterator[httpx.Client]:
    """An HTTP client of the API server as the administrator, for raw requests."""
    with control_plane.client() as client:
        yield client


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    """kubectl as the administrator: ``kubectl("get", "pods", "-n", namespace)``."""
    return control_plane.kubectl


@pytest.fixture
def namespace(kube_api: httpx.Client) -> Iterator[str]:
    """A new namespace for this test, with its `default` ServiceAccount; deleted afterwards without waiting."""
    name = f"test-{secrets.token_hex(5)}"
    metadata = {"name": name, "labels": {"grfleet.dev/test": "true"}}
    kube_api.post("/api/v1/namespaces", json={"metadata": metadata}).raise_for_status()
    # The controllers make this account too, a moment later; a test that creates a pod at once would be refused.
    account = kube_api.post(f"/api/v1/namespaces/{name}/serviceaccounts", json={"metadata": {"name": "default"}})
    if account.status_code != httpx.codes.CONFLICT:
        account.raise_for_status()
    yield name
    kube_api.delete(f"/api/v1/namespaces/{name}")
