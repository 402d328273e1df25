"""Fault plans: rules between the operator and the API server while people change things, and the oracle at the end."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from fault_world import World
from runtime_operator import OperatorProcess

from testbed.faults import Action, Call, Match, Rule

SEED = int(os.environ.get("GRFLEET_FAULT_SEED", "7"))
MORE_CHANGES = 12
EVENTS = Match(watch=True, events=frozenset({"ADDED", "MODIFIED", "DELETED"}))


@dataclass(frozen=True)
class Fault:
    """One rule of a plan."""

    match: Match
    action: Action
    probability: float = 1.0
    times: int | None = None


def run(world: World, *plan: Fault, changes: int = 3, seconds: float = 1.0, hits: int = 1, seed: int = SEED) -> list[Rule]:
    """Put the plan in force, change the pool under it, end it, and hold the world against the oracle.

    A change may come to nothing while the operator is held up (an instance that goes before it was made is no event), so that the
    pool is changed until every rule has acted `hits` times, within a bound.
    """
    rules = [
        world.proxy.add(each.match, each.action, probability=each.probability, times=each.times, seed=seed + number)
        for number, each in enumerate(plan)
    ]
    try:
        for change in range(changes + MORE_CHANGES):
            if change >= changes and all(rule.hits >= hits for rule in rules):
                break
            world.change()
            time.sleep(seconds)
        for rule in rules:
            rule.wait_for_hits(hits, timeout_seconds=15)
    finally:
        world.proxy.clear()
    world.converges()
    return rules


def kill_after(world: World, operator: OperatorProcess, write: int, *, of: Match) -> Rule:
    """Kill the operator when so many of its writes have been done; it never hears of the last one."""
    return world.proxy.add(of, Call(function=lambda: operator.child.send_signal(signal.SIGKILL)), skip=write - 1, times=1)
