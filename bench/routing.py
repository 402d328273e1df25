"""The gateway under load: what a request costs beside plain consistent hash, and what becomes of it while the fleet changes.

Every answer is checked: the instance that the kernel's table or the hot-user table names must have given it, and must have been
handed the right user key. HAProxy has a core of its own; its configuration, tables and agent are the product's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.report import RESULTS, Result, publish, single
from bench.routing_cost import CONNECTIONS, ladder, latencies, many
from bench.routing_envoy import through_envoy
from bench.routing_events import events
from bench.routing_page import page
from bench.routing_site import haproxy, instances
from bench.routing_world import HOT_SHARE, Crowd, Tables, crowd_of
from testbed.wheels import WheelError


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured; the whole takes under seven minutes, quick under one."""

    hot: int = 100_000
    cold: int = 50_000
    instances: int = 32
    many: int = 1000
    lives: int = 3
    rounds: int = 4
    seconds: float = 0.7
    event_rounds: int = 3
    patience: float = 1.0
    rate: int = 2000


QUICK = Sizes(hot=4_000, cold=2_000, many=100, lives=1, rounds=2, seconds=0.15, event_rounds=1, patience=0.3, rate=500)


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish; of a program that the environment names, as `routing-2.8` or what its version is, without a page."""
    sizes = QUICK if quick else Sizes()
    version = haproxy().version
    name = f"routing-{'.'.join(version.split('.')[:2])}" if os.environ.get("GRFLEET_HAPROXY") else "routing"
    results = measure(sizes, seed=seed)
    notes = notes_of(sizes, version)
    publish(name, results, seed=seed, quick=quick, as_json=as_json, notes=notes)
    if not quick and name == "routing":
        (RESULTS / f"{name}.md").write_text(page(results, notes))


def notes_of(sizes: Sizes, version: str) -> str:
    """Return what the figures are of."""
    return (
        f"HAProxy {version}, one thread on a core of its own; {sizes.instances} instances, load and agent on the others; all but "
        f"the agent come first on their cores where that is allowed; load average {os.getloadavg()[1]:.0f} at the end. "
        f"{sizes.hot} users in the hot-user table ask {HOT_SHARE:.0%} of all requests (power law), {sizes.cold} others the rest. "
        f"Closed loops of {CONNECTIONS} connections in turns of {sizes.seconds} s, {sizes.lives} starts of each HAProxy; shares "
        f"are of pairs of one round. Events: an open loop of {sizes.rate} requests a second, latencies from when one was due"
    )


def measure(sizes: Sizes, *, seed: int) -> list[Result]:
    """Measure everything and return the figures."""
    program = haproxy()
    rounds, seconds = sizes.rounds, sizes.seconds
    with tempfile.TemporaryDirectory(prefix="gr-") as name:
        folder = Path(name)
        child, ports = instances(folder, 0, sizes.instances)
        with child:
            rng = np.random.default_rng(seed)
            crowd = crowd_of(folder, hot=sizes.hot, cold=sizes.cold, instances=sizes.instances, rng=rng)
            tables = Tables(dict(enumerate(ports)))
            results = ladder(program, folder, crowd, tables, lives=sizes.lives, rounds=rounds, seconds=seconds)
            results += latencies(program, folder, crowd, tables, rounds=rounds, seconds=seconds, rate=sizes.rate)
            results += many(program, folder, crowd, tables, count=sizes.many, rounds=rounds, seconds=seconds, seed=seed)
            results += _through_envoy(folder / "envoy", crowd, ports, rounds=rounds, seconds=seconds)
            fewer = Tables(dict(enumerate(ports[:-1])))
            crowd = crowd.among(sizes.instances - 1)
            return results + events(
                program, folder, crowd, fewer, rounds=sizes.event_rounds, rate=sizes.rate, patience=sizes.patience
            )


def _through_envoy(folder: Path, crowd: Crowd, ports: Sequence[int], *, rounds: int, seconds: float) -> list[Result]:
    try:
        return through_envoy(folder, crowd, ports, rounds=rounds, seconds=seconds)
    except WheelError as error:
        return [single(f"picker behind Envoy: not measured, no Envoy here ({str(error)[:80]})", 0, "")]
