"""The residual pulls towards the anchor where that pays, within its bound, and fades where it does not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.allocation.residual import Residual, corrected_points

RESIDUAL = Residual(enabled=True, max_percent=20.0, min_gain_percent=1.0)


def _step(points=0.0, *, base=40.0, anchor=50.0, base_p99=20.0, anchor_p99=18.0, widening=1.0, dt_ms=1000.0, residual=RESIDUAL):
    return corrected_points(
        points,
        base_percent=base,
        anchor_percent=anchor,
        base_p99_ms=base_p99,
        anchor_p99_ms=anchor_p99,
        widening=widening,
        dt_ms=dt_ms,
        residual=residual,
    )


def test_a_second_goes_three_tenths_of_the_way_to_the_anchor():
    assert _step() == pytest.approx(3.0, rel=1e-3)
    ten_times = 0.0
    for _ in range(10):
        ten_times = _step(ten_times, dt_ms=100.0)
    assert ten_times == pytest.approx(3.0, rel=1e-3)


def test_it_arrives_at_the_anchor_and_no_further_than_its_bound():
    near = far = 0.0
    for _ in range(100):
        near, far = _step(near, anchor=52.0), _step(far, anchor=90.0)
    assert near == pytest.approx(12.0)
    assert far == pytest.approx(20.0)


@pytest.mark.parametrize("anchor_p99", [19.9, 20.0, 25.0, math.nan])
def test_what_promises_too_little_fades(anchor_p99):
    points = 9.0
    for _ in range(50):
        points = _step(points, anchor_p99=anchor_p99)
    assert abs(points) < 1e-3


def test_restless_curves_must_promise_more():
    assert _step(anchor_p99=19.5) > 0.0
    assert _step(anchor_p99=19.5, widening=4.0) == 0.0
    assert _step(anchor_p99=18.0, widening=4.0) > 0.0


@given(
    points=st.floats(-100.0, 100.0),
    base=st.floats(0.0, 100.0),
    anchor=st.floats(0.0, 100.0),
    base_p99=st.floats(0.0, 1e6),
    anchor_p99=st.floats(0.0, 1e6),
    dt_ms=st.floats(-10.0, 1e7),
    bound=st.floats(0.0, 50.0),
)
def test_it_never_leaves_its_bound_nor_points_away_from_the_anchor_nor_leads_past_it(
    points, base, anchor, base_p99, anchor_p99, dt_ms, bound
):
    residual = Residual(enabled=True, max_percent=bound)
    after = _step(points, base=base, anchor=anchor, base_p99=base_p99, anchor_p99=anchor_p99, dt_ms=dt_ms, residual=residual)
    assert abs(after) <= bound
    assert min(anchor - base, 0.0) <= after <= max(anchor - base, 0.0)
