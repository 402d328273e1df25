"""The two-pool ARC rule: a ghost hit moves the boundary to its side, by its bytes times how much longer the other ghost is."""

import msgspec
import numpy as np
import pytest

from policies.allocation.arc import arc_goal_bytes
from policies.allocation.examples import GIB, example_inputs, pack_curve

USABLE = 16 * GIB


def _curve(miss_at_nothing: float, miss_at_all: float):
    """A straight curve over the pool."""
    return pack_curve(capacity_bytes=np.array([0.0, USABLE]), miss_ratio=np.array([miss_at_nothing, miss_at_all]))


def _moved(*, emb=(0.5, 0.5), kv=(0.5, 0.5), at=8 * GIB, seconds=1.0) -> float:
    costs = msgspec.structs.replace(example_inputs().view.costs, emb_rows_per_kv_miss_token=0.0)
    goal = arc_goal_bytes(
        _curve(*emb),
        _curve(*kv),
        costs,
        usable_bytes=USABLE,
        current_emb_bytes=at,
        target_emb_bytes=float(at),
        emb_row_bytes=512.0,
        kv_bytes_per_token=8192.0,
        interval_ms=1000.0 * seconds,
    )
    return goal - at


def test_only_the_side_whose_ghost_is_hit_grows():
    assert _moved(emb=(0.9, 0.1)) == pytest.approx(200.0 * 1500.0 * 512.0 * 0.4)
    assert _moved(kv=(0.9, 0.1)) == pytest.approx(-200.0 * 1000.0 * 8192.0 * 0.4)
    assert _moved() == 0.0


def test_a_hit_of_the_shorter_ghost_counts_more():
    # 12 GiB of EMB: its own ghost is 4 GiB long, the other one 12; three times as much for each hit.
    assert _moved(emb=(0.9, 0.1), at=12 * GIB) == pytest.approx(3.0 * 200.0 * 1500.0 * 512.0 * 0.2)
    assert _moved(emb=(0.9, 0.1), at=4 * GIB) == pytest.approx(200.0 * 1500.0 * 512.0 * 0.6)


def test_the_boundary_never_leaves_the_pool():
    assert _moved(emb=(0.9, 0.1), seconds=1e9) == 8 * GIB
    assert _moved(kv=(0.9, 0.1), seconds=1e9) == -8 * GIB
