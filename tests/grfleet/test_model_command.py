"""`grfleet model`: what it says of files and clusters, in one line where something is wrong, and with an exit code to go by."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from example_models import model_bytes
from kubeconfigs import kubeconfig_of
from rich.console import Console
from typer.testing import CliRunner, Result

from controllers.runtime.resources import Key
from grfleet.access import Failed
from grfleet.cli import app
from grfleet.model.listing import row_of, table_of
from grfleet.model.push import KEY, MODEL_LABEL, _refuse_other_bytes, model_name
from policies.allocation.model_file import MAX_FILE_BYTES, digest_of

SCORES = ({"name": "trend-gain", "value": 12.5, "unit": "percent"},)
GOOD = model_bytes(1, scores=SCORES, training={"seed": 7, "command": "grfleet train"})


def run(*words: str, kubeconfig: Path | None = None) -> Result:
    environment = {"KUBECONFIG": str(kubeconfig or "/nowhere"), "no_proxy": "127.0.0.1", "KUBERNETES_SERVICE_HOST": None}
    return CliRunner().invoke(app, ["model", *words], env=environment)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "split-1.safetensors"
    path.write_bytes(GOOD)
    return path


def test_a_good_file_is_described_to_people_and_to_programs(file: Path) -> None:
    said = run("verify", str(file))
    assert said.exit_code == 0
    for part in (digest_of(GOOD), "split-features-1", "trend-gain 12.5 percent", "seed 7", str(len(GOOD))):
        assert part in " ".join(said.stdout.split())
    facts = json.loads(run("verify", str(file), "--json").stdout)
    assert (facts["ok"], facts["sha256"], facts["scores"]) == (True, digest_of(GOOD), list(SCORES))
    assert run("verify", str(file), "--sha256", digest_of(GOOD)).exit_code == 0


@pytest.mark.parametrize("written", [digest_of(GOOD).upper(), f" {digest_of(GOOD)}\n"])
def test_a_digest_is_the_same_in_capitals_or_with_a_blank_around_it(file: Path, written: str) -> None:
    assert run("verify", str(file), "--sha256", written).exit_code == 0


@pytest.mark.parametrize(
    "written", ["", " ", digest_of(GOOD)[:12], f"{digest_of(GOOD)}  split-1", "g" * 64, "sha256:" + digest_of(GOOD)]
)
def test_what_is_no_digest_is_wrong_usage_and_not_a_damaged_file(file: Path, written: str) -> None:
    said = run("verify", str(file), "--sha256", written)
    assert said.exit_code == 2
    assert "64 hexadecimal digits" in said.stderr


@pytest.mark.parametrize(
    ("data", "flags", "reason"),
    [
        (b"", (), "NotAModel"),
        (b"\x80\x04K\x01.", (), "NotAModel"),
        (GOOD[:-1], (), "NotAModel"),
        (model_bytes(format=9), (), "UnknownFormat"),
        (model_bytes(featureSpec="other"), (), "UnknownFeatures"),
        (b"x" * (MAX_FILE_BYTES * 40), (), "TooLarge"),
        (GOOD, ("--sha256", "0" * 64), "DigestMismatch"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_with_the_reason(file: Path, data: bytes, flags: tuple[str, ...], reason: str) -> None:
    file.write_bytes(data)
    said = run("verify", str(file), *flags)
    assert (said.exit_code, said.stdout) == (1, "")
    assert said.stderr.startswith(f"model verify: {file}: {reason}: ")
    assert said.stderr.count("\n") == 1
    answered = run("verify", str(file), *flags, "--json")
    assert (answered.exit_code, json.loads(answered.stdout)["ok"]) == (1, False)


def test_whatever_a_file_says_of_itself_programs_can_read_it(file: Path) -> None:
    scores = [{"name": "\ud800", "value": float("nan"), "unit": "\x00"}, {"name": "far", "value": float("inf")}]
    file.write_bytes(model_bytes(1, scores=scores, training={"loss": [float("-inf")], "text": "\udfff"}))
    said = run("verify", str(file), "--json")
    assert said.exit_code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    facts = json.loads(said.stdout, parse_constant=refuse)
    assert [score["value"] for score in facts["scores"]] == [None, None]
    assert run("verify", str(file)).exit_code == 0


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    assert run("verify", str(tmp_path / "none")).exit_code == 2
    assert run("push", str(tmp_path)).exit_code == 2


def test_what_a_file_says_of_itself_steers_no_terminal(file: Path) -> None:
    file.write_bytes(model_bytes(1, training={"command": "\x1b]0;owned\x07"}, scores=[{"name": "\x1b[2J", "value": 1.0}]))
    said = run("verify", str(file))
    assert said.exit_code == 0
    assert not {"\x1b", "\x07"} & set(said.stdout)


def test_nothing_is_sent_for_a_file_that_is_no_model_or_a_name_that_cannot_be(file: Path, tmp_path: Path) -> None:
    nowhere = kubeconfig_of(tmp_path, server="http://127.0.0.1:9")
    refused = run("push", str(file), "--name", "Not A Name", kubeconfig=nowhere)
    assert (refused.exit_code, "--name" in refused.stderr) == (1, True)
    file.write_bytes(b"nothing")
    assert "NotAModel" in run("push", str(file), kubeconfig=nowhere).stderr


@pytest.mark.parametrize(
    "found",
    [
        {"metadata": {}, "binaryData": {KEY: "eHg="}},
        {"metadata": {}, "binaryData": {KEY: None}},
        {"metadata": {"labels": None}, "data": {"theirs": "text"}},
        {"metadata": {"labels": {MODEL_LABEL: "other"}}, "binaryData": {KEY: "eHg="}},
        {"metadata": {"labels": {MODEL_LABEL: "m"}}, "binaryData": {KEY: "eHg="}, "immutable": True},
        {"metadata": {"labels": {MODEL_LABEL: "m"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "binaryData": {KEY: "YWJj"}},
    ],
)
def test_no_bytes_are_written_over_a_config_map_that_is_somebody_elses_fixed_or_on_its_way_out(found: dict[str, Any]) -> None:
    with pytest.raises(Failed, match=r"team/grfleet-model-m"):
        _refuse_other_bytes(found, Key("team", "grfleet-model-m"), "m", b"abc")


@pytest.mark.parametrize("words", [("push", "FILE"), ("list",), ("list", "-A")])
def test_a_cluster_that_does_not_answer_is_named(file: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    nowhere = kubeconfig_of(tmp_path, server="http://127.0.0.1:9")
    said = run(*(str(file) if word == "FILE" else word for word in words), "--request-timeout", "2s", kubeconfig=nowhere)
    assert said.exit_code == 1
    assert "http://127.0.0.1:9 does not answer" in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "file", "name"),
    [("", "split-1.safetensors", "split-1"), ("", "My_Model.v2.safetensors", "my-model.v2"), ("mine", "x.safetensors", "mine")],
)
def test_a_model_is_called_as_its_file_unless_told_otherwise(given: str, file: str, name: str) -> None:
    assert model_name(given, Path(file)) == name


@pytest.mark.parametrize("given", ["", "A", "-a", "a" * 64, "a/b"])
def test_a_name_that_no_object_can_have_is_refused(given: str) -> None:
    with pytest.raises(Failed, match="--name"):
        model_name(given, Path("-.safetensors"))


def stored(**more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "split-1", "namespace": "team"}, "spec": {"sha256": "ab" * 32, "featureSpec": "f-1"}, **more}


def shown(*rows: dict[str, Any], namespaces: bool = False) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(table_of(list(rows), namespaces=namespaces))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_what_is_known_and_a_dash_for_the_rest() -> None:
    conditions = [{"type": "Verified", "status": "True", "reason": "Verified"}, {"type": "InUse", "status": "False"}]
    full = stored(
        status={"conditions": conditions, "instances": 0, "scores": [{"name": "gain", "value": "12", "unit": "percent"}]}
    )
    lines = shown(row_of(full), row_of(stored()), namespaces=True).splitlines()
    assert lines[1].split() == ["team", "split-1", "True", "Verified", "False", "0", "f-1", "ab" * 6, "gain", "12", "percent"]
    assert lines[2].split() == ["team", "split-1", "-", "-", "-", "-", "f-1", "ab" * 6, "-"]


def test_a_model_with_many_scores_keeps_to_its_line() -> None:
    scores = [{"name": f"score-{number}", "value": "1", "unit": "percent"} for number in range(9)]
    lines = shown(row_of(stored(status={"scores": scores}))).splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("score-0 1 percent; and 8 more")


def test_the_score_in_the_table_is_the_models_own_and_not_that_of_what_it_is_compared_with() -> None:
    names = ("nominal-steady-anchor-smoothed", "nominal-steady-model-guarded", "nominal-trend-model-guarded")
    (_, line) = shown(row_of(stored(status={"scores": [{"name": name, "value": "1"} for name in names]}))).splitlines()
    assert line.endswith("nominal-steady-model-guarded 1; and 2 more")


def test_what_trained_a_model_is_told_in_words_without_the_marks_of_a_program(file: Path) -> None:
    file.write_bytes(model_bytes(1, training={"plan": {"steps": 7, "seeds": [1, 2], "versions": {"numpy": "2.4"}}}))
    said = run("verify", str(file)).stdout
    assert "training     plan seeds 1, 2, steps 7, versions numpy 2.4" in said
    assert not {"{", "}", "'", "["} & set(said)


def test_what_an_object_says_steers_no_terminal() -> None:
    status = {"conditions": [{"type": "Verified", "status": "[bold]x", "reason": "\x1b[2J"}]}
    assert "\x1b" not in shown(row_of(stored(status=status)))
    assert "[bold]x" in shown(row_of(stored(status=status)))
