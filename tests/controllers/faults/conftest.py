"""A pool of instances with agents of the test, and the real operator behind the fault proxy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "runtime", HERE.parent / "integration"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from fault_pods import PodsWorld, open_pods_world  # noqa: E402 - only importable once the path is set
from fault_world import World, open_world  # noqa: E402 - only importable once the path is set

from testbed.control_plane import ControlPlane  # noqa: E402


@pytest.fixture(scope="module")
def world(crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One operator that has brought a pool into order; the plans of a module fall upon it one after the other."""
    with open_world(crds_installed, kube_api, tmp_path_factory.mktemp("world")) as made, made.operator():
        made.make_pool()
        made.converges()
        yield made


@pytest.fixture
def fresh_world(crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path: Path) -> Iterator[World]:
    """A namespace with policies and agents in which nobody works yet."""
    with open_world(crds_installed, kube_api, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def pods_world(
    crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PodsWorld]:
    """One operator that has brought a managed and an adopted pool into order; the plans of a module fall upon it in turn."""
    with open_pods_world(crds_installed, kube_api, tmp_path_factory.mktemp("pods")) as made, made.operator():
        made.make_pools()
        made.converges()
        yield made


@pytest.fixture
def fresh_pods_world(crds_installed: ControlPlane, kube_api: httpx.Client, tmp_path: Path) -> Iterator[PodsWorld]:
    """A namespace with policies and a played kubelet in which nobody works yet."""
    with open_pods_world(crds_installed, kube_api, tmp_path) as made:
        yield made
