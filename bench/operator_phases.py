"""The phases of the operator benchmark, each as a function from a namespace to what was measured there."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.operator_site import OperatorProcess, Site

QUIET_SECONDS = 11.0
"""The operator may hold a changed number back for ten seconds; after this long without a write nothing is left to write."""
PATIENCE_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class ColdStart:
    """From the start of the process to its last write, with every pool ready.

    Attributes
    ----------
    writes
        Requests that change an object of ours, by resource; `instance_writes` are those to GRInstances and their status.
    """

    instances: int
    wall_s: float
    cpu_s: float
    rss_mib: float
    instance_writes: int
    all_writes: int
    events: int
    polls: int
    pushes: int


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What goes on while nothing changes, apart from renewing the Lease and asking agents."""

    seconds: float
    writes: int
    reads: int
    watches: int
    core_percent: float
    polls_per_second: float


@dataclass(frozen=True, kw_only=True)
class Restart:
    """From the start of a process that finds everything in order until it has asked every agent, and the rest after it.

    Attributes
    ----------
    writes
        What was written all the same, as "verb resource", until the end of the rest.
    """

    wall_s: float
    cpu_s: float
    writes: tuple[str, ...]
    rss_mib: float
    rest: Rest
    exit_s: float


@dataclass(frozen=True, kw_only=True)
class Failover:
    """Seconds from the signal to the other operator's name in the Lease, and how often both claimed to lead."""

    seconds: float
    both_led: int


def cold_start(site: Site) -> ColdStart:
    """Start an operator on pools that nobody has worked on yet."""
    site.farm.reset()
    with site.operator() as operator:
        cpu = [(time.time(), 0.0)]
        counted, since = 0, time.time()
        for _ in _until_done(operator, "every pool is ready and nothing is written any more", pause_seconds=0.5):
            cpu.append((time.time(), operator.cpu_seconds()))
            counts = site.audit.count(site.namespace, since=operator.started)
            changes = counts["write"] + counts["event"]
            if changes != counted:
                counted, since = changes, time.time()
            elif changes and time.time() - since >= QUIET_SECONDS and site.all_true("Ready", "TablePublished"):
                break
        calls = [c for c in site.audit.calls(site.namespace, since=operator.started) if c.kind in ("write", "event")]
        ended = max(call.at for call in calls)
        writes = [call for call in calls if call.kind == "write"]
        rss_mib = operator.rss_mib("VmHWM")
        operator.terminate()  # gives the Lease back, so that the next one need not wait
        return ColdStart(
            instances=site.instances,
            wall_s=ended - operator.started,
            cpu_s=next(seconds for at, seconds in cpu if at >= ended),
            rss_mib=rss_mib,
            instance_writes=sum(call.resource.startswith("grinstances") for call in writes),
            all_writes=len(writes),
            events=len(calls) - len(writes),
            polls=site.farm.counts.polls,
            pushes=site.farm.counts.pushes,
        )


def restart(site: Site, *, rest_seconds: float) -> Restart:
    """Start an operator where everything is in order, and let it rest afterwards."""
    site.farm.reset()
    with site.operator() as operator:
        for _ in _until_done(operator, "every agent was asked once"):
            if len(site.farm.counts.asked) == site.instances:
                break
        wall_s, cpu_s = time.time() - operator.started, operator.cpu_seconds()
        time.sleep(3.0)  # the store compares itself with a list once more, two seconds after the watches began
        rest = _rest(site, operator, seconds=rest_seconds)
        calls = site.audit.calls(site.namespace, since=operator.started)
        return Restart(
            wall_s=wall_s,
            cpu_s=cpu_s,
            writes=tuple(f"{call.verb} {call.resource}" for call in calls if call.kind in ("write", "event")),
            rss_mib=operator.rss_mib("VmHWM"),
            rest=rest,
            exit_s=operator.terminate(),
        )


def _rest(site: Site, operator: OperatorProcess, *, seconds: float) -> Rest:
    site.farm.reset()
    began, cpu = time.time(), operator.cpu_seconds()
    time.sleep(seconds)
    took, used = time.time() - began, operator.cpu_seconds() - cpu
    counts = site.audit.count(site.namespace, since=began)
    return Rest(
        seconds=took,
        writes=counts["write"] + counts["event"],
        reads=counts["read"] + counts["review"],
        watches=counts["watch"],
        core_percent=100.0 * used / took,
        polls_per_second=site.farm.counts.polls / took,
    )


def failovers(site: Site, *, terminations: int, kills: int) -> tuple[list[Failover], list[Failover]]:
    """Two operators; the one that leads is ended again and again, first politely, then not. Returns (SIGTERM, SIGKILL)."""
    with ExitStack() as stack:
        numbers = iter(range(1000))

        def start() -> OperatorProcess:
            operator = stack.enter_context(site.operator(f"operator{next(numbers)}"))
            for _ in _until_done(operator, "its store is complete"):
                if operator.ready():
                    return operator
            raise AssertionError("unreachable: it is ready or raised")

        leader = start()
        for _ in _until_done(leader, "it leads"):
            if site.lease_holder() == leader.name:
                break
        found: dict[signal.Signals, list[Failover]] = {signal.SIGTERM: [], signal.SIGKILL: []}
        for number in [signal.SIGTERM] * terminations + [signal.SIGKILL] * kills:
            follower = start()
            found[number].append(_failover(site, leader, follower, number))
            leader.kill()
            leader = follower
        return found[signal.SIGTERM], found[signal.SIGKILL]


def _failover(site: Site, leader: OperatorProcess, follower: OperatorProcess, number: signal.Signals) -> Failover:
    time.sleep(2.5)  # at least one renewal, so that the Lease is fresh as in normal life
    with _overlaps(leader, follower) as overlaps:
        began = time.monotonic()
        leader.send(number)
        for _ in _until_done(follower, "it holds the Lease", pause_seconds=0.01):
            if site.lease_holder() == follower.name:
                break
        seconds = time.monotonic() - began
        time.sleep(0.5)
    return Failover(seconds=seconds, both_led=len(overlaps))


@contextmanager
def _overlaps(one: OperatorProcess, other: OperatorProcess) -> Iterator[list[float]]:
    """Collects the moments at which `one` claimed to lead both before and after `other` did."""
    found: list[float] = []
    stop = threading.Event()

    def look() -> None:
        before = one.leads()
        while not stop.wait(0.05):
            between = other.leads()
            after = one.leads()
            if before and between and after:
                found.append(time.monotonic())
            before = after

    thread = threading.Thread(target=look, name="overlaps")
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _until_done(operator: OperatorProcess, what: str, *, pause_seconds: float = 0.1) -> Iterator[None]:
    """Yield again and again until the caller breaks; raises when the operator ends or it takes too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if not operator.running:
            raise RuntimeError(f"the operator ended before {what}:\n{operator.tail()}")
        yield
        time.sleep(pause_seconds)
    raise TimeoutError(f"not within {PATIENCE_SECONDS:.0f} s: {what}\n{operator.tail()}")
