"""Pictures take longer than what they show: they are drawn only for tests that ask for `plots`."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate_inputs import manifest, pool


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The manifest of a pool of the default kind."""
    return manifest(tmp_path / "pool.yaml", pool())


@pytest.fixture
def plots() -> None:
    """Let the commands draw."""


@pytest.fixture(autouse=True)
def _no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "plots" not in request.fixturenames:
        monkeypatch.setattr("grfleet.simulate.plots.draw", lambda folder, result: True)
