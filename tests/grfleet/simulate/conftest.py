"""Pictures take longer than what they show: they are drawn only for tests that ask for `plots`."""

from __future__ import annotations

import pytest


@pytest.fixture
def plots() -> None:
    """Let the commands draw."""


@pytest.fixture(autouse=True)
def _no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "plots" not in request.fixturenames:
        monkeypatch.setattr("grfleet.simulate.plots.draw", lambda folder, result: True)
