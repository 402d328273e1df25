"""Fixtures of the chart's tests: helm, and a control plane on which nothing was installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from chart_tools import Helm  # noqa: E402 - only importable once the path is set

from testbed.binaries import find_binaries  # noqa: E402


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """helm with empty caches; skips where it is missing."""
    found = find_binaries(("helm",)).paths
    if "helm" not in found:
        pytest.skip("no helm: run `python -m testbed build`")
    return Helm(found["helm"], tmp_path / "helm")
