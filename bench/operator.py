"""What the operator costs: a cold start with thousands of instances, a restart when all is well, rest, observation, failover.

One run starts a real control plane, operators as processes under their own RBAC, and one server that plays all agents. CPU time
is the kernel's account of the operator process; requests are counted from the API server's audit log. Beside each cost stands
that of a bare loop which does the same outside work (see `bench.operator_baseline`), measured in the same run.
"""

import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bench.operator_farm import AgentFarm
from bench.operator_phases import ColdStart, Failover, Rest, Restart, cold_start, failovers, restart
from bench.operator_site import MANIFESTS, Site, audit_flags
from bench.report import Result, publish, single, summarise
from testbed.control_plane import ControlPlane
from testbed.kinds import install_kinds

COLD, STEADY = "bench-cold", "bench-steady"
POLL_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large a run is. With `observed` None the cold fleet is observed as well, which saves a second cold start."""

    cold: int
    observed: int | None
    restarts: int
    window_seconds: float
    terminations: int
    kills: int


FULL = Sizes(cold=4000, observed=1000, restarts=3, window_seconds=60.0, terminations=5, kills=3)
QUICK = Sizes(cold=300, observed=None, restarts=1, window_seconds=10.0, terminations=2, kills=0)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a bare loop needs for the same outside work: the baseline."""

    write: dict[str, float]
    list: dict[str, float]
    poll: dict[str, float]


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    with ended_by_sigterm():
        results, remarks = measure(QUICK if quick else FULL, seed=seed)
    notes = "\n".join([notes_on(results), *remarks])
    publish("operator", results, seed=seed, quick=quick, as_json=as_json, notes=notes)


