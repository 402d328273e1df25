"""Recompute a user's prefix or load it from the host: decided by what each costs this request, now.

Recomputing also looks the embeddings of the prefix up again. Loading can overlap with computing layer by layer: the first layer
has to be waited for, after that the slower of the two sets the pace.
"""

from dataclasses import dataclass
from enum import StrEnum

from simulator.physics.service import ServiceLaw, Work
from simulator.physics.transfer import Direction, TransferCost


class Action(StrEnum):
    """What to do about history that is on the host and not in HBM."""

    RECOMPUTE = "recompute"
    RELOAD = "reload"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The cheaper way and what both would cost, in milliseconds until the request is computed."""

    action: Action
    recompute_ms: float
    reload_ms: float


def stall_ms(*, load_ms: float, compute_ms: float, layers: int, early_ms: float = 0.0) -> float:
    """Time that a request waits for state that arrives layer by layer while it computes.

    max(0, load / L - early) + max(0, load - compute) (L - 1) / L: the first layer has to be waited for, but for the `early_ms`
    that loading ran before compute could start (the model lets it help the first layer only); after that the slower of the two
    sets the pace. One layer is loading everything first.

    Raises
    ------
    ValueError
        For negative times or no layers.
    """
    if min(load_ms, compute_ms, early_ms) < 0 or layers < 1:
        raise ValueError(f"load_ms, compute_ms, early_ms, layers: {load_ms}, {compute_ms}, {early_ms}, {layers} are impossible")
    return max(0.0, load_ms / layers - early_ms) + max(0.0, load_ms - compute_ms) * (layers - 1) / layers


def hidden_share(*, load_ms: float, compute_ms: float, layers: int, early_ms: float = 0.0) -> float:
    """Share of the load that computing hides; 1 when there is nothing to load."""
    if load_ms == 0:
        return 1.0
    return 1.0 - stall_ms(load_ms=load_ms, compute_ms=compute_ms, layers=layers, early_ms=early_ms) / load_ms


def recompute_or_reload(
    law: ServiceLaw,
    link: TransferCost,
    work: Work,
    *,
    host_tokens: int,
    wait_ms: float = 0.0,
    lookup_ms_per_token: float = 0.0,
    duplex: bool = False,
    layerwise: bool = True,
    early_ms: float = 0.0,
) -> Choice:
    """Choose for one request; a tie reloads, which leaves the accelerator to others.

    Parameters
    ----------
    law, link
        Costs of computing and of the copy path.
    work : Work
        `cached_tokens` is what HBM holds; it is the leading part of what the host holds.
    host_tokens : int
        Leading part of the history that the host holds.
    wait_ms : float
        Transfers that are ahead on the link (`HostLink.wait_ms`).
    lookup_ms_per_token : float
        Embedding look-ups of one recomputed token.
    duplex : bool
        Whether the other direction of the link is busy.
    layerwise : bool
        Whether computing starts on the first layer while later ones load.
    early_ms : float
        Head start of the load.

    Raises
    ------
    ValueError
        When the host holds less than HBM, or more than the history.
    """
    if not work.cached_tokens <= host_tokens <= work.history_tokens:
        raise ValueError(f"host_tokens: {host_tokens} is not within {work.cached_tokens}..{work.history_tokens}")
    missing_tokens = host_tokens - work.cached_tokens
    recompute_ms = law.compute_ms([work]) + lookup_ms_per_token * missing_tokens
    byte_count = law.shape.user_bytes(host_tokens) - law.shape.user_bytes(work.cached_tokens)
    if byte_count == 0:
        return Choice(action=Action.RECOMPUTE, recompute_ms=recompute_ms, reload_ms=recompute_ms)
    loaded = Work(history_tokens=work.history_tokens, cached_tokens=host_tokens, candidate_tokens=work.candidate_tokens)
    compute_ms = law.compute_ms([loaded])
    load_ms = byte_count / link.bytes_per_ms(Direction.TO_DEVICE, duplex=duplex)
    before_ms = wait_ms + link.fixed_ms(Direction.TO_DEVICE)
    left_early_ms = max(0.0, early_ms - before_ms)
    if layerwise:
        stalled_ms = stall_ms(load_ms=load_ms, compute_ms=compute_ms, layers=law.shape.layers, early_ms=left_early_ms)
    else:
        stalled_ms = max(0.0, load_ms - left_early_ms)
    reload_ms = max(0.0, before_ms - early_ms) + stalled_ms + compute_ms
    action = Action.RELOAD if reload_ms <= recompute_ms else Action.RECOMPUTE
    return Choice(action=action, recompute_ms=recompute_ms, reload_ms=reload_ms)


def break_even_tokens(law: ServiceLaw, *, bytes_per_second: float) -> float:
    """History length above which loading the whole of it is faster than computing it, without fixed costs and floors.

    Computing costs (per-token operations + per-pair operations * n / 2) a token, loading its bytes: they meet at
    n = 2 (bytes * R / rate - per-token operations) / per-pair operations a layer. Below zero loading always wins.

    Raises
    ------
    ValueError
        For linear attention, whose state does not grow.
    """
    shape = law.shape
    if not shape.layer_flops_per_pair:
        raise ValueError("shape: linear attention has one state size; there is no such length")
    flops_worth = shape.kv_bytes_per_token / shape.layers * law.accelerator.flops_per_second / bytes_per_second
    return max(0.0, 2 * (flops_worth - shape.layer_flops_per_token) / shape.layer_flops_per_pair)
