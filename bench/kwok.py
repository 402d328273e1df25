"""What many pods cost: until they are Ready, and for an operator that watches and keeps them.

One run starts a control plane with fake nodes (`testbed.kwok`), whose scheduler and controllers are real, and lets one Deployment
make all pods while the operator's watch and store look on. Beside each figure of the operator stands that of a bare list and
watch in the same run, of the same events (see `bench.kwok_baseline`).
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from bench.kwok_pool import Adoption, adopt
from bench.kwok_site import BareWatcher, PodSite, store_complete, until
from bench.operator import ended_by_sigterm
from bench.operator_farm import AgentFarm
from bench.operator_site import AuditLog, OperatorProcess, audit_flags
from bench.report import Result, publish, single, summarise
from testbed.kwok import FakeCluster
from testbed.ports import ReservedPort

NAMESPACE = "bench-pods"
SETTLE_SECONDS = 3.0
"""After the last change, for what is still on its way; also the sweep that follows the list of the watch library."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large a run is."""

    nodes: int
    pods: int
    restarts: int
    rest_seconds: float
    adopted: bool = True


FULL = Sizes(nodes=200, pods=800, restarts=3, rest_seconds=30.0)
LARGE = Sizes(nodes=1000, pods=4000, restarts=3, rest_seconds=30.0, adopted=False)
"""For runs by hand. Nobody adopts these pods: one pool may have 1024 instances."""
QUICK = Sizes(nodes=10, pods=50, restarts=1, rest_seconds=3.0)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU seconds, seconds of the clock, resident memory at most and how much it grew, in MiB."""

    cpu_s: float
    wall_s: float
    rss_mib: float
    grown_mib: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What a process had used and held when a phase began."""

    cpu_s: float
    rss_mib: float

    @classmethod
    def of(cls, watcher: OperatorProcess | BareWatcher) -> Self:
        """Now."""
        return cls(cpu_s=watcher.cpu_seconds(), rss_mib=watcher.rss_mib())

    def cost(self, watcher: OperatorProcess | BareWatcher, *, wall_s: float) -> Cost:
        """What it spent since."""
        now = Mark.of(watcher)
        return Cost(
            cpu_s=now.cpu_s - self.cpu_s,
            wall_s=wall_s,
            rss_mib=watcher.rss_mib("VmHWM"),
            grown_mib=now.rss_mib - self.rss_mib,
        )


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """From the order for all pods until they are Ready; what each watcher spent on it, and the cluster."""

    ready_s: float
    operator: Cost
    bare: Cost
    cluster_cpu: dict[str, float]


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    _run("kwok", QUICK if quick else FULL, quick=quick, as_json=as_json, seed=seed)


