"""Training remembers as agents do: defaults that it cannot import are the same in both."""

import inspect

import pytest

from policies.allocation.costs import update_costs
from policies.allocation.estimator import ReuseTimeEstimator
from training import curves, estimates


def test_estimates_forget_as_the_estimators_do() -> None:
    defaults = inspect.signature(ReuseTimeEstimator).parameters
    assert defaults["decay_ms"].default / 1000.0 == estimates._MEMORY_S
    forgets = inspect.signature(update_costs).parameters["decay_ms"].default
    assert pytest.approx(forgets / 1000.0) == estimates._COST_MEMORY_S


def test_windows_lie_on_the_edges_of_the_estimators_bins() -> None:
    defaults = inspect.signature(ReuseTimeEstimator).parameters
    assert defaults["shortest_ms"].default == curves.WINDOW_MS[0]
    assert (defaults["bins"].default, defaults["longest_ms"].default) == (curves.POINTS, curves.LONGEST_MS)
