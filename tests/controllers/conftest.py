"""Makes the helpers beside the tests importable, and has what several loops' tests use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from testbed.debian import DebianError, ensure_debian_program

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def prometheus_program() -> Path:
    """Prometheus itself; skips, with the reason, where it cannot be had."""
    try:
        return ensure_debian_program("prometheus", "prometheus")
    except DebianError as error:
        pytest.skip(f"no real Prometheus: {error}")
