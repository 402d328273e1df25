"""The API server itself goes away and comes back, and the kinds change under a running operator."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fault_world import World, open_world
from runtime_operator import wait_for

from controllers.runtime import process
from testbed.control_plane import ControlPlane
from testbed.faults import Answer, Match, Page, StreamError, continuations, lists

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


def test_a_watch_error_that_the_library_holds_for_fatal_ends_the_process_at_once_and_the_next_goes_on(fresh_world: World) -> None:
    """One that only seems to live is worse: it has neither Lease nor probes, and yet nobody takes its place."""
    world, pools = fresh_world, Match(watch=True, path="/grservingpools")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/grfleet-operator"
    world.make_pool(entries=("a",))
    for faults in ([StreamError(code=500)], [Answer(status=410), StreamError(code=410)]):
        with world.operator() as operator:
            wait_for(operator.leads, operator)
            rules = [world.proxy.add(pools, fault, times=1) for fault in faults]  # the answer meets the watch that follows
            rules[0].wait_for_hits(timeout_seconds=20)
            wait_for(lambda: operator.child.poll() is not None, seconds=15)
            assert operator.child.poll() == process.EXIT_FAILED
        assert not world.api.get(lease).json()["spec"].get("holderIdentity")
        world.change()
    with world.operator():
        world.converges()


def test_a_list_of_the_watch_library_that_expires_between_two_pages_ends_the_process_and_the_next_goes_on(
    fresh_world: World,
) -> None:
    world, theirs = fresh_world, "^kopf/"
    world.make_pool()
    with world.operator() as operator:
        world.converges()
        world.proxy.add(lists("/grinstances", user_agent=theirs), Page(limit=1))
        expired = world.proxy.add(continuations("/grinstances", user_agent=theirs), Answer(status=410), times=1)
        world.proxy.add(Match(watch=True, path="/grinstances"), StreamError(code=410), times=1)  # has it list again
        expired.wait_for_hits(timeout_seconds=20)
        wait_for(lambda: operator.child.poll() is not None, seconds=15)
        assert operator.child.poll() == process.EXIT_FAILED
    world.change()
    with world.operator():
        world.converges()
