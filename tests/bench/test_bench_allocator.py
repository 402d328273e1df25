"""The allocation study: its rules, its rows, its arithmetic, and that it goes on where a killed run was."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import allocator_figures as figures
from bench import allocator_rows as rows
from bench import allocator_runs as runs
from bench import allocator_site as site
from bench.allocator_rows import ROWS, Disturbed, Plan, stretched, unguarded
from bench.allocator_runs import Kept, Task
from bench.allocator_site import Episode, Shift, of_some_instances, shifted
from policies.allocation.examples import example_inputs
from policies.allocation.features import FEATURE_SPEC
from policies.allocation.model_file import SHAPES, Header, Origin, TrainedModel, read_model, write_model
from policies.allocation.types import Strategy
from simulator.fleet.allocation import UserCurves
from simulator.fleet.policies import FleetObservation
from simulator.fleet.run import simulate
from simulator.workloads.parts import Part
from simulator.workloads.regimes import steady
from simulator.workloads.traffic import Traffic

AN_EPISODE = Episode(regime="steady", part="validation", seed=1, rate=20.0, slo_ms=100.0, instances=1)
AN_EPISODE_OF_FEW = replace(AN_EPISODE, rate=5.0)


def a_model() -> TrainedModel:
    return read_model(a_model_file())


def a_model_file() -> bytes:
    rng = np.random.default_rng(3)
    arrays = {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
    arrays |= {"scale": np.ones(31, np.float32), "low": -np.ones(31, np.float32), "high": np.ones(31, np.float32)}
    return write_model(arrays, Header(format=1, feature_spec=FEATURE_SPEC, max_step_percent=10.0))


def known(folder: Path, episode: Episode) -> Path:
    """A folder in which it stands already what hindsight says of an episode."""
    hindsight = {"staticPercent": 60, "plannedPercents": [55, 60, 65, 65, 65], "cloning": []}
    Kept(folder).store(runs.hindsight_name(episode), hindsight)
    return folder


def an_observation(row_keys: np.ndarray) -> FleetObservation:
    names = [name for name, field in FleetObservation.__dataclass_fields__.items() if field.type in ("int", int)]
    zeros = dict.fromkeys((*names, "interval_ms", "service_ms", "service_squared_ms2", "emb_miss_ms", "kv_miss_ms"), 1)
    return FleetObservation(
        **{**zeros, "p99_ms": None, "rows_one_in": 256, "row_keys": row_keys, "row_times_ms": np.arange(len(row_keys)) * 1.0}
    )


def test_a_share_of_the_gain_is_a_ratio_of_means_with_its_interval() -> None:
    gains, possible = np.array([1.0, 3.0, 2.0, 2.0]), np.array([2.0, 4.0, 2.0, 4.0])
    found = figures.share(gains, possible)
    assert found is not None
    assert figures.share(gains, np.array([1.0, -1.0, 2.0, -2.0])) is None  # nothing to have a share of
    assert found.value == pytest.approx(100.0 * 8.0 / 12.0)
    assert found.low < found.value < found.high


def test_an_interval_holds_its_mean_and_narrows_with_more_episodes() -> None:
    rng = np.random.default_rng(1)
    few, many = (figures.interval(rng.standard_normal(count) + 1.0) for count in (12, 480))
    assert few.low < few.value < few.high
    assert many.high - many.low < 0.5 * (few.high - few.low)


def test_rows_are_compared_within_their_episodes() -> None:
    episodes = [{"a": {"p99Ms": 11.0}, "b": {"p99Ms": 10.0}}, {"a": {"p99Ms": 95.0}, "b": {"p99Ms": 100.0}}]
    assert figures.above(episodes, "a", "b").tolist() == pytest.approx([10.0, -5.0])


def test_a_plan_names_the_split_of_the_window_that_begins() -> None:
    plan = Plan((10, 20, 30), interval_ms=1000.0)
    one = an_observation(np.zeros(0, dtype=np.uint64))
    assert [plan.decide(at, [one]) for at in (1000.0, 2000.0, 9000.0)] == [[20], [30], [30]]


def test_agents_see_one_sampled_row_in_sixteen_and_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FleetObservation] = []

    class Seen(rows.AgentSplit):
        def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
            seen.extend(observations)
            return super().decide(now_ms, observations)

    monkeypatch.setattr(rows, "AgentSplit", Seen)
    agents = rows.Agents(ROWS["anchor"], model=None, blocking=False, users=UserCurves())
    log, _ = steady(Traffic(seed=1, duration_s=10.0, requests_per_second=40.0, instances=2, part=Part.VALIDATION))
    simulate(log, replace(AN_EPISODE, instances=2).fleet(), split=agents, seed=1)
    assert {one.rows_one_in for one in seen} == {256 * 16}
    keys = np.concatenate([one.row_keys for one in seen])
    assert len(keys) > 50
    assert keys.max() < 2**64 // 16
    assert agents.words(2)["reasons"] == dict(Counter(d for one in agents.reasons.values() for d in one.elements()))


def test_each_learned_row_adds_one_layer_to_the_one_before() -> None:
    model = a_model()
    intents = {key: ROWS[key].intent(model=model, blocking=True) for key in ("ppo", "clamped", "residual", "recovery", "anchor")}
    assert intents["ppo"].learned.clamp_percent == 100.0
    assert [intents[key].learned.residual.enabled for key in ("ppo", "clamped", "residual", "recovery")] == [0, 0, 1, 1]
    assert [intents[key].recovery.freeze_when_blocking for key in ("residual", "recovery")] == [False, True]
    assert {intent.learned.model_sha256 for key, intent in intents.items() if key != "anchor"} == {model.sha256}
    assert intents["anchor"].strategy is Strategy.MISS_RATIO_CURVE


def test_the_row_of_the_network_alone_finds_no_load_foreign() -> None:
    free = unguarded(a_model())
    assert (free.low < -1e30).all()
    assert (free.high > 1e30).all()


def test_an_error_of_the_curves_is_the_same_for_every_row_and_as_wide_as_asked() -> None:
    view = example_inputs().view
    assert view.emb is not None
    runs_of_errors = []
    for _ in range(2):
        disturbed = Disturbed(0.4, seed=5, interval_ms=2000.0)
        runs_of_errors.append([[disturbed(instance, view).emb for _ in range(400)] for instance in range(4)])
    first, again = runs_of_errors
    assert first == again
    last = view.emb.capacity_bytes[-1]
    errors = np.log([[curve.capacity_bytes[-1] / last for curve in instance if curve] for instance in first])
    assert errors.std() == pytest.approx(0.4, rel=0.35)
    assert abs(errors.mean()) < 0.2


def test_a_restless_curve_says_so() -> None:
    curve = example_inputs().view.emb
    assert curve is not None
    calm, restless = stretched(curve, 0.3, 0.0), stretched(curve, 0.3, 0.5)
    assert calm.volatility == pytest.approx(curve.volatility)
    assert restless.volatility > calm.volatility
    assert np.allclose(calm.miss_ratio, curve.miss_ratio)


def test_the_simulated_instances_get_the_requests_that_they_would_get_in_the_whole_fleet() -> None:
    log, _ = steady(Traffic(seed=1, duration_s=20.0, requests_per_second=640.0, instances=32, part=Part.VALIDATION))
    some = of_some_instances(log, 4)
    kept = log.user_slots[log.user] % 32 < 4
    assert np.array_equal(some.arrival_ms, log.arrival_ms[kept])
    assert np.array_equal(some.user_slots[some.user], log.user_slots[log.user][kept] % 32)
    assert len(np.unique(some.user)) == some.users == len(np.unique(log.user[kept]))


def test_a_foreign_world_differs_in_what_it_says() -> None:
    log, _ = steady(Traffic(seed=1, duration_s=10.0, requests_per_second=100.0, instances=2, part=Part.VALIDATION))
    other = shifted(log, Shift(says="", exponent=0.25, drift=2.0, histories=0.5, candidates=3.0))
    assert other.laws[0].exponent == pytest.approx(log.laws[0].exponent + 0.25)
    assert other.laws[0].drift_percent_per_hour == 2.0 * log.laws[0].drift_percent_per_hour
    assert np.array_equal(other.candidates, 3 * log.candidates)
    assert other.history_tokens.sum() == pytest.approx(0.5 * log.history_tokens.sum(), rel=0.01)
    assert np.array_equal(other.arrival_ms, log.arrival_ms)


def test_the_rule_of_load_ends_where_the_best_static_split_is_as_busy_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def at_rate(regime: str, part: str, shift: str, rate: float) -> tuple[float, float]:
        asked.append(rate)
        return 0.4 * rate + 0.001 * rate * rate, 30.0

    monkeypatch.setattr(site, "_at_rate", at_rate)
    rate, busy, planned_ms = site.rate_by_rule("steady", "validation")
    assert abs(busy - site.LOAD_PERCENT) <= site.LOAD_WITHIN
    assert (rate, planned_ms) == (asked[-1], 30.0)
    found = site.rules_of("validation", {"steady": (rate, busy, planned_ms)})
    assert found.slo_ms == pytest.approx(1.25 * 30.0)


def test_a_figure_has_another_name_when_what_it_depends_on_changes() -> None:
    hindsight = {"staticPercent": 50, "plannedPercents": [50, 60]}

    def name(key: str, sha256: str | None = None, episode: Episode = AN_EPISODE, seen: dict[str, object] = hindsight) -> str:
        return runs.name_of(episode, key, sha256, seen)

    assert name("anchor", "a" * 64) == name("anchor", "b" * 64)  # the anchor runs no model
    assert name("clamped", "a" * 64) != name("clamped", "b" * 64)
    others = [
        name("hill"),
        name("anchor", episode=replace(AN_EPISODE, seed=2)),
        name("anchor", episode=replace(AN_EPISODE, noise=0.2)),
        name("anchor", seen={**hindsight, "plannedPercents": [50, 61]}),
    ]
    assert len({name("anchor"), *others}) == 1 + len(others)
    assert runs.hindsight_name(AN_EPISODE) == runs.hindsight_name(replace(AN_EPISODE, noise=0.2, instances=3))
    assert runs.hindsight_name(AN_EPISODE) != runs.hindsight_name(replace(AN_EPISODE, refill="lazy"))


def test_comments_change_no_name_and_code_does(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('"""One."""\nx = 1  # one\n')
    before = runs._code(file)
    file.write_text('"""Another."""\n\nx = 1\n')
    assert runs._code(file) == before
    file.write_text("x = 2\n")
    assert runs._code(file) != before


def test_recovery_shares_the_run_of_the_residual_where_refill_blocks_nobody() -> None:
    keys = ("residual", "recovery")
    assert runs.runs_of(Task(episode=AN_EPISODE, keys=keys)) == ["residual"]
    assert runs.runs_of(Task(episode=replace(AN_EPISODE, refill="blocking"), keys=keys)) == ["residual", "recovery"]


def test_recovery_changes_no_intent_but_for_freezes_of_blocking_refill() -> None:
    model = a_model()
    one, other = (ROWS[key].intent(model=model, blocking=False) for key in ("residual", "recovery"))
    assert one.learned == other.learned
    assert {name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)} == {"recovery"}


def test_a_run_is_a_run_of_fewer_instances_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "SECONDS", {"steady": 150.0})
    monkeypatch.setattr(runs, "FEWER", (1, 2))
    many = Task(
        episode=replace(AN_EPISODE, rate=5.0, instances=3), keys=("static-best", "anchor", "clamped"), model=a_model_file()
    )
    few = replace(many, episode=replace(many.episode, instances=2))
    runs.carry_out(many, known(tmp_path / "many", AN_EPISODE_OF_FEW))
    assert runs.carry_out(few, tmp_path / "many") == 0
    runs.carry_out(few, known(tmp_path / "few", AN_EPISODE_OF_FEW))
    weights = rows.decisive(read_model(a_model_file()))
    from_many, alone = (runs.results(few, tmp_path / name, weights) for name in ("many", "few"))
    assert from_many == alone


def test_tasks_of_one_traffic_share_their_log_and_what_it_tells_of_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Episode] = []
    whole = Episode.whole
    monkeypatch.setattr(Episode, "whole", lambda self: made.append(self) or whole(self))
    main = Task(episode=replace(AN_EPISODE_OF_FEW, instances=2), keys=("anchor",))
    tasks = [replace(main, episode=replace(main.episode, instances=1, noise=noise)) for noise in (0.2, 0.4)]
    assert runs.carry_out_together([tasks[0], main, tasks[1]], known(tmp_path / "together", main.episode)) == 3
    assert len(made) == 1
    known(tmp_path / "alone", main.episode)
    for task in (main, *tasks):
        runs.carry_out(task, tmp_path / "alone")
        assert runs.results(task, tmp_path / "together", None) == runs.results(task, tmp_path / "alone", None)


def test_half_written_figures_are_as_good_as_none(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "new")
    assert kept.load("a") is None
    kept.store("a", {"p99Ms": 1.5})
    assert kept.load("a") == {"p99Ms": 1.5}
    (kept.folder / "a.json").write_text('{"p99Ms": 1.')
    assert kept.load("a") is None


def test_a_killed_run_goes_on_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "SECONDS", {"steady": 150.0})
    task = Task(episode=AN_EPISODE, keys=("static-50", "anchor", "static-best", "oracle"))
    assert runs.carry_out(replace(task, keys=("static-50", "anchor")), tmp_path) == 2
    assert runs.carry_out(task, tmp_path) == 2
    assert runs.carry_out(task, tmp_path) == 0
    found = runs.results(task, tmp_path, None)
    assert found["anchor"]["requests"] == found["oracle"]["requests"] > 500
    assert found["static-50"]["gibMoved"] == 0.0
    assert found["oracle"]["apartPoints"] < 1.0
    assert json.dumps(figures.table([found], task.keys))
    assert sum(found["anchor"]["reasons"].values()) == 74


def test_the_same_episode_gives_the_same_figures_whoever_ran_before(tmp_path: Path) -> None:
    task = Task(episode=replace(AN_EPISODE, rate=5.0), keys=("hill", "anchor"))
    runs.carry_out(task, tmp_path / "both")
    runs.carry_out(replace(task, keys=("anchor",)), tmp_path / "alone")
    both, alone = (runs.results(replace(task, keys=("anchor",)), tmp_path / name, None) for name in ("both", "alone"))
    assert both["anchor"] == alone["anchor"]


def test_a_run_stands_for_rows_that_lack_only_what_never_acted(tmp_path: Path) -> None:
    assert rows.same_outcome("residual", ()) == ("clamped", "ppo")
    assert rows.same_outcome("residual", ("guard",)) == rows.same_outcome("residual", ("clamp",)) == ("clamped",)
    assert rows.same_outcome("residual", ("residual",)) == rows.same_outcome("clamped", ()) == ()
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    arrays |= {"b3": np.full(1, 0.2, np.float32), "scale": np.ones(31, np.float32)}
    arrays |= {"low": np.full(31, -1e9, np.float32), "high": np.full(31, 1e9, np.float32)}
    header = Header(format=1, feature_spec=FEATURE_SPEC, max_step_percent=1.0, origin=Origin.ANCHOR)
    task = Task(episode=replace(AN_EPISODE, rate=5.0), keys=("ppo", "clamped", "residual"), model=write_model(arrays, header))
    weights = rows.decisive(read_model(write_model(arrays, header)))
    apart, found = {}, {}
    for key in task.keys:
        runs.carry_out(replace(task, keys=(key,)), tmp_path / key)
        apart[key] = {**runs.results(replace(task, keys=(key,)), tmp_path / key, weights)[key], "of": []}
    runs.carry_out(task, tmp_path / "together")
    found = {key: {**one, "of": []} for key, one in runs.results(task, tmp_path / "together", weights).items()}
    assert apart["residual"]["acted"] == []
    assert apart["residual"]["reasons"]["LearnedTarget"] > 0
    assert {key: found[key] for key in task.keys} == apart


def test_every_row_says_who_it_is_and_fixed_rows_decide_nothing() -> None:
    assert {key for key, row in ROWS.items() if row.strategy is None} == set(rows.FIXED)
    with pytest.raises(ValueError, match="nobody decides"):
        ROWS["oracle"].intent(model=None, blocking=False)
