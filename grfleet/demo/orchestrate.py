"""Runs the demonstration from nothing to the summary, and takes everything down again whatever happens.

The order: control plane, grfleet and both pools, driver with the live table, questions to engines and agents, replays, summary.
Replays wait until the driver has ended, so that they do not take its processor time.
"""

import asyncio
import json
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from rich.console import Console

from contract.agent import DecisionRecord
from contract.agent_client import AgentClient
from contract.engine import Observe
from contract.engine_client import EngineClient
from grfleet.demo import objects, plot, summary
from grfleet.demo.cluster import Api, bring_up, logs_folder
from grfleet.demo.driver import DriverPlan
from grfleet.demo.fleet import ROOT, DemoFailed, Fleet
from grfleet.demo.gateways import find_haproxy
from grfleet.demo.served import Run, read_run
from grfleet.demo.watch import Watcher
from simulator.workloads import TraceFiles, Workload, demo_workload
from simulator.workloads.demo import DEMO_POOL_KEY, FIXED_SPLITS, SLO_MS
from testbed.control_plane import ControlPlane
from testbed.processes import Usage

DRIVER_GRACE_S = 60.0
LOOK_EVERY_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What the command line said."""

    seconds: float
    out: Path
    traces: Path
    seed: int
    keep: bool
    gateway: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Live:
    """What was learned while everything ran."""

    run: Run
    watcher: Watcher
    observed: dict[str, list[Observe]]
    decisions: dict[str, list[DecisionRecord]]
    usage: Usage
    cpu_percent: float


def run_demo(options: DemoOptions, console: Console) -> None:
    """Run the demonstration and write summary.json, split.png and logs under `options.out`.

    Raises
    ------
    DemoFailed, testbed.control_plane.ControlPlaneError, testbed.binaries.BinariesMissingError, simulator.traces.TraceError
        When something does not work; the message says what, and where to look.
    """
    workload = demo_workload(TraceFiles.under(options.traces), seed=options.seed, duration_s=options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    plane = ControlPlane(progress=lambda line: console.print(line, highlight=False))
    started_s = time.monotonic()

    def say(step: str) -> None:
        console.print(f"[{time.monotonic() - started_s:5.1f} s] {step}", markup=False, highlight=False)

    haproxy = find_haproxy(wanted=options.gateway, say=say)

    say("control plane: etcd, kube-apiserver, kube-controller-manager")
    with plane:
        fleet, api = Fleet(plane, logs_folder(options.out)), Api(plane)
        kept = False
        try:
            bring_up(plane, fleet, api, pool_key=DEMO_POOL_KEY, say=say)
            gateways: dict[str, str] = {}
            if haproxy is not None:
                say(f"a gateway before each pool: HAProxy {haproxy.version}, and grfleet-gateway with the pool's table")
                gateways = fleet.start_gateways(haproxy, pool_key=DEMO_POOL_KEY)
            say(f"{len(workload.requests)} requests for each pool; " + "; ".join(_phase_text(workload)))
            console.print(
                f"  in another terminal: KUBECONFIG={plane.kubeconfig} {_command(plane, 'kubectl')} get grp,gri -A",
                highlight=False,
                soft_wrap=True,
            )
            live = _drive(plane, fleet, api, workload, options, console, gateways)
            say("replaying fixed splits on the same requests, in virtual time")
            result = _summarise(workload, live, console, haproxy.version if haproxy is not None else None)
            _write(options.out, workload, live, result, console)
            kept = options.keep
        finally:
            api.close()
            if not kept:
                fleet.stop()
        if kept:
            plane.detach()
            _say_what_to_try(plane, console, gateways)


def _drive(
    plane: ControlPlane,
    fleet: Fleet,
    api: Api,
    workload: Workload,
    options: DemoOptions,
    console: Console,
    gateways: dict[str, str],
) -> Live:
    """Let the driver play the workload while the table is shown; then ask engines and agents what they did."""
    result, progress = plane.directory / "run.bin", plane.directory / "progress.json"
    plan = DriverPlan(
        api_url=plane.url,
        api_ca_file=str(plane.ca_file),
        api_token=plane.admin_token,
        pools=[(namespace, objects.POOL) for namespace in objects.NAMESPACES],
        instances_per_pool=objects.INSTANCES,
        traces=str(options.traces),
        seed=options.seed,
        duration_s=options.seconds,
        pool_key_hex=DEMO_POOL_KEY.hex(),
        result_file=str(result),
        progress_file=str(progress),
        gateways=gateways,
        clocks={endpoint.service_url: endpoint.engine_url for endpoint in fleet.endpoints},
    )
    plan_file = plane.directory / "driver.json"
    plan_file.touch(mode=0o600)
    plan_file.write_bytes(msgspec.json.encode(plan))
    marks = asyncio.run(_decided(fleet))
    before, began_s = fleet.usage(), time.monotonic()
    driver = fleet.start_driver(plan_file)
    deadline_s = began_s + workload.duration_ms / 1000.0 + DRIVER_GRACE_S
    phases = tuple((phase.end_ms, phase.name) for phase in workload.phases)
    with Watcher(
        api=api, console=console, progress_file=progress, duration_ms=workload.duration_ms, phase_names=phases
    ) as watcher:
        peak = before
        while driver.poll() is None:
            fleet.check(but=("driver",))
            watcher.look()
            usage = fleet.usage()
            peak = max(peak, usage, key=lambda u: u.rss_bytes)
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"the driver is still not done; its log is {fleet.log('driver')}\n{fleet.tail('driver')}")
            last, last_s = usage, time.monotonic()
            time.sleep(LOOK_EVERY_S)
        watcher.look()
    if driver.returncode != 0:
        raise DemoFailed(
            f"the driver ended with code {driver.returncode}; its log is {fleet.log('driver')}\n{fleet.tail('driver')}"
        )
    observed, decisions = asyncio.run(_ask(fleet, marks))
    cpu_percent = 100.0 * (last.cpu_seconds - before.cpu_seconds) / max(last_s - began_s, 1e-9)
    return Live(
        run=read_run(result), watcher=watcher, observed=observed, decisions=decisions, usage=peak, cpu_percent=cpu_percent
    )


async def _decided(fleet: Fleet) -> dict[str, int]:
    """Return how many decisions each agent has made, by its URL: what comes later belongs to the run."""
    marks = {}
    for endpoint in fleet.endpoints:
        async with AgentClient(endpoint.agent_url, timeout_s=10.0) as agent:
            marks[endpoint.agent_url] = (await agent.status()).decisions
    return marks


async def _ask(fleet: Fleet, marks: dict[str, int]) -> tuple[dict[str, list[Observe]], dict[str, list[DecisionRecord]]]:
    """Return the engines' counters and the agents' decisions, by pool."""
    observed: dict[str, list[Observe]] = {namespace: [] for namespace in objects.NAMESPACES}
    decisions: dict[str, list[DecisionRecord]] = {namespace: [] for namespace in objects.NAMESPACES}
    for endpoint in fleet.endpoints:
        async with EngineClient(endpoint.engine_url, timeout_s=10.0) as engine:
            observed[endpoint.namespace].append(await engine.observe())
        async with AgentClient(endpoint.agent_url, timeout_s=10.0) as agent:
            after = marks[endpoint.agent_url]
            while (page := await agent.decisions(after=after, limit=100)).decisions:
                decisions[endpoint.namespace].extend(page.decisions)
                after = page.next
    return observed, decisions


def _summarise(workload: Workload, live: Live, console: Console, haproxy: str | None) -> dict[str, Any]:
    windows = summary.windows_of(workload)
    adaptive = next(pool for pool in live.run.pools if pool.pool == objects.ADAPTIVE)
    outcomes = summary.replay_splits(workload.requests, adaptive, FIXED_SPLITS, instances=objects.INSTANCES)
    state = summary.health(live.run)
    result: dict[str, Any] = {
        "pools": {
            pool.pool: summary.pool_figures(pool, windows, live.observed[pool.pool], live.decisions[pool.pool])
            for pool in live.run.pools
        },
        "replayed": summary.replayed_figures(outcomes, windows),
        "reliable": state.pop("reliable"),
        "gateway": haproxy,
        "slo_ms": SLO_MS,
        "phases": [phase.name for phase in workload.phases],
        "workload": [asdict(phase) for phase in workload.phases],
        "measured_from_ms": workload.measured_from_ms,
        "table_generations": live.watcher.table_generations,
        "health": state
        | {
            "peak_rss_mib": round(live.usage.rss_bytes / 2**20),
            "cpu_percent": round(live.cpu_percent),
            "driver_cpu_seconds": round(live.run.cpu_seconds, 1),
        },
        "emulation": True,
    }
    summary.show(console, result)
    console.print(
        f"All processes together: {live.usage.rss_bytes / 2**30:.2f} GiB at most, {live.cpu_percent / 100:.2f} cores on average. "
        "Engines are emulations: latencies come from a service law, not from an accelerator.",
        soft_wrap=True,
        highlight=False,
    )
    return result


def _write(out: Path, workload: Workload, live: Live, result: dict[str, Any], console: Console) -> None:
    (out / "summary.json").write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    with (out / "splits.jsonl").open("w") as stream:
        for seen in live.watcher.history:
            stream.write(json.dumps(asdict(seen) | {"trace_s": seen.unix_s - live.run.started_unix_s}) + "\n")
    best = {name: summary.best_split(result["replayed"], name) for name in result["phases"]}
    picture = out / "split.png"
    if plot.draw(picture, history=live.watcher.history, run=live.run, workload=workload, best_by_phase=best):
        console.print(f"Written: {out / 'summary.json'}, {picture}", highlight=False)
    else:
        console.print(f"Written: {out / 'summary.json'}; no plot, because matplotlib is not installed", highlight=False)


def _phase_text(workload: Workload) -> list[str]:
    return [
        f"{phase.name} {phase.start_ms / 1e3:.0f}-{phase.end_ms / 1e3:.0f} s ({phase.users} users"
        + (f", stream repeated {phase.clones} times" if phase.clones else "")
        + ")"
        for phase in workload.phases
    ]


def _say_what_to_try(plane: ControlPlane, console: Console, gateways: dict[str, str]) -> None:
    to_static = '{"spec":{"strategy":"Static"}}'
    absent = {str(path.parent): None for name, path in _programs(plane).items() if shutil.which(name) is None}
    lines = (
        "Everything keeps running, without traffic. Try:",
        *([f"export PATH={':'.join(absent)}:$PATH"] if absent else []),
        f"export KUBECONFIG={plane.kubeconfig}",
        "kubectl get grp,gri,grt -A",
        "kubectl get hbmp,amod -A",
        "kubectl grfleet top -A    # Ctrl-C ends it",
        f"kubectl describe gri {objects.POOL}-0 -n {objects.ADAPTIVE}",
        f"grfleet decisions {objects.POOL}-0 -n {objects.ADAPTIVE} --last 5",
        f"kubectl patch hbmp split -n {objects.ADAPTIVE} --type merge -p '{to_static}'  # back to 50 %, four points a second",
        *(
            f"curl -si -H 'x-user-id: ann' {address}/gr/v1/ready | grep -i x-gr-instance    # who serves ann in {namespace}"
            for namespace, address in gateways.items()
        ),
        'grfleet testbed down --kubeconfig "$KUBECONFIG"    # stops all of it',
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _programs(plane: ControlPlane) -> dict[str, Path]:
    """Where the programs are that a reader is told to type: in the cache and the virtual environment, hardly ever on the PATH."""
    return {"grfleet": Path(sys.executable).parent / "grfleet", "kubectl": plane.binaries["kubectl"]}


def _command(plane: ControlPlane, name: str) -> str:
    return name if shutil.which(name) else str(_programs(plane)[name])


def interrupt(number: int, frame: FrameType | None) -> None:
    """End in order on SIGTERM exactly as on Ctrl-C; more of them do not disturb the taking down."""
    for other in _SIGNALS:
        signal.signal(other, _ignore)
    raise KeyboardInterrupt


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler of our own: with SIG_IGN the interpreter complains about a signal that is already on its way."""


def trap_signals() -> None:
    """Let SIGTERM and SIGINT unwind the stack, so that everything is stopped on the way."""
    for number in _SIGNALS:
        signal.signal(number, interrupt)


def traces_folder() -> Path:
    """Return the traces that ship with the checkout."""
    return ROOT / "traces"


def console_of() -> Console:
    """Return the console; without a terminal lines are not cut."""
    return Console(width=None if sys.stdout.isatty() else 160)
