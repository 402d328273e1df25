"""Layer-wise loading: the share of a load that compute hides, measured on the host link, beside a known run; published shapes."""

from rich.table import Table

from bench.report import Result, single
from bench.tiers_known import LOADING
from simulator.physics.accelerator import load_accelerator
from simulator.physics.link import HostLink
from simulator.physics.model_shape import HSTU_PUBLISHED
from simulator.physics.service import ServiceLaw, Work
from simulator.physics.transfer import Direction, TransferCost, native_transfer
from simulator.tiers.preload import Preloaded, PreloadPlan, preload, projection_share, read_buffer_bytes

LAYERS, COMPUTE_MS, READY_MS = 8, 80.0, 10_000.0
PLAIN_LINK = TransferCost(
    name="throttled copy",
    to_device_fixed_ms=0.05,
    to_device_bytes_per_second=600_000_000,
    to_host_fixed_ms=0.05,
    to_host_bytes_per_second=600_000_000,
    to_device_duplex_share=0.45,
    to_host_duplex_share=0.97,
)
NAMES = {"bulk": "bulk (x resident)", "layer-wise": "layer-wise", "buffer": "+ buffer", "early": "+ buffer + 1 layer early"}
NAMES |= {"early alone": "1 layer early, no buffer", "chunks": "layers in 4 chunks"}
#: Those whose hidden share has a goal: 0.90 up to rho 1, 0.9 / rho above.
WITH_GOAL = ("early", "early alone", "chunks")


def measure() -> tuple[list[Result], list[Table]]:
    """Return figures with goals, and the tables that stand behind them."""
    results = []
    for rho in LOADING:
        plain = _load(rho, "layer-wise").hidden_share
        goal = 0.90 if rho <= 1 else 0.9 / rho
        for name in WITH_GOAL:
            hidden = _load(rho, name).hidden_share
            title = f"load hidden, {NAMES[name]}, rho {rho:g}"
            results.append(single(title, hidden, "share", baseline=plain, goal=goal, at_least=True))
    worst = max(
        abs(_load(rho, name).hidden_share - known)
        for rho, row in LOADING.items()
        for name, known in row.items()
        if name != "bulk"
    )
    results.append(single("largest distance from the known loading table", worst, "share", goal=0.05))
    return results, [_known_table(), _shapes_table()]


def _plan(name: str, rho: float) -> PreloadPlan:
    buffer = read_buffer_bytes(
        load_ms=rho * COMPUTE_MS, compute_ms=COMPUTE_MS, bytes_per_second=PLAIN_LINK.to_device_bytes_per_second
    )
    return {
        "bulk": PreloadPlan(layerwise=False),
        "layer-wise": PreloadPlan(),
        "buffer": PreloadPlan(buffer_bytes=buffer),
        "early": PreloadPlan(buffer_bytes=buffer, early_layers=1),
        "early alone": PreloadPlan(early_layers=1),
        "chunks": PreloadPlan(chunks=4),
    }[name]


def _load(rho: float, name: str) -> Preloaded:
    load_bytes = round(rho * COMPUTE_MS / 1e3 * PLAIN_LINK.to_device_bytes_per_second)
    plan = _plan(name, rho)
    return preload(HostLink(PLAIN_LINK), plan, ready_ms=READY_MS, load_bytes=load_bytes, compute_ms=COMPUTE_MS, layers=LAYERS)


def _known_table() -> Table:
    table = Table(title="share of the load that is hidden, measured (known)")
    for name in ("rho", *NAMES.values()):
        table.add_column(name, justify="right")
    for rho, known in LOADING.items():
        cells = []
        for name in NAMES:
            outcome = _load(rho, name)
            value = (outcome.finished_ms - READY_MS) / COMPUTE_MS if name == "bulk" else outcome.hidden_share
            cells.append(f"{value:.3f}" + (f" ({known[name]:.3f})" if name in known else ""))
        table.add_row(f"{rho:g}", *cells)
    return table


def _shapes_table() -> Table:
    """The published HSTU block with 4 096 tokens of history of which 64 are new, plain pinned copies."""
    table = Table(title="HSTU 8 x 1024, 4096 tokens of history, 64 new, 256 candidates: stall in ms (share hidden)")
    for name in ("device", "compute ms", "load ms", "rho", "bulk", "layer-wise", "1 layer early", "4 chunks"):
        table.add_column(name, justify="right")
    work = Work(history_tokens=4096, cached_tokens=4032, candidate_tokens=256)
    for device in ("l20", "a100", "h100"):
        law = ServiceLaw(accelerator=load_accelerator(device), shape=HSTU_PUBLISHED)
        link, compute_ms = native_transfer(law.accelerator), law.compute_ms([work])
        load_bytes = law.shape.user_bytes(work.cached_tokens)
        load_ms = link.transfer_ms(Direction.TO_DEVICE, load_bytes)
        cells = []
        for name in ("bulk", "layer-wise", "early alone", "chunks"):
            outcome = preload(
                HostLink(link),
                _plan(name, 1.0),
                ready_ms=READY_MS,
                load_bytes=load_bytes,
                compute_ms=compute_ms,
                layers=law.shape.layers,
                free_share=projection_share(law, work),
            )
            cells.append(f"{outcome.stall_ms:.2f} ({max(0.0, outcome.hidden_share):.2f})")
        table.add_row(device, f"{compute_ms:.2f}", f"{load_ms:.2f}", f"{load_ms / compute_ms:.2f}", *cells)
    return table