def measure(sizes: Sizes, *, seed: int) -> tuple[list[Result], list[str]]:
    """All figures of one run, and remarks on what should not have been."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grfleet-bench-")))
        flags = audit_flags(directory, (COLD, STEADY))
        plane = stack.enter_context(ControlPlane(api_server_flags=flags))
        farm = stack.enter_context(AgentFarm(seed=seed, hosts=max(sizes.cold, sizes.observed or 0)))
        install_kinds(plane, MANIFESTS)

        def site(namespace: str, instances: int) -> Site:
            made = Site(plane, farm, directory, namespace, instances=instances)
            stack.callback(made.close)
            return made

        first = site(COLD, sizes.cold)
        cold = cold_start(first)
        last = [restart(first, rest_seconds=sizes.window_seconds)]
        restarts = [*(restart(first, rest_seconds=2.0) for _ in range(sizes.restarts - 1)), *last]
        if sizes.observed is None:
            observed, rest, others = first, last[0].rest, []
        else:
            observed = site(STEADY, sizes.observed)
            others = [cold_start(observed)]
            rest = restart(observed, rest_seconds=sizes.window_seconds).rest
        ended, killed = failovers(observed, terminations=sizes.terminations, kills=sizes.kills)
        poll = observed.baseline("poll")
        costs = Costs(write=first.baseline("write"), list=first.baseline("list"), poll=poll)
    results = [
        *_of_cold(cold, costs, goals=True),
        *(result for other in others for result in _of_cold(other, None, goals=False)),
        *_of_restarts(restarts, costs, instances=cold.instances),
        *_of_rest(last[0].rest, instances=cold.instances),
        *_of_observation(rest, costs, instances=observed.instances),
        *_of_failovers(ended, killed),
    ]
    written = Counter(what for each in restarts for what in each.writes)
    return results, [f"Written after a restart all the same: {times} times {what}." for what, times in written.items()]


# From measurements to rows -----------------------------------------------------------------------------------------


def _of_cold(cold: ColdStart, costs: Costs | None, *, goals: bool) -> list[Result]:
    title, n = f"cold, {cold.instances} instances", cold.instances
    write = costs.write if costs is not None else {}
    return [
        single(f"{title}: CPU", cold.cpu_s, "s", baseline=write.get("cpu_s"), goal=10.0 if goals else None),
        single(f"{title}: wall", cold.wall_s, "s", baseline=write.get("wall_s")),
        single(f"{title}: writes to an instance", cold.instance_writes / n, "", baseline=1.0, goal=1.0 if goals else None),
        single(f"{title}: all writes per instance", (cold.all_writes + cold.events) / n, "", baseline=1.0),
        single(f"{title}: agent calls per instance", (cold.polls + cold.pushes) / n, ""),
        single(
            f"{title}: CPU per write",
            1000.0 * cold.cpu_s / max(1, cold.all_writes + cold.events),
            "ms",
            baseline=1000.0 * write["cpu_s"] / n if write else None,
        ),
        single(f"{title}: RSS at most", cold.rss_mib, "MiB", baseline=write.get("rss_mib"), goal=150.0 if goals else None),
    ]


def _of_restarts(found: Sequence[Restart], costs: Costs, *, instances: int) -> list[Result]:
    title = f"restart, {instances} instances"
    return [
        summarise(
            f"{title}: CPU until every agent was asked",
            [each.cpu_s for each in found],
            unit="s",
            baseline=costs.list["cpu_s"],
            goal=3.0,
        ),
        summarise(f"{title}: wall", [each.wall_s for each in found], unit="s", baseline=costs.list["wall_s"]),
        summarise(f"{title}: writes", [len(each.writes) for each in found], unit="", goal=0.0),
        summarise(f"{title}: RSS at most", [each.rss_mib for each in found], unit="MiB", goal=150.0),
        summarise(f"{title}: SIGTERM to exit", [each.exit_s for each in found], unit="s", goal=2.0),
    ]


def _of_rest(rest: Rest, *, instances: int) -> list[Result]:
    title = f"{rest.seconds:.0f} s at rest, {instances} instances"
    return [
        single(f"{title}: writes", rest.writes, "", goal=0.0),
        single(f"{title}: reads", rest.reads, "", goal=0.0),
        single(f"{title}: watches renewed", rest.watches, ""),
        single(f"{title}: share of a core, polls included", rest.core_percent, "%"),
    ]


def _of_observation(rest: Rest, costs: Costs, *, instances: int) -> list[Result]:
    title = f"{instances} instances observed each {POLL_SECONDS:.0f} s"
    polls = rest.polls_per_second
    bare_percent = 100.0 * costs.poll["work_cpu_s"] * polls / instances
    return [
        single(f"{title}: share of a core", rest.core_percent, "%", baseline=bare_percent, goal=30.0),
        single(f"{title}: polls per second", polls, "1/s", baseline=instances / POLL_SECONDS),
        single(
            f"{title}: CPU per poll",
            10.0 * rest.core_percent / polls if polls else 0.0,
            "ms",
            baseline=1000.0 * costs.poll["work_cpu_s"] / instances,
        ),
    ]


def _of_failovers(ended: Sequence[Failover], killed: Sequence[Failover]) -> list[Result]:
    rows = []
    for title, goal, found in (("SIGTERM", 1.0, ended), ("SIGKILL", 16.0, killed)):
        if found:
            rows.append(summarise(f"failover on {title}", [each.seconds for each in found], unit="s", goal=goal))
    both = [each.both_led for each in (*ended, *killed)]
    rows.append(summarise("failover: looks at which both led", both, unit="", goal=0.0))
    return rows


# Why a goal is missed ----------------------------------------------------------------------------------------------

WHY: dict[str, str] = {
    r"^cold.*: CPU$": (
        "Cold CPU: an instance takes four writes and five to seven calls to its agent, which cost a bare loop about 5 ms: twice "
        "what the goal leaves. Each write also comes back as a watch event, and has whole pools looked at. The profile is flat: "
        "about half is HTTP, TLS and JSON of the two clients, a tenth the watch library, the rest is ours."
    ),
    r"^cold.*writes to an instance$": (
        "Writes to an instance: an entry of a pool becomes a ready instance by four writes of two field managers: the object, "
        "its intent (numbered by the API server before it may be pushed), what the agent says, and Ready."
    ),
    r"^restart.*CPU until": (
        "Restart CPU: this includes asking every agent once, at the CPU per poll that stands below, and start and imports."
    ),
    r"RSS at most$": (
        "RSS: libraries take 90 MiB before the first object. Beyond that an instance takes its stored object (6 KiB), a model "
        "of it while that is read often (12 KiB) and an open connection to its agent (7 KiB); the watch library holds a whole "
        "list, 25 KiB an object, when it starts."
    ),
}
"""By a pattern of a figure's name: what costs so much."""


def notes_on(results: Sequence[Result]) -> str:
    """What the figures mean, and a word on each missed goal."""
    missed = [result.name for result in results if result.met is False]
    words = ["CPU is that of the operator process; the baseline is a bare asynchronous loop that does the same outside work."]
    words += [text for pattern, text in WHY.items() if any(re.search(pattern, name) for name in missed)]
    return "\n".join(words)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the run, so that every process it started is ended."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
