"""A leader that freezes in the middle of a drain or a rollout: another goes on, and what the first had sent is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from fault_pods import MANAGED, PodsWorld
from runtime_operator import OperatorProcess, wait_for

from testbed.faults import Hold, Match

pytestmark = pytest.mark.slow

DRAIN_OF_AN_INSTANCE = r"/grinstances/pool-[^/?]+\?.*fieldManager=grfleet-pool"
MARK_OF_A_POD = r"/pods/pool-[^/?]+\?.*fieldManager=grfleet-pool"
SCALE = r"/deployments/pool/scale\?"
TEMPLATE = r"/deployments/pool\?"
GATE = r"/pods/pool-[^/?]+/status\?"


def test_frozen_in_a_drain_or_a_rollout_it_is_replaced_and_its_late_word_is_refused(fresh_pods_world: PodsWorld) -> None:
    world = fresh_pods_world
    with world.operator("one") as one, world.operator("two") as two:
        operators = {"one": one, "two": two}
        world.make_pools(MANAGED)
        world.converges(quiet_seconds=0.5)

        for late, begin, go_on in (
            (DRAIN_OF_AN_INSTANCE, lambda: world.scale(1), lambda: world.scale(2)),
            (MARK_OF_A_POD, lambda: world.scale(1), lambda: world.scale(2)),
            (SCALE, lambda: world.scale(1), lambda: None),
            (TEMPLATE, world.update_model, world.update_model),
            (GATE, lambda: world.scale(2), lambda: None),
        ):
            freeze(world, operators, late=late, begin=begin, go_on=go_on)
        world.converges()
        assert (one.child.poll(), two.child.poll()) == (None, None)


def freeze(
    world: PodsWorld, operators: dict[str, OperatorProcess], *, late: str, begin: Callable[[], None], go_on: Callable[[], None]
) -> None:
    """Freeze the leader with that write on its way; let the other end the work and do some more; then the write arrives."""
    wait_for(lambda: operators["one"].leads() != operators["two"].leads())
    name = next(name for name, operator in operators.items() if operator.leads())
    leader, other = operators[name], next(each for each in operators.values() if each is not operators[name])
    proxy = world.proxies[name]
    rule = proxy.add(Match(methods=frozenset({"PATCH"}), path=late), Hold(), times=1)
    begin()
    rule.wait_for_hits(timeout_seconds=40)
    leader.child.send_signal(signal.SIGSTOP)
    proxy.clear()
    wait_for(other.leads, other)
    world.converges(quiet_seconds=0.5)
    go_on()
    world.converges(quiet_seconds=0.5)
    proxy.release(rule)
    escaped = wait_for(lambda: [each for each in proxy.writes() if "Hold" in each.faults][-1:])
    assert [(each.path, each.status) for each in escaped if each.status != 409] == []
    leader.child.send_signal(signal.SIGCONT)
    wait_for(lambda: not (operators["one"].leads() and operators["two"].leads()))
    world.converges(quiet_seconds=0.5)
