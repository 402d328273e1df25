"""Fixtures that more than one room's tests use; the control plane itself comes from the testbed's plugin."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from hypothesis import settings

from testbed.control_plane import ControlPlane
from testbed.kinds import install_kinds

pytest_plugins = ["testbed.pytest_plugin"]

# No test asserts an absolute time, and one example may take long while other tests fill the machine. The same examples each time:
# what is red was made red by a change. `make explore` looks for new ones, and what it finds becomes an `@example`.
settings.register_profile("grfleet", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("grfleet")


def pytest_configure() -> None:
    """Let processes that tests start end by Ctrl-C, also where the tests run in the background of a shell.

    A shell lets those ignore it, and what is ignored stays so in all that they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that wait most first, so that nobody waits for one of them alone when all else is done.

    Those marked `slow` watch processes and clocks; the processor has time for others meanwhile. `make test` keeps this order.
    """
    waits = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in waits)


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
