"""A leader that is frozen or cut off: what it had already sent is refused, another goes on, and nobody's work is undone."""

from __future__ import annotations

import signal

import pytest
from fault_world import World
from runtime_operator import wait_for

from testbed.faults import Exchange, FaultProxy, Hold, Match, ResetBefore, Rule

pytestmark = pytest.mark.slow

PATCH = frozenset({"PATCH"})
ESCAPED = {
    "the intent of an instance": r"/grinstances/pool-a\?.*fieldManager=grfleet-allocation",
    "the status of an instance": r"/grinstances/pool-b/status\?.*fieldManager=grfleet-allocation",
    "the table": r"/grroutingtables/pool/status\?",
}
POOL_STATUS = r"/grservingpools/pool/status\?.*fieldManager=grfleet-pool"


def hold(proxy: FaultProxy, path: str) -> Rule:
    return proxy.add(Match(methods=PATCH, path=path), Hold(), times=1)


def test_what_a_frozen_leader_had_sent_is_refused_and_one_that_is_cut_off_stops_before_another_starts(fresh_world: World) -> None:
    world = fresh_world
    with world.operator("one") as one, world.operator("two") as two:
        wait_for(one.ready, one)
        wait_for(two.ready, two)
        world.make_pool()
        world.converges(quiet_seconds=0.5)
        wait_for(lambda: one.leads() != two.leads())
        first, second = (one, two) if one.leads() else (two, one)
        proxy = world.proxies["one" if first is one else "two"]

        # Given a write of each kind that has passed the fence and is on its way when its sender freezes,
        held = [hold(proxy, path) for path in ESCAPED.values()]
        world.change()
        for rule in held:
            rule.wait_for_hits(timeout_seconds=20)
        held.append(hold(proxy, POOL_STATUS))
        world.change_target()
        held[-1].wait_for_hits(timeout_seconds=20)
        first.child.send_signal(signal.SIGSTOP)
        proxy.clear()
        # when another has taken over and all of it has been decided anew,
        wait_for(second.leads, second)
        world.converges(quiet_seconds=0.5)
        world.change()
        world.converges(quiet_seconds=0.5)
        # then what arrives late is refused.
        for rule in held:
            proxy.release(rule)
        escaped = wait_for(lambda: all_of([each for each in proxy.writes() if "Hold" in each.faults], len(held)))
        assert [(each.path, each.status) for each in escaped if each.status != 409] == []
        first.child.send_signal(signal.SIGCONT)
        wait_for(lambda: not (first.leads() and second.leads()))
        world.converges(quiet_seconds=0.5)

        # A leader that reaches nobody gives up before another starts, and is a follower when it is back.
        name, cut_off, other = wait_for(lambda: ("one", one, two) if one.leads() else ("two", two, one) if two.leads() else None)
        cut = world.proxies[name].add(Match(), ResetBefore())
        world.change()
        wait_for(other.leads, other)
        assert not cut_off.leads()
        world.converges(quiet_seconds=0.5)
        world.proxies[name].remove(cut)
        world.change()
        world.converges()
        wait_for(lambda: one.leads() != two.leads())
        assert (one.child.poll(), two.child.poll()) == (None, None)


def all_of(found: list[Exchange], number: int) -> list[Exchange] | None:
    return found if len(found) == number else None
