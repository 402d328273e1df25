"""Training remembers and smooths as agents do: what stands in both places, because one is private, is the same in both."""

import inspect

from policies.allocation import estimator, goals, recovery
from policies.allocation.estimator import ReuseTimeEstimator
from training import curves, dynamics, estimates


def test_the_anchor_is_smoothed_as_by_the_strategy() -> None:
    assert dynamics.SMOOTH_S == goals._SMOOTH_MS / 1000.0
    assert dynamics.SMOOTH_PER_VOLATILITY == goals._SMOOTH_PER_VOLATILITY


def test_estimates_forget_as_the_estimators_and_the_burst_detector_do() -> None:
    defaults = inspect.signature(ReuseTimeEstimator).parameters
    assert defaults["decay_ms"].default / 1000.0 == estimates._MEMORY_S
    assert estimates._QUICK == estimator._QUICK
    assert estimates._USUAL_S == recovery._USUAL_MS / 1000.0
    assert estimates._COST_MEMORY_S == estimates._MEMORY_S / 2.0, "costs are remembered half as long as curves"


def test_windows_lie_on_the_edges_of_the_estimators_bins() -> None:
    defaults = inspect.signature(ReuseTimeEstimator).parameters
    assert (defaults["bins"].default, defaults["longest_ms"].default) == (curves.POINTS, curves.LONGEST_MS)
    assert curves.WINDOW_MS[0] == defaults["shortest_ms"].default
