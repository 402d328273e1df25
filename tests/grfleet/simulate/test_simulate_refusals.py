"""What cannot be simulated is refused in one line that names file, place, reason and what to do; nothing is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulate_inputs import event_csv, hbm_policy, manifest, pool, regulars, requests_file, run

from grfleet.durations import length_ms
from grfleet.simulate.command import oracle, simulate
from simulator.oracle.parallel import WorkerLost

MODEL = {"name": "ranker", "version": "7", "kvBytesPerToken": 16384, "embRowBytes": 512, "maxHistoryTokens": 4096}
ADOPTED: dict[str, Any] = {"adopted": {"matchLabels": {"app": "gr"}}}
MANAGED: dict[str, Any] = {"managed": {"template": {"spec": {"containers": []}}}}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return event_csv(tmp_path_factory.mktemp("log") / "log.csv", regulars(20, users=2))


def refused(tmp_path: Path, command: str, *arguments: object, code: int = 1) -> str:
    """Run, check that nothing was left, and return the one line that was said."""
    before = {path.name for path in tmp_path.iterdir()}
    ran = run(command, tmp_path / "out", *arguments)
    assert ran.code == code, ran.said
    assert ran.outcome.stdout == ""
    assert {path.name for path in tmp_path.iterdir()} - before == set()
    # Whether loops have to be compiled first is told where it is tested.
    told = [line for line in ran.outcome.stderr.splitlines(keepends=True) if "compiling the simulator's loops" not in line]
    if code == 1:
        assert len(told) == 1
        assert told[0].startswith(f"{command}: ")
    return " ".join("".join(told).replace("│", " ").split())  # typer draws a box around wrong usage


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (pool(modle=MODEL), ["document 1", "GRServingPool feed", "field spec.modle", "no such field", "kubectl explain"]),
        (pool(model=MODEL | {"layers": 8}), ["field spec.model.layers", "no such field"]),
        (pool(memory={"hbmBytes": "4GiB"}), ["spec.memory.hbmBytes", "match"]),
        (pool(memory={"hbmBytes": "2Gi", "hbmReservedBytes": "2Gi"}), ["spec.memory", "must be smaller than memory.hbmBytes"]),
        (pool(memory={"hbmBytes": "8Mi"}), ["field spec.memory.hbmBytes", "8388608", "granule"]),
        (pool(memory={"hbmBytes": "999999Ti"}), ["field spec.memory.hbmBytes", "2**44"]),
        (pool(memory={"hbmBytes": "4Gi", "ssdBytes": "1Ti"}), ["field spec.memory.ssdBytes", "host"]),
        (pool(model=MODEL | {"kvBytesPerToken": -1}), ["spec.model.kvBytesPerToken", "greater than or equal to 1"]),
        (pool(model=MODEL | {"kvBytesPerToken": 4097}), ["field spec.model.kvBytesPerToken", "no model", "--layers"]),
        (pool(model=MODEL | {"kvBytesPerToken": 1.5}), ["spec.model.kvBytesPerToken", "integer"]),
        (pool(model=MODEL | {"attention": "Linear"}), ["field spec.model.attention", "Softmax"]),
        (pool(model={"name": "ranker"}), ["spec.model.kvBytesPerToken", "required"]),
        (pool(slo={"p99Ms": 0}), ["spec.slo.p99Ms"]),
        (pool(slo={"p99Ms": float("nan")}), ["spec.slo.p99Ms"]),
        (pool(instances=ADOPTED), ["field spec.instances.adopted", "--instances"]),
        (pool(instances=MANAGED, replicas=0), ["field spec.replicas", "--instances"]),
        (pool(instances={}), ["spec.instances", "exactly one"]),
        (pool(policies={"hbm": "mine"}), ["field spec.policies.hbm", "mine", "--hbm-policy"]),
        ({"apiVersion": "grfleet.dev/v1", "kind": "GRServingPool"}, ["grfleet.dev/v1 has no such kind"]),
        ({"apiVersion": "apps/v1", "kind": "GRServingPool"}, ["field apiVersion", "grfleet.dev/v1alpha1"]),
        ({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}, ["no GRServingPool"]),
        ({"spec": {}}, ["document 1", "no kind"]),
    ],
)
def test_a_pool_that_cannot_be_is_refused_by_its_field(
    tmp_path: Path, log: Path, document: dict[str, Any], words: list[str]
) -> None:
    manifests = manifest(tmp_path / "pool.yaml", document)

    said = refused(tmp_path, "simulate", "--trace", log, "--pool", manifests)

    assert str(manifests) in said
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"strategy": "Fastest"}, ["HBMPolicy default", "spec.strategy"]),
        (
            {"strategy": "Learned", "enforcement": "Active", "learned": {"model": "m"}},
            ["Learned", "--model FILE", "--policy MissRatioCurve"],
        ),
        ({"bounds": {"minEmbPercent": 60}}, ["spec.bounds", "fallbackEmbPercent must lie between"]),
        ({"bounds": {"minEmb": 5}}, ["field spec.bounds.minEmb", "no such field"]),
        ({"refill": {"maxLinkPercent": 0}}, ["spec.refill.maxLinkPercent"]),
        ({"step": {"deadbandPercent": 50}, "bounds": {"minEmbPercent": 40, "maxEmbPercent": 60}}, ["step.deadbandPercent"]),
    ],
)
def test_a_policy_that_cannot_be_is_refused_by_its_field(
    tmp_path: Path, log: Path, policy: dict[str, Any], words: list[str]
) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(**policy))

    said = refused(tmp_path, "simulate", "--trace", log, "--pool", manifests)

    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", [", line ", "no YAML"]),
        ("kind: A\nkind: B\n", ["line 2", "'kind' stands here twice"]),
        ("kind: !!python/object/apply:os.getcwd []\n", ["line 1", "no YAML"]),
        ("", ["holds no manifest"]),
        ("---\n---\n", ["holds no manifest"]),
        ("just words", ["no kind"]),
        ("- 1\n- 2\n", ["no kind"]),
        ("[" * 5000, ["no YAML"]),
        ("kind: A\nsize: 1e400\nmetadata: {name: .nan}\n", ["holds no GRServingPool"]),
        ("kind: {a: b}\n", ["no kind"]),
        ("a: &a {x: 1}\nb: {<<: [*a, *a]}\n", ["line 2", "merge keys"]),
        ("&a [*a]\n", ["no kind"]),
        ("&a {kind: *a}\n", ["no YAML"]),
        ("kind: " + "9" * 5000, ["pool.yaml"]),
        ("? [1, 2]\n: kind\n", ["pool.yaml"]),
        ('apiVersion: grfleet.dev/v1alpha1\nkind: GRServingPool\nmetadata: {name: "a\\e[2Jb"}\n', ["field metadata.name"]),
        ("apiVersion: grfleet.dev/v1alpha1\nkind: GRServingPool\nspec: {}\n", ["field metadata.name"]),
        ("x" * (1 << 20) + "y", ["more than 1048576 bytes"]),
    ],
)
def test_a_file_that_holds_no_manifest_is_refused_by_its_line(tmp_path: Path, log: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(text)

    said = refused(tmp_path, "simulate", "--trace", log, "--pool", file)

    assert str(file) in said
    assert [word for word in words if word not in said] == []


def test_a_file_that_is_no_text_is_refused(tmp_path: Path, log: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_bytes(b"\xff\xfe\x00kind")

    assert "not UTF-8" in refused(tmp_path, "simulate", "--trace", log, "--pool", file)


def test_of_several_pools_one_must_be_named(tmp_path: Path) -> None:
    second = pool()
    second["metadata"]["name"] = "search"
    manifests = manifest(tmp_path / "pools.yaml", pool(), second)
    log = requests_file(tmp_path / "day.grlog")

    both = refused(tmp_path, "simulate", "--trace", log, "--pool", manifests)
    none = refused(tmp_path, "simulate", "--trace", log, "--pool", manifests, "--name", "ads")
    one = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--name", "search", "--level", "reduced")

    assert "feed, search" in both
    assert "--name" in both
    assert "ads" in none
    assert one.result["pool"]["name"] == "search"


@pytest.mark.parametrize("command", ["simulate", "oracle"])
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("time_ms,user,candidates\n", ["holds no"]),
        ("time_ms,user,candidates\n1,u,5\n9000,u,5\n2,u,5\n", ["line 4", "field time", "sort"]),
        ("time_ms,user,candidates,history_tokens\n1,u,5,-3\n", ["line 2", "field history_tokens"]),
        ("time_ms,user,candidates\nnan,u,5\n", ["line 2", "field time"]),
        ("time_ms,user\n1,u\n", ["candidates"]),
        ("\x00\x01", []),
    ],
)
def test_a_log_that_cannot_be_read_is_refused_by_its_line(tmp_path: Path, command: str, lines: str, words: list[str]) -> None:
    log, manifests = tmp_path / "log.csv", manifest(tmp_path / "pool.yaml", pool())
    log.write_text(lines)

    said = refused(tmp_path, command, "--trace", log, "--pool", manifests)

    assert str(log) in said
    assert [word for word in words if word not in said] == []


def test_bad_lines_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    log, manifests = event_csv(tmp_path / "log.csv", regulars(1500, users=9)), manifest(tmp_path / "pool.yaml", pool())
    with log.open("a") as file:
        file.write("nonsense,u,5,7\n")

    stopped = refused(tmp_path, "simulate", "--trace", log, "--pool", manifests)
    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", manifests, "--skip-bad", "--level", "reduced")

    assert "line 1502" in stopped
    assert ran.code == 0, ran.said
    assert "log: 1 of 1501 lines were bad and left out" in ran.result["assumptions"]


def test_a_damaged_file_of_requests_is_refused(tmp_path: Path) -> None:
    log, manifests = requests_file(tmp_path / "day.grlog"), manifest(tmp_path / "pool.yaml", pool())
    log.write_bytes(log.read_bytes()[:-100])

    assert "cut or damaged" in refused(tmp_path, "simulate", "--trace", log, "--pool", manifests)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "fastest"), ["--policy", "fastest", "MissRatioCurve"]),
        (("--policy", "static:101"), ["--policy", "0..100"]),
        (("--level", "rough"), ["--level", "reduced"]),
        (("--warm-up", "soon"), ["--warm-up", "60s"]),
        (("--warm-up", "200%"), ["--warm-up", "more than the whole log"]),
        (("--duration", "20%"), ["--duration", "5m"]),
        (("--seed", "-1"), ["--seed"]),
        (("--instances", "0"), ["--instances"]),
        (("--trace", "no-such-log.csv"), ["--trace", "neither a file nor one of steady, trend, burst"]),
        (("--pool", "no-such-pool.yaml"), ["--pool", "no-such-pool.yaml"]),
        (("--hbm-policy", "no-such-policy.yaml"), ["--hbm-policy"]),
        (("--window", "60s"), ["--window"]),
    ],
)
def test_wrong_usage_is_code_2_and_names_the_option(
    tmp_path: Path, log: Path, arguments: tuple[str, str], words: list[str]
) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool())

    said = refused(tmp_path, "simulate", "--trace", log, "--pool", manifests, *arguments, code=2)

    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--window", "0s"), ["--window", "positive"]),
        (("--window", "1ms", "--trace", "steady", "--duration", "5m"), ["--window", "windows"]),
        (("--accelerator", "abacus"), ["--accelerator", "a100"]),
        (("--layers", "7"), ["field spec.model.kvBytesPerToken", "7 layers"]),
    ],
)
def test_what_the_oracle_cannot_use_is_refused(tmp_path: Path, log: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool())

    said = refused(tmp_path, "oracle", "--trace", log, "--pool", manifests, *arguments)

    assert [word for word in words if word not in said] == []


def test_public_traces_that_are_not_there_are_named_with_the_option_that_says_where(tmp_path: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool())

    said = refused(tmp_path, "simulate", "--trace", "steady", "--pool", manifests, "--traces", tmp_path / "nowhere")

    assert str(tmp_path / "nowhere") in said
    assert "--traces" in said


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "1e3s", "5 s", "5d", "٣s", "nan", "99999999999s", "5%"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no length of time"):
        length_ms(text)


def test_lengths_of_time_are_read_in_their_unit() -> None:
    assert [length_ms(text) for text in ("5ms", "1.5s", "2m", "24h", "0s")] == [5.0, 1500.0, 120_000.0, 86_400_000.0, 0.0]
    assert length_ms("12.5%", of_ms=800.0) == 100.0


def test_a_log_too_long_and_sparse_to_decide_over_is_refused(tmp_path: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool())
    log = event_csv(tmp_path / "log.csv", regulars(3, users=2, every_ms=1e9))

    assert "intervalMs" in refused(tmp_path, "simulate", "--trace", log, "--pool", manifests)


def test_a_process_of_the_oracle_that_was_lost_is_one_line(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object, **__: object) -> None:
        raise WorkerLost("process 0 of the oracle ended before it was done")

    monkeypatch.setattr("grfleet.simulate.hindsight.best_splits", lose)
    manifests = manifest(tmp_path / "pool.yaml", pool())

    assert "--workers" in refused(tmp_path, "oracle", "--trace", log, "--pool", manifests)


def test_an_interrupted_run_leaves_nothing_and_is_code_130(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grfleet.simulate.rehearse.simulate", interrupt)
    manifests = manifest(tmp_path / "pool.yaml", pool())

    assert "nothing was written" in refused(tmp_path, "simulate", "--trace", log, "--pool", manifests, code=130)


def test_a_warm_up_longer_than_the_log_is_refused(tmp_path: Path, log: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool())

    assert "nothing would be measured" in refused(tmp_path, "simulate", "--trace", log, "--pool", manifests, "--warm-up", "1h")


@pytest.mark.parametrize("command", [simulate.__name__, oracle.__name__])
def test_without_numba_the_line_says_what_to_install(tmp_path: Path, log: Path, command: str) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool())
    program = "import sys; sys.modules['numba'] = None; from grfleet.cli import main; main()"

    ended = subprocess.run(
        [sys.executable, "-c", program, command, "--trace", log, "--pool", manifests, "--out", tmp_path / "out"],
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "pip install '.[sim]'" in ended.stderr
    assert not (tmp_path / "out").exists()
