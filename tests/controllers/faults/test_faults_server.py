"""The API server itself goes away and comes back, and the kinds change under a running operator."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fault_world import open_world

from testbed.control_plane import ControlPlane

pytestmark = pytest.mark.slow


def test_a_crashed_api_server_and_edited_kinds_are_survived_at_work(own_crds_installed: ControlPlane, tmp_path: Path) -> None:
    plane = own_crds_installed
    with plane.client() as api, open_world(plane, api, tmp_path) as world, world.operator() as operator:
        world.make_pool()
        world.converges(quiet_seconds=1)

        world.change()
        plane.kill_api_server()
        time.sleep(4)  # longer than the lease
        plane.start_api_server()
        world.change()
        world.converges(quiet_seconds=1)

        for plural in ("grservingpools", "grinstances", "grroutingtables"):
            path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/extra"
            patch = json.dumps([{"op": "add", "path": path, "value": {"type": "string"}}])
            plane.kubectl("patch", "crd", f"{plural}.grfleet.dev", "--type=json", "-p", patch)
            world.change()
        world.converges(quiet_seconds=1)
        assert operator.child.poll() is None
