"""What becomes of requests while the fleet, the table, the agent or HAProxy itself changes: failed, wrong, and for how long.

The load is an open loop at a fixed rate. Each event begins at a moment that both sides know by the same clock; an answer is right
by the table before it, or by the one after it, or, while the event goes on, by either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.report import Result, single, summarise
from bench.routing_rig import Agent, Proxy, proxy
from bench.routing_site import AFTER, BEFORE, EITHER, Child, Load, Program, Window, instances, load
from bench.routing_world import ANYBODY, Crowd, Tables, owners
from contract.table import RoutingTable

CONNECTIONS = 32
GOAL_DRAIN_MS, GOAL_BACK_MS = 200.0, 1000.0
_QUIET_S, _AFTER_S, _RETURN_S = 0.4, 0.5, 2.0


@dataclass
class Stage:
    """A gateway under load, the crowd that asks it, and the table in force."""

    proxy: Proxy
    agent: Agent
    crowd: Crowd
    tables: Tables
    table: RoutingTable
    victim: Child
    rate: int
    patience: float

    def wait(self, seconds: float) -> None:
        """Let things happen for a while, less when the measurement is a short one."""
        time.sleep(seconds * self.patience)

    @contextmanager
    def asking(self, name: str, before: Sequence[int], after: Sequence[int]) -> Iterator[Load]:
        """A load that has run for a moment, in the window `steady`."""
        users = self.crowd.expect(name, before, after)
        with load(
            self.proxy.config.directory, self.proxy.port, users, self.crowd.order, connections=CONNECTIONS, rate=self.rate
        ) as asking:
            self.wait(0.2)
            asking.window("steady")
            self.wait(_QUIET_S)
            yield asking


@dataclass
class Event:
    """What several repetitions of one event gave."""

    windows: list[Mapping[str, Window]] = field(default_factory=list)
    times_ms: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, list[float]] = field(default_factory=dict)

    def took(self, what: str, nanoseconds: float) -> None:
        self.times_ms.setdefault(what, []).append(max(0.0, nanoseconds) / 1e6)

    def counted(self, what: str, number: float) -> None:
        self.counts.setdefault(what, []).append(number)


@contextmanager
def stage(program: Program, folder: Path, crowd: Crowd, tables: Tables, *, rate: int, patience: float) -> Iterator[Stage]:
    """A whole gateway with its agent; the last instance is a process of its own, so that it can be killed."""
    with ExitStack() as stack:
        last = len(tables.ports)
        victim, (port,) = instances(folder, last, 1)
        stack.enter_context(victim)
        own = Tables({**tables.ports, last: port})
        table = own.next()
        running = stack.enter_context(proxy(program, folder / "events", crowd, table, master=True))
        agent = stack.enter_context(Agent(running))
        agent.begin_users(crowd)
        agent.told()
        agent.tell(table)
        yield Stage(running, agent, crowd, own, table, victim, rate, patience)


def update(at: Stage, event: Event) -> None:
    """Every hot user moves to the next instance, and back in silence."""
    places = len(at.tables.ports) - 1
    moved = at.crowd.moved(places)
    with at.asking("update", owners(at.crowd, at.table), owners(moved, at.table)) as asking:
        asking.window("update", right=EITHER)
        at.agent.begin_users(moved)
        told = at.agent.told()
        asking.window("after", right=AFTER)
        at.wait(_AFTER_S)
        event.windows.append(asking.end())
    event.counted("hot-user entries a second, written under load", at.crowd.hot / told.seconds)
    at.agent.begin_users(at.crowd)
    told = at.agent.told()
    event.counted("hot-user entries a second, written at rest", at.crowd.hot / told.seconds)


def drain(at: Stage, event: Event) -> None:
    """One instance leaves the table, then comes back to it: the other half of this is `add`."""
    number = 0
    less = at.tables.next(without=number)
    with at.asking("drain", owners(at.crowd, at.table), owners(at.crowd, less)) as asking:
        asking.window("drain", right=EITHER, watched=number)
        at.agent.begin(less)
        told = at.agent.told()
        asking.window("after", right=AFTER, watched=number)
        at.wait(_AFTER_S)
        seen = asking.end()
        event.windows.append(seen)
    last = max(seen["drain"].last_seen, seen["after"].last_seen)
    event.took("drain 1 instance: until no request goes there", last - told.began)
    event.took("drain 1 instance: until all of its table is written", told.settled - told.began)
    at.table = less


def add(at: Stage, event: Event) -> None:
    """The instance that was drained comes back, as one that HAProxy does not know."""
    more = at.tables.next()
    with at.asking("add", owners(at.crowd, at.table), owners(at.crowd, more)) as asking:
        asking.window("add", right=EITHER)
        at.agent.begin(more)
        told = at.agent.told()
        asking.window("after", right=AFTER)
        at.wait(_AFTER_S)
        event.windows.append(asking.end())
    event.took("add 1 instance: until its users are there", told.settled - told.began)
    at.table = more


def kill_instance(at: Stage, event: Event) -> None:
    """Kill -9 of an instance that the table still names, and its start on the same port."""
    number = len(at.tables.ports) - 1
    before = owners(at.crowd, at.table)
    after = [ANYBODY if owner == number else owner for owner in before]
    with at.asking("kill", before, after) as asking:
        began = asking.window("dead", right=AFTER)
        at.victim.kill()
        at.wait(1.0)
        at.victim, _ = instances(at.proxy.config.directory, number, 1, port=at.tables.ports[number])
        asking.window("returns", right=AFTER)
        at.wait(_RETURN_S + 1.5)
        asking.window("after", right=BEFORE)
        at.wait(_AFTER_S)
        seen = asking.end()
        event.windows.append(seen)
    late = max(each.last_failed for each in seen.values())
    event.took("kill -9 of an instance: until no request failed", late - began if late else 0)


def reload(at: Stage, event: Event) -> None:
    """A new HAProxy process takes over; until the old one has taught it, it goes by its hash."""
    own = owners(at.crowd, at.table)
    with at.asking("reload", own, own) as asking:
        began = asking.window("reload")
        at.proxy.reload()
        at.wait(_RETURN_S)
        asking.window("after")
        at.wait(_AFTER_S)
        seen = asking.end()
        event.windows.append(seen)
    event.took("reload of HAProxy: until every user is back", _last(seen, "wrong") - began if _last(seen, "wrong") else 0)


def restart_agent(at: Stage, event: Event) -> None:
    """Kill -9 of the agent, and a new one that is told the same."""
    own = owners(at.crowd, at.table)
    with at.asking("agent", own, own) as asking:
        asking.window("agent")
        at.agent.child.kill()
        at.wait(_AFTER_S)
        at.agent = Agent(at.proxy)
        at.agent.begin_users(at.crowd)
        at.agent.told()
        told = at.agent.tell(at.table)
        asking.window("after")
        at.wait(_AFTER_S)
        event.windows.append(asking.end())
    event.counted("restart of the agent: commands of the new one", told.commands)


def restart_haproxy(at: Stage, event: Event) -> None:
    """Kill -9 of HAProxy, and its start with empty tables, which its agent fills again."""
    own = owners(at.crowd, at.table)
    with at.asking("haproxy", own, own) as asking:
        began = asking.window("haproxy")
        at.proxy.kill()
        at.proxy.start()
        started = time.monotonic_ns()
        at.wait(_RETURN_S)
        asking.window("after")
        at.wait(_AFTER_S)
        seen = asking.end()
        event.windows.append(seen)
    event.took("restart of HAProxy: until it answers", _last(seen, "failed") - began)
    event.took("restart of HAProxy: until every user is back, from its start", _last(seen, "wrong") - started)


def _last(seen: Mapping[str, Window], what: str) -> int:
    return max(each.last_wrong if what == "wrong" else each.last_failed for each in seen.values())


EVENTS: tuple[tuple[str, Callable[[Stage, Event], None], int | None, int | None], ...] = (
    ("update of all hot users", update, 0, 0),
    ("drain 1 instance", drain, 0, 0),
    ("add 1 instance", add, 0, 0),
    ("kill -9 of an instance", kill_instance, 0, 0),
    ("reload of HAProxy", reload, 0, None),
    ("restart of the agent", restart_agent, 0, 0),
    ("restart of HAProxy", restart_haproxy, None, None),
)
"""Name, what happens, and the goals of failed and wrong answers; a lone HAProxy that is killed cannot answer."""
_GOALS_MS = {
    "drain 1 instance: until no request goes there": GOAL_DRAIN_MS,
    "restart of HAProxy: until every user is back, from its start": GOAL_BACK_MS,
}


def events(
    program: Program, folder: Path, crowd: Crowd, tables: Tables, *, rounds: int, rate: int, patience: float
) -> list[Result]:
    """Every event `rounds` times, in turn."""
    found = {name: Event() for name, *_ in EVENTS}
    with stage(program, folder, crowd, tables, rate=rate, patience=patience) as at, ExitStack() as stack:
        stack.callback(lambda: at.victim.kill())
        stack.callback(lambda: at.agent.child.kill())
        for _ in range(rounds):
            for name, happen, _, _ in EVENTS:
                happen(at, found[name])
    late = [max(w.late_us for w in seen.values()) / 1000.0 for event in found.values() for seen in event.windows]
    return [
        *(row for name, _, failed, wrong in EVENTS for row in _rows(name, found[name], failed, wrong)),
        summarise("what the load itself was late by, at most, in these events", late, unit="ms"),
    ]


def _rows(name: str, event: Event, failed_goal: int | None, wrong_goal: int | None) -> list[Result]:
    rows = [summarise(what, numbers, unit="1/s" if "a second" in what else "") for what, numbers in event.counts.items()]
    rows += [summarise(what, values, unit="ms", goal=_GOALS_MS.get(what)) for what, values in event.times_ms.items()]
    all_windows = [window for seen in event.windows for window in seen.values()]
    sent = sum(window.sent for window in all_windows)
    failed, wrong, again = (sum(getattr(w, what) for w in all_windows) for what in ("failed", "wrong", "again"))
    rows.append(single(f"{name}: requests that failed, of {sent}", failed, "", goal=failed_goal))
    rows.append(single(f"{name}: answers of another instance than the table's", wrong, "", goal=wrong_goal))
    rows.append(single(f"{name}: requests that a caller sent again on a new connection", again, ""))
    during = [[w for n, w in seen.items() if n not in ("warm-up", "steady", "after")] for seen in event.windows]
    steady = [seen["steady"].p99_us / 1000.0 for seen in event.windows]
    rows.append(
        summarise(
            f"{name}: p99 while it goes on",
            [max(w.p99_us for w in each) / 1000.0 for each in during],
            unit="ms",
            baseline=sorted(steady)[len(steady) // 2],
        )
    )
    return rows
