"""A small real fleet for the integration tests of the loops: one operator under its own rules, engines and agents beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "runtime", HERE.parent / "faults"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from integration_fleet import OPERATOR, Fleet, Pair  # noqa: E402 - only importable once the path is set
from integration_kubelet import Kubelet  # noqa: E402 - only importable once the path is set
from runtime_operator import OperatorProcess, operator_account, running_operator  # noqa: E402

from testbed.control_plane import ControlPlane  # noqa: E402


@pytest.fixture
def account(crds_installed: ControlPlane, namespace: str) -> Path:
    """Kubeconfig of the operator's ServiceAccount, which may do exactly what the rules say."""
    return operator_account(crds_installed, namespace)


@pytest.fixture
def operator(account: Path, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One running operator with all loops."""
    with running_operator(tmp_path, account, namespace, command=OPERATOR) as running:
        yield running


@pytest.fixture
def fleet(crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str, tmp_path: Path) -> Iterator[Fleet]:
    """The namespace, seen through the API server, and the processes that a test starts in it."""
    with Fleet(crds_installed, kube_api, namespace, tmp_path) as made:
        yield made


@pytest.fixture
def pair(fleet: Fleet) -> Pair:
    """One engine with its agent; the agent is started by the test once there is a key."""
    return fleet.new_pair()


@pytest.fixture
def managing(account: Path, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorProcess]:
    """One running operator with all loops that was told the agent's image."""
    monkeypatch.setenv("GRFLEET_AGENT_IMAGE", "agent:1")
    with running_operator(tmp_path, account, namespace, command=OPERATOR, name="managing") as running:
        yield running


@pytest.fixture
def kubelet(crds_installed: ControlPlane, namespace: str) -> Iterator[Kubelet]:
    """Plays the kubelet for the pods of the namespace, in a thread with a client of its own.

    A client that two threads share closes a connection as idle for too long that the other one has just been given.
    """
    with crds_installed.client() as api, Kubelet(api, namespace) as playing:
        yield playing
