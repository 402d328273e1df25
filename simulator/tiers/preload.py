"""Loading a user's state layer by layer while the layers before it compute, with the stall measured on the host link.

All of a load is asked for at once and arrives in order, so layer l+1 travels while layer l computes. What is left to wait for is
the first layer, unless loading starts before computing can, or layers arrive in chunks that are attended to as they come.
Source: CachedAttention (ATC'24), layer-wise pre-loading and its read buffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.physics.link import Done, HostLink, Purpose
from simulator.physics.service import ServiceLaw, Work
from simulator.physics.transfer import Direction


@dataclass(frozen=True, kw_only=True)
class PreloadPlan:
    """How a load is arranged around the compute that needs it.

    Parameters
    ----------
    layerwise : bool
        Compute starts with the first layer's arrival; otherwise with the last's.
    early_layers : float
        Layers whose bytes are asked for so early that an idle link has them when compute can start.
    buffer_bytes : int
        Bytes that travel earlier still, into a read buffer in HBM.
    chunks : int
        Parts in which each layer arrives and is attended to, merged by an online softmax; 1 is the whole layer.

    Raises
    ------
    ValueError
        For negative sizes or no chunk.
    """

    layerwise: bool = True
    early_layers: float = 0.0
    buffer_bytes: int = 0
    chunks: int = 1

    def __post_init__(self) -> None:
        if self.early_layers < 0 or self.buffer_bytes < 0 or self.chunks < 1:
            raise ValueError(
                f"early_layers, buffer_bytes: {self.early_layers}, {self.buffer_bytes} must not be negative, chunks >= 1"
            )


@dataclass(frozen=True, kw_only=True)
class Preloaded:
    """What one load did.

    Attributes
    ----------
    finished_ms : float
        When the last layer was computed.
    stall_ms : float
        Time the accelerator waited between the moment it could start and then.
    load_ms : float
        The same load alone on an idle link.
    others : tuple of Done
        Transfers of others that ended meanwhile.
    """

    finished_ms: float
    stall_ms: float
    load_ms: float
    others: tuple[Done, ...] = ()

    @property
    def hidden_share(self) -> float:
        """Share of the load that nobody waited for; below 0 when others on the link made it take longer than alone."""
        return 1.0 - self.stall_ms / self.load_ms if self.load_ms else 1.0


def preload(
    link: HostLink,
    plan: PreloadPlan,
    *,
    ready_ms: float,
    load_bytes: int,
    compute_ms: float,
    layers: int,
    free_share: float = 0.0,
) -> Preloaded:
    """Load and compute one request; the link moves on to the end of the load.

    Parameters
    ----------
    link : HostLink
        Other transfers on it compete by their class; its clock may not lie after the start of this load.
    ready_ms : float
        When the accelerator is free for this request.
    load_bytes : int
        State to bring in, of all layers together; at least `layers * plan.chunks`.
    compute_ms : float
        Compute of all layers.
    free_share : float
        Leading share of each layer's compute that needs no old state (projections of the new tokens).

    Raises
    ------
    ValueError
        For impossible sizes, or when loading would have to start before the link's clock.
    """
    parts = layers * plan.chunks
    if layers < 1 or load_bytes < parts or compute_ms < 0 or not 0.0 <= free_share <= 1.0:
        raise ValueError(
            f"layers, load_bytes, compute_ms, free_share: {layers}, {load_bytes}, {compute_ms}, {free_share} are impossible"
        )
    cost = link.cost
    head_bytes = min(load_bytes, plan.early_layers * load_bytes / layers + plan.buffer_bytes)
    lead_ms = head_bytes / cost.bytes_per_ms(Direction.TO_DEVICE) + (cost.fixed_ms(Direction.TO_DEVICE) if head_bytes else 0.0)
    asked_ms = ready_ms - lead_ms
    if asked_ms < link.clock_ms - 1e-9:
        raise ValueError(f"ready_ms: loading would start at {asked_ms}, the link is at {link.clock_ms}")
    asked_ms = max(asked_ms, link.clock_ms)
    others = link.advance(asked_ms)
    arrived_ms = _arrivals(link, load_bytes, parts, asked_ms, others)
    if not plan.layerwise:
        arrived_ms = [arrived_ms[-1]] * parts
    finished_ms = walk_layers(
        [arrived_ms[i : i + plan.chunks] for i in range(0, parts, plan.chunks)],
        start_ms=ready_ms,
        layer_ms=compute_ms / layers,
        free_share=free_share if plan.layerwise else 0.0,
    )
    load_ms = cost.transfer_ms(Direction.TO_DEVICE, load_bytes)
    stall_ms = max(0.0, finished_ms - ready_ms - compute_ms)
    return Preloaded(finished_ms=finished_ms, stall_ms=stall_ms, load_ms=load_ms, others=tuple(others))


def walk_layers(arrived_ms: Sequence[Sequence[float]], *, start_ms: float, layer_ms: float, free_share: float = 0.0) -> float:
    """Return when the last layer is done, each layer attending to its parts as they arrive.

    Parameters
    ----------
    arrived_ms : sequence of sequences of float
        When each part of each layer is in HBM.
    """
    now = start_ms
    for parts in arrived_ms:
        now += free_share * layer_ms
        for arrived in parts:
            now = max(now, arrived) + (1.0 - free_share) * layer_ms / len(parts)
    return now


def read_buffer_bytes(*, load_ms: float, compute_ms: float, bytes_per_second: float) -> int:
    """CachedAttention's read buffer: what a load brings in beyond what compute can hide, B (T_load L_hist - T_pref L_new)."""
    return round(max(0.0, load_ms - compute_ms) / 1e3 * bytes_per_second)


def projection_share(law: ServiceLaw, work: Work) -> float:
    """Share of a layer's compute before old state is needed, about: projections of query, key and value, of all operations.

    Output projections come after attention; they are a fifth of an HSTU layer's projections and counted out for all models.
    """
    flops = law.flops([work])
    return 0.8 * flops.projection / flops.total if flops.total else 0.0


def _arrivals(link: HostLink, load_bytes: int, parts: int, asked_ms: float, others: list[Done]) -> list[float]:
    """Ask for all parts in order and run the link until the last is there; what else ends is added to `others`."""
    edges = [round(load_bytes * part / parts) for part in range(parts + 1)]
    numbers = [link.submit(Purpose.RELOAD, stop - start, now_ms=asked_ms) for start, stop in pairwise(edges)]
    own = set(numbers)
    arrived: dict[int, float] = {}
    while len(arrived) < parts:
        event = link.next_event_ms()
        if event is None:
            raise ValueError("link: a cap keeps the load from finishing")
        for done in link.advance(event):
            if done.transfer in own:
                arrived[done.transfer] = done.finished_ms
            else:
                others.append(done)
    return [arrived[number] for number in numbers]