def run_large(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish at the size that takes a quarter of an hour and most of the machine."""
    _run("kwok-large", QUICK if quick else LARGE, quick=quick, as_json=as_json, seed=seed)


def _run(name: str, sizes: Sizes, *, quick: bool, as_json: bool, seed: int) -> None:
    with ended_by_sigterm():
        results = measure(sizes, seed=seed)
    notes = (
        "Pods are fake: scheduled and owned by real controllers, Ready as soon as kwok sees them. CPU is that of one process; "
        "the baseline is a bare asynchronous list and watch that keeps every pod whole."
    )
    publish(name, results, seed=seed, quick=quick, as_json=as_json, notes=notes)


def measure(sizes: Sizes, *, seed: int) -> list[Result]:
    """All figures of one run."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="grfleet-bench-")))
        began = time.monotonic()
        flags = audit_flags(directory, (NAMESPACE,))
        cluster = stack.enter_context(FakeCluster(sizes.nodes, start_timeout_seconds=300, api_server_flags=flags))
        nodes_s = time.monotonic() - began
        port = ReservedPort()
        stack.callback(port.release)
        site = PodSite(cluster, directory, namespace=NAMESPACE, port=port.number)
        stack.callback(site.close)
        arrival = _arrival(site, sizes.pods)
        restarts = [_restart(site, number) for number in range(sizes.restarts)]
        rest = _rest(site, sizes.rest_seconds)
        adoption: list[Result] = []
        if sizes.adopted:
            farm = stack.enter_context(AgentFarm(seed=seed, addresses=site.addresses(), port=port.number))
            adoption = _of_adoption(adopt(site, farm, AuditLog(directory / "audit.log"), sizes.pods))
        site.scale(0)
        gone_s = until(site.empty, "no pod is left")
    return [
        single(f"{sizes.nodes} fake nodes: control plane up and all Ready", nodes_s, "s"),
        *_of_arrival(arrival, sizes.pods),
        *_of_restarts(restarts, sizes.pods),
        single(f"{sizes.rest_seconds:.0f} s at rest, {sizes.pods} pods: share of a core", rest[0], "%", baseline=rest[1]),
        *adoption,
        single(f"{sizes.pods} pods: from scale 0 until none is left", gone_s, "s"),
    ]


# Phases --------------------------------------------------------------------------------------------------------------


def _arrival(site: PodSite, pods: int) -> Arrival:
    with site.watcher("arrival") as operator, site.bare("arrival-bare") as bare:
        until(lambda: store_complete(operator) and bare.ready(), "both watch")
        time.sleep(SETTLE_SECONDS)
        before, bare_before, cluster = Mark.of(operator), Mark.of(bare), site.cluster_cpu()
        site.scale(pods)
        ready_s = until(lambda: site.available() == pods, "all pods are Ready")
        used = {name: after - cluster[name] for name, after in site.cluster_cpu().items()}
        time.sleep(SETTLE_SECONDS)
        cost, bare_cost = before.cost(operator, wall_s=ready_s), bare_before.cost(bare, wall_s=ready_s)
        operator.terminate()
    return Arrival(ready_s=ready_s, operator=cost, bare=bare_cost, cluster_cpu=used)


def _restart(site: PodSite, number: int) -> tuple[Cost, Cost]:
    """Each starts alone where all pods are there already, until its list is in."""
    began = time.monotonic()
    with site.watcher(f"restart-{number}") as operator:
        until(lambda: store_complete(operator), "its store is complete", pause_seconds=0.02)
        wall_s = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        found = Cost(cpu_s=operator.cpu_seconds(), wall_s=wall_s, rss_mib=operator.rss_mib("VmHWM"))
        operator.terminate()
    began = time.monotonic()
    with site.bare(f"restart-bare-{number}") as bare:
        until(bare.ready, "its list is in", pause_seconds=0.02)
        wall_s = time.monotonic() - began
        return found, Cost(cpu_s=bare.cpu_seconds(), wall_s=wall_s, rss_mib=bare.rss_mib("VmHWM"))


def _rest(site: PodSite, seconds: float) -> tuple[float, float]:
    """Percent of a core that each takes while no pod changes."""
    with site.watcher("rest") as operator, site.bare("rest-bare") as bare:
        until(lambda: store_complete(operator) and bare.ready(), "both watch")
        time.sleep(SETTLE_SECONDS)
        began, before = time.monotonic(), (operator.cpu_seconds(), bare.cpu_seconds())
        time.sleep(seconds)
        took, after = time.monotonic() - began, (operator.cpu_seconds(), bare.cpu_seconds())
        operator.terminate()
    return 100 * (after[0] - before[0]) / took, 100 * (after[1] - before[1]) / took


# From measurements to rows ------------------------------------------------------------------------------------------


def _of_arrival(arrival: Arrival, pods: int) -> list[Result]:
    operator, bare, cluster = arrival.operator, arrival.bare, arrival.cluster_cpu
    title = f"{pods} pods arrive"
    return [
        single(f"{title}: until all are Ready", arrival.ready_s, "s"),
        single(f"{title}: CPU of API server, etcd, controllers, scheduler and kwok", sum(cluster.values()), "s"),
        single(f"{title}: operator's CPU to watch and keep them", operator.cpu_s, "s", baseline=bare.cpu_s),
        single(f"{title}: operator's CPU per pod", 1000 * operator.cpu_s / pods, "ms", baseline=1000 * bare.cpu_s / pods),
        single(f"{title}: operator's RSS grown", operator.grown_mib, "MiB", baseline=bare.grown_mib),
        single(f"{title}: operator's RSS at most", operator.rss_mib, "MiB", baseline=bare.rss_mib, goal=150.0),
    ]


def _of_restarts(found: list[tuple[Cost, Cost]], pods: int) -> list[Result]:
    title = f"restart, {pods} pods"
    bare = [each[1] for each in found]

    def row(name: str, field: str, unit: str, goal: float | None = None) -> Result:
        baseline = summarise("", [getattr(each, field) for each in bare], unit=unit).value
        return summarise(f"{title}: {name}", [getattr(each[0], field) for each in found], unit=unit, baseline=baseline, goal=goal)

    return [
        row("CPU, start and sweep included", "cpu_s", "s"),
        row("until the list is in", "wall_s", "s"),
        row("RSS at most", "rss_mib", "MiB", 150.0),
    ]


def _of_adoption(found: Adoption) -> list[Result]:
    title, bare = f"a pool adopts {found.pods} pods", found.bare
    return [
        single(f"{title}: until all are ready instances in the table", found.ready_s, "s", baseline=bare["wall_s"]),
        single(f"{title}: operator's CPU until nothing is written any more", found.cpu_s, "s", baseline=bare["cpu_s"]),
        single(f"{title}: operator's writes per instance", found.writes / found.pods, "", baseline=1.0),
        single(f"{title}: looks at agents per instance", found.polls / found.pods, ""),
        single(f"{title}: operator's RSS at most", found.rss_mib, "MiB", baseline=bare["rss_mib"], goal=150.0),
    ]
