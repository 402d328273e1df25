"""Training remembers as agents do: defaults that it cannot import are the same in both."""

import inspect

from policies.allocation.estimator import ReuseTimeEstimator
from training import curves, estimates


def test_estimates_forget_as_the_estimators_do() -> None:
    defaults = inspect.signature(ReuseTimeEstimator).parameters
    assert defaults["decay_ms"].default / 1000.0 == estimates._MEMORY_S
    assert estimates._COST_MEMORY_S == estimates._MEMORY_S / 2.0, "costs are remembered half as long as curves"


def test_windows_lie_on_the_edges_of_the_estimators_bins() -> None:
    defaults = inspect.signature(ReuseTimeEstimator).parameters
    assert defaults["shortest_ms"].default == curves.WINDOW_MS[0]
    assert (defaults["bins"].default, defaults["longest_ms"].default) == (curves.POINTS, curves.LONGEST_MS)
