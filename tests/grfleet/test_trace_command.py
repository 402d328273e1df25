"""`grfleet trace`: exit codes, one line for what cannot be, and no user id in anything that comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from contract.keys import slot_of, user_key
from grfleet.cli import app
from simulator.traces import load_request_log

KEY = b"0123456789abcdef"
LOG = "user,time_ms,candidates,device\nann.secret@example.com,0,5,x\nben.secret,4,6,x\nann.secret@example.com,9,7,x\n"


def trace(*words: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def test_a_log_is_checked_converted_and_checked_again_without_a_user_id_in_anything(log: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    out = tmp_path / "new" / "requests.grlog"

    said = [
        trace("check", log),
        trace("check", log, "--json"),
        trace("convert", log, out, "--user-key-file", tmp_path / "key", "--json"),
        trace("check", out),
    ]

    assert [each.exit_code for each in said] == [0, 0, 0, 0]
    assert "secret" not in "".join(each.output for each in said)
    assert b"secret" not in out.read_bytes()
    assert KEY not in out.read_bytes()
    requests, manifest = load_request_log(out)
    assert requests.user_slots.tolist() == [slot_of(user_key(KEY, name)) for name in ("ann.secret@example.com", "ben.secret")]
    assert (manifest["regime"], manifest["digest"], manifest["parameters"]["pool_key"]) == ("log", requests.digest, "given")
    assert json.loads(said[2].stdout)["log"]["digest"] == requests.digest
    assert requests.digest in said[3].stdout
    assert "ignored columns: device" in said[0].stdout


def test_bad_data_is_one_line_and_exit_code_1(log: Path, tmp_path: Path) -> None:
    log.write_text(LOG + "cleo,bad,1,x\n")
    (tmp_path / "file").write_text("")
    for ended, named in (
        (trace("check", log), "line 5, field time_ms"),
        (trace("convert", log, tmp_path / "out"), "line 5, field time_ms"),
        (trace("check", log, "--on-bad", "skip", "--max-skipped", "0"), "line 5, field time_ms"),
        (trace("convert", log, tmp_path / "file" / "out", "--on-bad", "skip"), str(tmp_path / "file")),
        (trace("generate", "steady", "--out", tmp_path / "out", "--traces", tmp_path), "mooncake_conversation.jsonl"),
        (trace("generate", "steady", "--out", tmp_path / "out", "--duration", "250h", "--rate", "1000000"), "requests"),
    ):
        assert (ended.exit_code, ended.output.count("\n")) == (1, 1), ended.output
        assert named in ended.output
    assert not (tmp_path / "out").exists()


def test_wrong_usage_is_exit_code_2(log: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short")
    for words in (
        ("check", tmp_path / "none"),
        ("check", tmp_path),
        ("check", log, "--on-bad", "perhaps"),
        ("check", log, "--disorder-ms", "-1"),
        ("convert", log),
        ("convert", log, log),
        ("convert", log, tmp_path / "out", "--user-key-file", tmp_path / "key"),
        ("generate", "sudden", "--out", tmp_path / "out"),
        ("generate", "steady"),
        ("generate", "steady", "--out", tmp_path / "out", "--users", "5"),
        ("generate", "trend", "--out", tmp_path / "out", "--burst-strength", "2"),
        ("generate", "generated", "--out", tmp_path / "out", "--part", "test"),
    ):
        assert trace(*words).exit_code == 2, words
    assert log.read_text() == LOG


def test_what_is_refused_comes_with_what_would_do(log: Path, tmp_path: Path) -> None:
    semicolons, bare, made = tmp_path / "semicolons.csv", tmp_path / "bare.csv", tmp_path / "made"
    semicolons.write_text(LOG.replace(",", ";"))
    bare.write_text("user,time_ms\nann,1\n")
    assert trace("convert", log, made).exit_code == 0
    for ended, named in (
        (trace("check", semicolons), "separated by commas"),
        (trace("check", bare), "--candidates"),
        (trace("convert", made, tmp_path / "again"), "a file of requests already"),
        (trace("generate", "trend", "--out", tmp_path / "again", "--traces", tmp_path / "nowhere"), "--traces"),
    ):
        assert (ended.exit_code, ended.output.count("\n")) == (1, 1), ended.output
        assert named in ended.output
    assert trace("check", bare, "--candidates", "300").exit_code == 0


def test_skipped_lines_are_counted_and_no_failure(log: Path) -> None:
    log.write_text(LOG + "cleo,bad,1,x\ncleo,11,0,x\n")
    said = trace("check", log, "--on-bad", "skip")
    assert said.exit_code == 0
    assert "5 lines read, 2 skipped" in said.stdout
    assert "1 x time_ms: not a number" in said.stdout
    assert "first at line 5" in said.stdout


@pytest.mark.parametrize("regime", ["steady", "trend", "burst", "generated"])
def test_the_same_seed_writes_the_same_bytes(regime: str, tmp_path: Path) -> None:
    common = ("generate", regime, "--duration", "30s", "--rate", "20", "--instances", "2", "--seed")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert trace(*common, seed, "--out", tmp_path / name).exit_code == 0
    a, b, c = ((tmp_path / name).read_bytes() for name in ("a", "b", "c"))
    assert a == b != c
    assert load_request_log(tmp_path / "a")[1]["regime"] == regime


def test_a_part_of_a_log_shares_no_user_and_no_moment_with_another(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "user,time_ms,candidates\n" + "".join(f"u{n // 4 if n % 2 else n % 10},{n * 100},{n + 1}\n" for n in range(200))
    )
    ranked: dict[str, set[int]] = {}
    left_out = 0
    for part in ("train", "validation", "test"):
        assert trace("convert", path, tmp_path / part, "--part", part, "--disorder-ms", 0).exit_code == 0
        requests, manifest = load_request_log(tmp_path / part)
        ranked[part] = set(requests.candidates.tolist())
        left_out += manifest["held"]["left_out"]
        assert manifest["requests"] == len(requests)
    assert len(set.union(*ranked.values())) == sum(map(len, ranked.values())) == 200 - left_out
    assert left_out > 0


def test_names_of_columns_cannot_steer_a_terminal(log: Path) -> None:
    log.write_text(LOG.replace("device", "\x1b[31mred[bold]"))
    said = trace("check", log)
    assert said.exit_code == 0
    assert "\x1b" not in said.stdout
    assert "[31mred[bold]" in said.stdout
