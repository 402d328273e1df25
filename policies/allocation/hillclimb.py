"""Hill climbing on ghost hits: memory moves to the side where one more step saves more serving time than the other loses.

Model: marginal gain per step, as in Cliffhanger (Cidon et al., NSDI 2016). The miss-ratio curves stand in for the ghost
lists: the hits just beyond (and just inside) the present size are differences of the curve.
"""

from __future__ import annotations

import msgspec
import numpy as np

from policies.allocation.types import Costs, Curve

_MARGIN = 1.05  # a step must gain this much more than it loses, or noise would walk the split about


class HillStep(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one look around.

    Attributes
    ----------
    goal_emb_bytes
        The split one step away in the better direction, or the split in force at the top.
    gain_ms_per_s
        Net serving time saved per second by that step; 0 at the top.
    """

    goal_emb_bytes: int
    gain_ms_per_s: float


def hill_step(emb: Curve, kv: Curve, costs: Costs, *, usable_bytes: int, current_emb_bytes: int, step_bytes: int) -> HillStep:
    """Compare one step each way and return the better one, if it clears the margin.

    Parameters
    ----------
    usable_bytes, current_emb_bytes
        The pool and the EMB side in force.
    step_bytes
        Size of one step, at least a granule.
    """
    sizes = np.array([current_emb_bytes - step_bytes, current_emb_bytes, current_emb_bytes + step_bytes], dtype=np.float64)
    emb_less, emb_now, emb_more = emb.at(sizes)
    kv_more, kv_now, kv_less = kv.at(usable_bytes - sizes)
    rows = costs.emb_rows_per_request + costs.emb_rows_per_kv_miss_token * costs.kv_tokens_per_request * kv_now
    row_ms = costs.arrival_per_s * rows * costs.ms_per_emb_miss_row
    token_ms = costs.ms_per_kv_miss_token + costs.emb_rows_per_kv_miss_token * costs.ms_per_emb_miss_row * emb_now
    history_ms = costs.arrival_per_s * costs.kv_tokens_per_request * token_ms
    up_gain, up_loss = row_ms * (emb_now - emb_more), history_ms * (kv_less - kv_now)
    down_gain, down_loss = history_ms * (kv_now - kv_more), row_ms * (emb_less - emb_now)
    up = float(up_gain - _MARGIN * up_loss) if current_emb_bytes + step_bytes < usable_bytes else 0.0
    down = float(down_gain - _MARGIN * down_loss) if current_emb_bytes > step_bytes else 0.0
    if up <= 0.0 and down <= 0.0:
        return HillStep(goal_emb_bytes=current_emb_bytes, gain_ms_per_s=0.0)
    if up >= down:
        return HillStep(goal_emb_bytes=current_emb_bytes + step_bytes, gain_ms_per_s=up)
    return HillStep(goal_emb_bytes=current_emb_bytes - step_bytes, gain_ms_per_s=down)
