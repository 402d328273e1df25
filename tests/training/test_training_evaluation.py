"""The evaluation: the same courses for all, the truth ahead of the anchor ahead of a fixed split, guards that hold."""

from dataclasses import replace

import numpy as np
import pytest
from training_worlds import tables, worlds

from policies.allocation.features import FEATURES
from policies.allocation.model_file import TrainedModel, read_model
from training.controllers import anchor, fixed, free, guarded, smoothed_anchor, truth
from training.evaluation import best_fixed, held_out, play, refills, shifted
from training.export import model_bytes
from training.normal import Normal
from training.report import report_on
from training.worlds import Refill, Regime


def a_model(*, answer: float, low: float = -1e6, high: float = 1e6) -> TrainedModel:
    """A network that always answers the same."""
    inputs = len(FEATURES)
    network = {
        "w1": np.zeros((64, inputs)),
        "b1": np.zeros(64),
        "w2": np.zeros((64, 64)),
        "b2": np.zeros(64),
        "w3": np.zeros((1, 64)),
        "b3": np.array([answer]),
    }
    arrays = {name: array.astype(np.float32) for name, array in network.items()}
    ends = (np.full(inputs, value, dtype=np.float32) for value in (low, high))
    return read_model(model_bytes(arrays, Normal.none(), *ends))


def test_the_truth_is_ahead_of_the_anchor_which_is_ahead_of_a_fixed_split() -> None:
    some = worlds(40, Regime.STEADY, noise=0.1, deadband=0.0, slew=0.02, first_share=0.5)
    regret = {
        name: np.median(play(some, tables(), who, seed=1, steps=150).regret)
        for name, who in {"truth": truth, "anchor": smoothed_anchor, "fixed": fixed(0.5)}.items()
    }
    assert regret["truth"] <= regret["anchor"] + 0.002
    assert regret["anchor"] < regret["fixed"]


def test_the_best_fixed_split_is_no_worse_than_any_of_its_choices() -> None:
    some = worlds(10, Regime.STEADY)
    choices = (0.2, 0.5, 0.8)
    best = best_fixed(some, tables(), seed=1, choices=choices)
    for share in choices:
        one = play(some.with_value(first_share=share), tables(), fixed(share), seed=1)
        assert (best.regret <= one.regret + 1e-12).all()
        assert (one.moved == 0.0).all()


def test_playing_twice_scores_the_same_and_leaves_the_worlds_as_they_were() -> None:
    some = worlds(10, Regime.FLASH_CROWD)
    before = some.tokens.copy()
    one, other = (play(some, tables(), anchor, seed=4, steps=80) for _ in range(2))
    assert (one.regret == other.regret).all()
    assert (some.tokens == before).all()


def test_a_free_model_goes_where_it_likes_and_a_guarded_one_stays_by_the_anchor() -> None:
    some = worlds(20, Regime.STEADY, noise=0.0, first_share=0.5, deadband=0.0)
    runaway = a_model(answer=1.0)
    far, near = (play(some, tables(), who, seed=2, steps=150) for who in (free(runaway), guarded(runaway, clamp_percent=2.0)))
    assert near.distance.mean() < far.distance.mean()
    assert near.distance.max() < 0.5


def test_outside_what_training_saw_the_anchor_decides() -> None:
    some = worlds(20, Regime.STEADY, noise=0.1, first_share=0.5)
    foreign = a_model(answer=1.0, low=5e5, high=6e5)
    one, other = (play(some, tables(), who, seed=2, steps=100) for who in (guarded(foreign), smoothed_anchor))
    assert one.p99_ms == pytest.approx(other.p99_ms, rel=0.05)


def test_held_out_worlds_are_the_default_guards_at_ordinary_load_and_differ_from_each_other() -> None:
    drawn = held_out(tables(), seed=5, count=6)
    assert set(drawn) == {"Steady", "Trend", "Burst"}
    for some in drawn.values():
        assert len(some) == 6
        assert (some.deadband == 0.02).all()
        assert (some.first_share == 0.5).all()
        assert (some.refill != Refill.BLOCKING).all()
    assert (drawn["Burst"].regime >= Regime.FLASH_CROWD).all()


def test_shifts_change_what_they_name_and_nothing_else() -> None:
    some = worlds(6, Regime.STEADY)
    moved = shifted(some)
    assert moved["histories x 4"].tokens == pytest.approx(4.0 * some.tokens)
    assert (moved["histories x 4"].rows == some.rows).all()
    wrong = moved["measured costs wrong by 2"].cost_error / some.cost_error
    assert sorted(set(np.round(wrong.ravel(), 6))) == [0.5, 2.0]
    assert {int(w.refill[0]) for w in refills(some).values()} == {0, 1, 2}


def test_a_report_has_its_tables_and_scores_for_the_header() -> None:
    report = report_on(a_model(answer=0.0), tables(), courses=2, steps=12)
    assert [table.title for table in report.tables] == [
        "Nominal estimates",
        "Noisy estimates",
        "Refill modes",
        "Far from training",
    ]
    assert len({score.name for score in report.scores}) == len(report.scores) == 5 * 2 * 3
    for table in report.tables:
        assert all(len(row) == len(table.head) for row in table.rows)
        assert table.markdown().count("\n| ") == len(table.rows) + 1
    assert replace(report.tables[0], title="X").markdown().startswith("### X")
