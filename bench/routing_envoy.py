"""The endpoint picker behind a real Envoy under the same load, beside Envoy's own hash of the same run.

What the picker costs by itself, and beside other servers of its protocol, is `python -m bench picker`; here it stands for the
count of answers by another than the owner, and for the throughput of one core that Envoy and picker share.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from bench.picker import ENVOY_ALONE, PICKER
from bench.picker_site import INSTANCES, POOL_KEY, Site, Way, cpu_seconds
from bench.report import Result, single, summarise
from bench.routing_site import Window, cores, load, opens, until
from bench.routing_world import ANYBODY, Crowd
from contract.keys import slot_of, user_key
from testbed.envoy import ensure_envoy

_WARM_UP_S = 0.3
_CONNECTIONS = 8
"""So few that the bound of neither moves a user."""


class Ports:
    """Instances that run elsewhere, as the picker's site takes them."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)

    async def start(self) -> None:
        """Nothing: they run."""

    def stop(self) -> None:
        """Nothing: they are stopped where they were started."""


class Behind(Site):
    """Envoy and the picker on the core of the data plane, before instances that the C load knows."""

    def __init__(self, envoy: Path, folder: Path, ports: Sequence[int]) -> None:
        super().__init__(envoy, folder, (ENVOY_ALONE, PICKER))
        self.toys = Ports(ports)  # type: ignore[assignment]  # a stand-in with all that the site asks of its toys

    def port(self, way: Way) -> int:
        return self._ports[way.name]

    def cpu_us(self) -> tuple[float, float]:
        """Processor time so far of Envoy and of the picker."""
        return tuple(cpu_seconds(self._processes[name].pid) * 1e6 for name in ("envoy", PICKER.server))  # type: ignore[return-value]  # two names

    def pin(self) -> None:
        for process in self._processes.values():
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores()[0])

    async def _answering(self, way: Way) -> None:
        port = self.port(way)
        await asyncio.to_thread(until, lambda: opens(port) and opens(self._servers[PICKER.server]), "Envoy and the picker listen")


async def _through(
    folder: Path, port: int, users: Path, order: Path, seconds: float, site: Behind
) -> tuple[Window, float, float]:
    with load(folder, port, users, order, connections=_CONNECTIONS) as asking:
        await asyncio.sleep(_WARM_UP_S)
        asking.window("measured")
        before = site.cpu_us()
        await asyncio.sleep(seconds)
        after = site.cpu_us()
        window = asking.end()["measured"]
    answers = max(1, window.ok + window.wrong)
    return window, (after[0] - before[0]) / answers, (after[1] - before[1]) / answers


async def _measure(folder: Path, crowd: Crowd, ports: Sequence[int], rounds: int, seconds: float) -> list[Result]:
    own = [slot_of(user_key(POOL_KEY, each)) % INSTANCES for each in crowd.ids]
    files = {
        ENVOY_ALONE: crowd.expect("envoy", [ANYBODY] * len(own), keyed=False),
        PICKER: crowd.expect("picker", own, keyed=False),
    }
    await asyncio.to_thread(folder.mkdir)
    site = Behind(ensure_envoy(), folder, ports)
    taken: dict[Way, list[tuple[Window, float, float]]] = {ENVOY_ALONE: [], PICKER: []}
    try:
        await site.start()
        site.pin()
        for _ in range(rounds):
            for way, found in taken.items():
                found.append(await _through(folder, site.port(way), files[way], crowd.order, seconds, site))
    finally:
        site.stop()
    alone, picked = taken[ENVOY_ALONE], taken[PICKER]
    envoy_us = sorted(each[1] for each in alone)[rounds // 2]
    sent = sum(each[0].sent for each in picked)
    return [
        summarise("Envoy, its own hash: CPU a request", [each[1] for each in alone], unit="us"),
        summarise("Envoy that asks the picker: CPU a request", [each[1] for each in picked], unit="us", baseline=envoy_us),
        summarise("the picker behind it: CPU a request", [each[2] for each in picked], unit="us", baseline=envoy_us),
        summarise(
            "requests a second through Envoy and picker on one core",
            [each[0].rate for each in picked],
            unit="1/s",
            baseline=sorted(each[0].rate for each in alone)[rounds // 2],
        ),
        single(f"picker behind Envoy: requests that failed, of {sent}", sum(each[0].failed for each in picked), "", goal=0),
        single("picker behind Envoy: answers of another than the owner", sum(each[0].wrong for each in picked), "", goal=0),
    ]


def through_envoy(folder: Path, crowd: Crowd, ports: Sequence[int], *, rounds: int, seconds: float) -> list[Result]:
    """Envoy's own hash and the picker in turn."""
    return asyncio.run(_measure(folder, crowd, ports[:INSTANCES], rounds, seconds))
