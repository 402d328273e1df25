"""Fixtures of the data plane's tests."""

import pytest
from dataplane_world import World


@pytest.fixture
def world() -> World:
    return World()
