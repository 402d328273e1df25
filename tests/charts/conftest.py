"""Fixtures of the chart's tests: helm, and a control plane on which nothing was installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from chart_cluster import Cluster  # noqa: E402 - only importable once the path is set
from chart_tools import Helm  # noqa: E402

from testbed.binaries import find_binaries  # noqa: E402
from testbed.control_plane import ControlPlane  # noqa: E402
from testbed.debian import DebianError, ensure_debian_program  # noqa: E402


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """helm with empty caches; skips where it is missing."""
    found = find_binaries(("helm",)).paths
    if "helm" not in found:
        pytest.skip("no helm: run `python -m testbed build`")
    return Helm(found["helm"], tmp_path / "helm")


@pytest.fixture
def cluster(own_control_plane: ControlPlane, helm: Helm, tmp_path: Path) -> Cluster:
    """A control plane on which nothing was installed, and a shell that reaches it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").symlink_to(helm.program)
    (programs / "kubectl").symlink_to(own_control_plane.binaries["kubectl"])
    return Cluster(own_control_plane, helm, programs)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The checker that belongs to Prometheus; skips, with the reason, where it cannot be had."""
    try:
        return ensure_debian_program("prometheus", "promtool")
    except DebianError as error:
        pytest.skip(f"no promtool: {error}")
