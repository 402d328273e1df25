"""Fixtures that more than one room's tests use; the control plane itself comes from the testbed's plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from testbed.control_plane import ControlPlane
from testbed.kinds import install_kinds

pytest_plugins = ["testbed.pytest_plugin"]

# No test asserts an absolute time, and one example may take long while other tests fill the machine.
settings.register_profile("grfleet", deadline=None)
settings.load_profile("grfleet")

MANIFESTS = Path(__file__).resolve().parent.parent / "crds" / "manifests"


@pytest.fixture(scope="session")
def crds_installed(control_plane: ControlPlane) -> ControlPlane:
    """The control plane of this test process with every grfleet kind established."""
    install_crds(control_plane)
    return control_plane


@pytest.fixture
def own_crds_installed(own_control_plane: ControlPlane) -> ControlPlane:
    """A control plane for this test alone, which may break it, with every grfleet kind established."""
    install_crds(own_control_plane)
    return own_control_plane


def install_crds(control_plane: ControlPlane) -> None:
    install_kinds(control_plane, MANIFESTS, field_manager="grfleet-tests")
