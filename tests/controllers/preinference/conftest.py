"""Makes the helpers beside the tests importable, and gives the tests with a real API server what they stand on."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "runtime"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from preinference_site import Site  # noqa: E402 - only importable once the path is set
from runtime_operator import operator_account  # noqa: E402

from testbed.control_plane import ControlPlane  # noqa: E402


@pytest.fixture
def account(crds_installed: ControlPlane, namespace: str) -> Path:
    """Kubeconfig of the operator's ServiceAccount, which may do exactly what the rules say."""
    return operator_account(crds_installed, namespace)


@pytest.fixture
def site(crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str) -> Site:
    """The namespace of the test."""
    return Site(crds_installed, kube_api, namespace)
