"""The two-pool ARC rule, a baseline: memory goes to the cache whose ghost list is hit.

Model: ARC (Megiddo and Modha, FAST 2003) adapts one boundary between two lists; a hit in the ghost list of one side moves it
towards that side by the size of what was hit, times the ratio of the ghosts' lengths where the other one is longer. Both ghosts
reach to the size of the whole pool, so their hits are differences of the miss-ratio curves. It counts bytes and knows no costs.
"""

from __future__ import annotations

import numpy as np

from policies.allocation.types import Costs, Curve


def arc_goal_bytes(
    emb: Curve,
    kv: Curve,
    costs: Costs,
    *,
    usable_bytes: int,
    current_emb_bytes: int,
    target_emb_bytes: float,
    emb_row_bytes: float,
    kv_bytes_per_token: float,
    interval_ms: float,
) -> float:
    """Return where the boundary stands after the ghost hits of one interval, in EMB bytes.

    Parameters
    ----------
    current_emb_bytes, target_emb_bytes
        The split in force, whose ghosts are hit, and where the boundary stood before: single hits move it by less than a granule.
    emb_row_bytes, kv_bytes_per_token
        Sizes of what is asked for.
    interval_ms
        Time whose requests are counted.
    """
    emb_bytes, kv_bytes = max(current_emb_bytes, 1), max(usable_bytes - current_emb_bytes, 1)
    emb_here, emb_all = emb.at(np.array([emb_bytes, usable_bytes], dtype=np.float64))
    kv_here, kv_all = kv.at(np.array([kv_bytes, usable_bytes], dtype=np.float64))
    requests = costs.arrival_per_s * interval_ms / 1000.0
    rows = costs.emb_rows_per_request + costs.emb_rows_per_kv_miss_token * costs.kv_tokens_per_request * kv_here
    emb_hits = requests * rows * emb_row_bytes * (emb_here - emb_all)
    kv_hits = requests * costs.kv_tokens_per_request * kv_bytes_per_token * (kv_here - kv_all)
    # The ghost of a side is as long as the other side is large.
    up = emb_hits * max(emb_bytes / kv_bytes, 1.0)
    down = kv_hits * max(kv_bytes / emb_bytes, 1.0)
    return float(min(max(target_emb_bytes + up - down, 0.0), usable_bytes))
