"""What tiers are worth in service time: one request alone on the accelerator, by where its user's state lay."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from bench.report import Result, single
from bench.tiers_eviction import BYTES_PER_TOKEN
from bench.tiers_store import GIB, HOURS, QUICK_HOURS, feed, feed_config
from simulator.physics.accelerator import load_accelerator
from simulator.physics.model_shape import HSTU_MTSERVE
from simulator.physics.reload import recompute_or_reload, stall_ms
from simulator.physics.service import ServiceLaw, Work
from simulator.physics.transfer import Direction, native_transfer
from simulator.tiers.store import TieredStore
from simulator.tiers.store_replay import StoreReplayed, replay_on_store

CANDIDATES = 256
DEVICES = ("l20", "a100", "h100")
Timed = Callable[[ServiceLaw, int, int, int], float]


def measure(*, quick: bool, seed: int) -> tuple[list[Result], list[Table]]:
    """Return figures, and the table that stands behind them."""
    visits = feed(QUICK_HOURS if quick else HOURS, seed)
    places: dict[tuple[int, int], StoreReplayed] = {}
    for hbm_gib, host_gib in ((0, 0), (20, 0), (20, 192)):
        config = feed_config(hbm_bytes=hbm_gib * GIB, dram_bytes=host_gib * GIB)
        places[hbm_gib, host_gib] = replay_on_store(TieredStore(config), visits)
    runs: tuple[tuple[str, tuple[int, int], Timed], ...] = (
        ("no cache", (0, 0), _bulk),
        ("HBM 20 GiB", (20, 0), _bulk),
        ("+ host, loaded whole", (20, 192), _bulk),
        ("+ host, 1 layer early", (20, 192), _early),
        ("+ host, load or recompute", (20, 192), _cheaper),
    )
    table = Table(title="HSTU 8 x 1024, a feed of 1 000 users, returning visits: service time alone in ms, mean (P99)")
    table.add_column("device")
    for name, _, _ in runs:
        table.add_column(name, justify="right")
    results = []
    for device in DEVICES:
        law = ServiceLaw(accelerator=load_accelerator(device), shape=HSTU_MTSERVE)
        times = {name: _times(law, places[where], timed) for name, where, timed in runs}
        table.add_row(device, *(f"{value.mean():.2f} ({np.percentile(value, 99):.1f})" for value in times.values()))
        best, bare = times["+ host, load or recompute"], times["no cache"]
        results.append(single(f"service P99 alone, {device}, all tiers", _p99(best), "ms", baseline=_p99(bare)))
    return results, [table]


def _p99(values: NDArray[np.float64]) -> float:
    return float(np.percentile(values, 99))


def _times(law: ServiceLaw, outcome: StoreReplayed, timed: Timed) -> NDArray[np.float64]:
    rows = outcome.tokens[outcome.visits.returning].tolist()
    return np.array([timed(law, hbm, dram + ssd, computed) for hbm, dram, ssd, computed in rows])


def _work(hbm: int, loaded: int, computed: int) -> tuple[Work, Work]:
    """The request with what HBM has, and with what the host adds."""
    history = hbm + loaded + computed
    return (
        Work(history_tokens=history, cached_tokens=hbm, candidate_tokens=CANDIDATES),
        Work(history_tokens=history, cached_tokens=hbm + loaded, candidate_tokens=CANDIDATES),
    )


def _bulk(law: ServiceLaw, hbm: int, loaded: int, computed: int) -> float:
    link = native_transfer(law.accelerator)
    _, with_host = _work(hbm, loaded, computed)
    return law.compute_ms([with_host]) + link.transfer_ms(Direction.TO_DEVICE, loaded * BYTES_PER_TOKEN)


def _early(law: ServiceLaw, hbm: int, loaded: int, computed: int) -> float:
    """Loading begins so early that its fixed time and one layer have passed when computing can start."""
    link = native_transfer(law.accelerator)
    compute_ms = law.compute_ms([_work(hbm, loaded, computed)[1]])
    load_ms = loaded * BYTES_PER_TOKEN / link.bytes_per_ms(Direction.TO_DEVICE)
    layers = law.shape.layers
    return compute_ms + stall_ms(load_ms=load_ms, compute_ms=compute_ms, layers=layers, early_ms=load_ms / layers)


def _cheaper(law: ServiceLaw, hbm: int, loaded: int, computed: int) -> float:
    """The same early load, or computing what the host has once more, whichever is shorter for this request."""
    without, _ = _work(hbm, loaded, computed)
    link = native_transfer(law.accelerator)
    early_ms = (
        link.fixed_ms(Direction.TO_DEVICE) + loaded * BYTES_PER_TOKEN / link.bytes_per_ms(Direction.TO_DEVICE) / law.shape.layers
    )
    choice = recompute_or_reload(law, link, without, host_tokens=hbm + loaded, early_ms=early_ms)
    return min(choice.recompute_ms, choice.reload_ms)
