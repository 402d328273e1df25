"""`grfleet simulate` says what the laws say, the same for each form of a log, and puts a baseline beside every figure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulate_inputs import (
    event_csv,
    event_jsonl_gz,
    hbm_policy,
    manifest,
    pool,
    pre_inference,
    regulars,
    requests_file,
    run,
    strangers,
)

from contract.keys import slot_of, user_key
from grfleet.simulate.translate import accelerator_of
from policies.routing.rendezvous import place as place_slots
from simulator.physics.model_shape import HSTU_MTSERVE
from simulator.physics.profiled import profiled_service


def test_a_stranger_waits_for_nothing_and_costs_what_the_service_law_says(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "log.csv", strangers(1400, history=1024, candidates=100))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--policy", "static:50")

    law = profiled_service(accelerator_of("a100"), HSTU_MTSERVE)
    stages = {stage["stage"]: stage for stage in ran.result["run"]["stages"]}
    assert ran.code == 0, ran.said
    assert stages["queue"]["p99Ms"] == 0.0
    assert stages["compute"]["p50Ms"] == pytest.approx(law.compute_ms(history=1024, candidates=100, cached=0), abs=1e-3)
    assert stages["total"]["meanMs"] == pytest.approx(stages["compute"]["meanMs"] + stages["transfer"]["meanMs"], abs=1e-3)
    assert ran.result["run"]["kvHitPercent"] == {"hbm": 0.0, "host": 0.0, "ssd": 0.0}
    assert [bucket["fromTokens"] for bucket in ran.result["run"]["byHistoryLength"]] == [1024]
    assert sum(ran.result["run"]["stages"][0]["counts"]) == ran.result["run"]["requests"]


def test_regulars_find_their_state_and_cost_only_what_is_new(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "log.csv", regulars(1400, users=20, history=1024, candidates=100))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--policy", "static:50")

    law = profiled_service(accelerator_of("a100"), HSTU_MTSERVE)
    assert ran.result["run"]["kvHitPercent"]["hbm"] == 100.0
    compute = next(stage for stage in ran.result["run"]["stages"] if stage["stage"] == "compute")
    assert compute["p50Ms"] == pytest.approx(law.compute_ms(history=1024, candidates=100, cached=1024), abs=1e-3)


def test_a_log_says_the_same_as_csv_and_as_zipped_json_lines(tmp_path: Path, plain: Path) -> None:
    visits = regulars(1500, users=60)
    logs = (event_csv(tmp_path / "log.csv", visits), event_jsonl_gz(tmp_path / "log.jsonl.gz", visits))

    digests = {
        run("simulate", tmp_path / f"out-{place}", "--trace", log, "--pool", plain, "--level", "reduced").result["digest"]
        for place, log in enumerate(logs)
    }

    assert len(digests) == 1


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_digest(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")

    runs = [
        run("simulate", tmp_path / f"out-{place}", "--trace", log, "--pool", plain, "--seed", seed)
        for place, seed in enumerate((3, 3, 4))
    ]

    texts = [(each.out / "result.json").read_text() for each in runs]
    assert texts[0] == texts[1]
    assert runs[0].result["run"]["digest"] != runs[2].result["run"]["digest"]


def test_the_baseline_holds_the_fallback_of_the_manifest_and_the_difference_is_theirs(tmp_path: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(bounds={"fallbackEmbPercent": 70}))
    log = requests_file(tmp_path / "day.grlog")

    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--policy", "static:10").result

    assert found["baselinePolicy"]["name"] == "static:70"
    assert {window["meanEmbPercent"] for window in found["run"]["windows"]} == {9.38}  # whole granules of 16 MiB
    assert {window["meanEmbPercent"] for window in found["baseline"]["windows"]} == {69.53}
    ratio = found["run"]["p99Ms"] / found["baseline"]["p99Ms"]
    assert found["difference"]["p99Percent"] == pytest.approx(100.0 * (ratio - 1.0), abs=0.02)
    assert found["run"]["digest"] != found["baseline"]["digest"]


def test_a_policy_that_is_its_own_baseline_differs_in_nothing(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")

    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--policy", "Static").result

    assert found["run"] == found["baseline"]
    assert set(found["difference"].values()) == {0.0}


def test_a_policy_may_be_compared_with_any_other(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")
    arguments = ("--trace", log, "--pool", plain, "--level", "reduced")

    one = run("simulate", tmp_path / "one", *arguments, "--policy", "static:30", "--baseline", "MissRatioCurve").result
    other = run("simulate", tmp_path / "other", *arguments, "--policy", "MissRatioCurve", "--baseline", "static:30").result

    assert one["baselinePolicy"]["strategy"] == "MissRatioCurve"
    assert (one["run"], one["baseline"]) == (other["baseline"], other["run"])
    assert one["baseline"]["decisions"]


@pytest.mark.parametrize("level", ["sampled", "sampled-64", "reduced"])
def test_agents_that_may_not_move_differ_from_their_baseline_in_nothing(tmp_path: Path, level: str) -> None:
    pinned = {"minEmbPercent": 50, "fallbackEmbPercent": 50, "maxEmbPercent": 50}
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(strategy="MissRatioCurve", bounds=pinned))
    log = requests_file(tmp_path / "day.grlog")

    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--level", level).result

    assert found["run"]["decisions"]
    assert found["run"]["prediction"]["decisions"] > 0
    assert found["run"] | {"decisions": {}, "prediction": None} == found["baseline"]


def test_a_changed_policy_brings_all_its_guards_with_it(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")
    change = manifest(tmp_path / "change.yaml", hbm_policy(refill={"maxLinkPercent": 5}, bounds={"fallbackEmbPercent": 60}))

    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--policy", change, "--level", "reduced").result

    assert found["policy"]["refillLinkPercent"] == 5
    assert found["policy"]["firstEmbPercent"] == found["baselinePolicy"]["firstEmbPercent"] == 60


def test_users_are_where_the_pool_has_them_when_its_key_is_given(tmp_path: Path, plain: Path) -> None:
    key, visitor = b"the secret key of the pool", "ann@example.com"
    (tmp_path / "key").write_bytes(key)
    log = event_csv(tmp_path / "log.csv", [(place * 20.0, visitor, 500, 100) for place in range(1200)])
    owner = place_slots(["feed-a", "feed-b"], [1.0, 1.0])[slot_of(user_key(key, visitor))]

    arguments = ("--trace", log, "--pool", plain, "--level", "reduced", "--warm-up", "0s")
    found = run("simulate", tmp_path / "out", *arguments, "--user-key-file", tmp_path / "key").result

    assert [each["requests"] for each in found["run"]["byInstance"]] == ([1200, 0] if owner == 0 else [0, 1200])
    assert not any(note.startswith("slots: ") for note in found["assumptions"])


@pytest.mark.parametrize("name", ["MissRatioCurve", "missratiocurve", "HillClimb"])
def test_a_strategy_moves_the_split_inside_the_bounds_and_says_why(tmp_path: Path, name: str) -> None:
    bounds = {"minEmbPercent": 20, "maxEmbPercent": 80, "fallbackEmbPercent": 40}
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(bounds=bounds, step={"maxPercentPerSecond": 10}))
    log = requests_file(tmp_path / "day.grlog", count=4000)

    found = run(
        "simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--policy", name, "--level", "sampled-64"
    ).result

    assert found["policy"]["strategy"].lower() == name.lower()
    assert sum(found["run"]["decisions"].values()) == 2 * 89  # two agents, a decision at the end of each second but the last
    assert found["run"]["moves"]["count"] > 0
    shares = [window[side] for window in found["run"]["windows"] for side in ("minEmbPercent", "maxEmbPercent")]
    assert min(shares) >= 20.0 - 0.8
    assert max(shares) <= 80.0


def test_all_parts_of_a_result_add_up(tmp_path: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(step={"maxPercentPerSecond": 10}))
    log = requests_file(tmp_path / "late.grlog", count=4000, begins_ms=7_654_321.0)

    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--warm-up", "9s").result
    run_, stages = found["run"], found["run"]["stages"]

    assert found["measuredFromMs"] == pytest.approx(found["run"]["windows"][0]["fromMs"] + 9000.0)
    assert run_["moves"]["count"] == sum(window["moves"] for window in run_["windows"])
    assert sum(window["requests"] for window in run_["windows"]) == found["trace"]["requests"] == 4000
    assert run_["windows"][-1]["meanEmbPercent"] == pytest.approx(run_["moves"]["lastEmbPercent"], abs=0.01)
    for parts in (run_["byHistoryLength"], run_["byInstance"]):
        assert sum(part["requests"] for part in parts) == run_["requests"]
    for part in (*stages, *run_["byHistoryLength"]):
        assert sum(part["counts"]) == part.get("requests", run_["requests"])
    assert stages[0]["meanMs"] == pytest.approx(sum(stage["meanMs"] for stage in stages[1:]), abs=1e-3)
    edges = found["histogramEdgesMs"]
    beyond = sum(stages[0]["counts"][next(n for n, edge in enumerate(edges) if edge >= stages[0]["p99Ms"]) :])
    assert beyond <= 0.01 * run_["requests"]
    mean = sum(each["utilisationPercent"] for each in run_["byInstance"]) / 2
    assert mean == pytest.approx(run_["utilisationPercent"], abs=0.01)


def test_without_a_policy_the_manifest_decides(tmp_path: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")
    beside = manifest(tmp_path / "beside.yaml", pool(), hbm_policy(strategy="Static", bounds={"fallbackEmbPercent": 30}))
    named = manifest(tmp_path / "named.yaml", pool(policies={"hbm": "mine"}), hbm_policy("mine", strategy="HillClimb"))
    alone = manifest(tmp_path / "alone.yaml", pool(policies={"hbm": "mine"}))
    own = manifest(tmp_path / "own.yaml", hbm_policy("whatever", strategy="Static"))

    def strategy(*arguments: object) -> tuple[str, int]:
        found = run("simulate", tmp_path / "out", "--trace", log, "--level", "reduced", "--force", *arguments).result["policy"]
        return found["strategy"], found["fallbackEmbPercent"]

    assert strategy("--pool", beside) == ("Static", 30)
    assert strategy("--pool", named) == ("HillClimb", 50)
    assert strategy("--pool", alone, "--hbm-policy", own) == ("Static", 50)
    assert strategy("--pool", beside, "--policy", own) == ("Static", 50)


@pytest.mark.parametrize(
    ("changes", "policy", "word"),
    [({"paused": True}, {}, "paused"), ({}, {"strategy": "MissRatioCurve", "enforcement": "Shadow"}, "Shadow")],
)
def test_what_would_not_move_in_the_cluster_does_not_move_here(
    tmp_path: Path, changes: dict[str, object], policy: dict[str, object], word: str
) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool(**changes), hbm_policy(**policy))
    log = requests_file(tmp_path / "day.grlog")

    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--level", "reduced").result

    assert found["policy"]["holds"] is True
    assert found["run"]["moves"]["count"] == 0
    assert any(word in note for note in found["assumptions"])


def test_a_host_tier_of_the_manifest_serves_what_hbm_had_to_give_up(tmp_path: Path) -> None:
    # long histories: an A100 computes short ones sooner than the link brings them
    model = {"name": "ranker", "version": "7", "kvBytesPerToken": 16384, "embRowBytes": 512, "maxHistoryTokens": 16384}
    memory = {"hbmBytes": "1Gi", "hostBytes": "8Gi"}
    manifests = manifest(tmp_path / "pool.yaml", pool(model=model, memory=memory))
    log = event_csv(tmp_path / "log.csv", regulars(1500, users=20, history=16_000))

    hits = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--policy", "static:50").result["run"]

    assert hits["kvHitPercent"]["host"] > 90.0
    assert hits["bytesByClass"]["reload"] > 0


@pytest.mark.parametrize("regime", ["steady", "trend", "burst"])
def test_a_regime_is_a_trace_too(tmp_path: Path, plain: Path, regime: str) -> None:
    timing = ("--duration", "20s", "--rate", "70", "--level", "reduced")
    ran = run("simulate", tmp_path / "out", "--trace", regime, "--pool", plain, "--policy", "static:50", *timing)

    assert ran.code == 0, ran.said
    assert ran.result["trace"]["name"] == regime
    assert ran.result["trace"]["manifest"]["regime"] == regime
    assert ran.result["trace"]["requests"] >= 1400


def test_early_signals_start_what_the_policy_of_the_pool_lets_them(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog", lead_ms=200.0)
    eager = {"trigger": {"minPrefixTokens": 100, "riskBudgetMs": 1}, "budget": {"maxInflight": 6}}
    arguments = ("--trace", log, "--level", "reduced", "--policy", "static:50", "--force")

    def waste(name: str, **policy: object) -> tuple[dict[str, int], dict[str, object] | None]:
        manifests = manifest(tmp_path / f"{name}.yaml", pool(), pre_inference(**policy))
        found = run("simulate", tmp_path / name, *arguments, "--pool", manifests).result
        return found["run"]["waste"], found["preInference"]

    without = run("simulate", tmp_path / "without", *arguments, "--pool", plain).result
    busy, rules = waste("eager", **eager)
    idle, none = waste("idle", **eager | {"budget": {"maxInflight": 0}})

    assert without["preInference"] is None
    assert without["run"]["waste"]["preInferAccepted"] == 0
    assert busy["preInferAccepted"] >= busy["preInferUsed"] > 0
    assert rules is not None
    assert (rules["slots"], rules["minPrefixTokens"], rules["budgetMs"]) == (3, 100, 1.0)
    assert rules["lifeMs"] == 250.0  # the lead and the objective
    assert (idle["preInferAccepted"], none) == (0, None)
    assert "early signals" in (tmp_path / "eager" / "summary.md").read_text()


def test_histories_beyond_the_models_context_are_cut_and_counted(tmp_path: Path) -> None:
    model = {"name": "ranker", "version": "7", "kvBytesPerToken": 16384, "embRowBytes": 512, "maxHistoryTokens": 1000}
    manifests = manifest(tmp_path / "pool.yaml", pool(model=model))
    log = requests_file(tmp_path / "day.grlog")

    found = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--level", "reduced").result

    assert {bucket["fromTokens"] for bucket in found["run"]["byHistoryLength"]} == {512}
    assert any(re.match(r"histories: \d+ were longer than maxHistoryTokens", note) for note in found["assumptions"])
