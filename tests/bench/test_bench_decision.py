"""The benchmark of decisions times what it says it times, and leaves nothing changed behind."""

import numpy as np
import pytest

from bench import decision
from policies.allocation import core, goals
from policies.allocation.examples import example_inputs, example_model
from policies.allocation.path import Figure, evaluate_numpy, evaluate_one, evaluate_one_numpy
from policies.allocation.types import Reason, Strategy

MODEL = example_model(seed=1)


def test_the_timed_row_is_a_whole_one_that_the_core_takes() -> None:
    inputs = example_inputs()
    figures = decision.figures_of(inputs)
    assert len(figures) == len(Figure)
    assert figures[Figure.KV_SIZE_CV2] == pytest.approx(0.5)
    assert figures[Figure.ARRIVAL_PER_S] == pytest.approx(200.0)
    found = evaluate_numpy(decision.rows_of([inputs]), MODEL)
    assert found.guest is not None
    assert found.guest.outlier.tolist() == [-1]
    assert inputs.view.emb is not None
    assert inputs.view.kv is not None
    alone = evaluate_one(inputs.view.emb, inputs.view.kv, figures, MODEL)
    np.testing.assert_allclose(alone, evaluate_one_numpy(inputs.view.emb, inputs.view.kv, figures, MODEL), rtol=1e-5)


def test_the_timed_decision_is_one_that_the_model_makes() -> None:
    made = decision._decision(example_inputs(), Strategy.LEARNED, MODEL)()
    assert isinstance(made, tuple)
    assert made[0].reason is Reason.LEARNED_TARGET


def test_the_path_is_timed_inside_a_decision_and_put_back() -> None:
    timed = decision.within(decision._decision(example_inputs(), Strategy.LEARNED, MODEL))
    assert timed() > 0.0
    assert goals.evaluate_one is evaluate_one


def test_every_way_is_timed_hot_and_cold_beside_the_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision.time, "sleep", lambda _: None)
    routes = decision._routes([example_inputs()], MODEL)
    hot, cold = decision._hot(routes, decisions=2), decision._cold(routes, decisions=2)
    assert set(hot) == set(cold) >= {decision.PRODUCT, decision.NUMPY, "decide, Learned"}
    assert core.available() == (decision.PATH in hot)
    results = decision._report("hot", [hot], decision.HOT_GOAL_US)
    assert all(result.baseline is not None for result in results if not result.name.startswith(decision.PRODUCT))
    assert any(result.goal is not None for result in results)
