"""What `grfleet simulate` and `grfleet oracle` write, print and draw, and when a result says that it is not to be trusted."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from simulate_inputs import (
    Visit,
    event_csv,
    regulars,
    requests_file,
    run,
    strangers,
)

PNG = b"\x89PNG\r\n\x1a\n"


def test_json_on_stdout_is_the_file(tmp_path: Path, plain: Path) -> None:
    log = requests_file(tmp_path / "day.grlog")

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--level", "reduced", "--json")

    assert json.loads(ran.outcome.stdout) == ran.result
    assert [line for line in ran.outcome.stderr.splitlines() if "compiling the simulator's loops" not in line] == []


def test_nothing_that_is_written_names_a_user_the_machine_a_folder_or_a_day(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "log.csv", regulars(1500, users=40))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--level", "reduced")

    assert ran.code == 0, ran.said
    assert b"example.com" not in b"".join(path.read_bytes() for path in ran.out.iterdir())
    written = "".join((ran.out / name).read_text() for name in ("result.json", "summary.md")) + ran.outcome.stdout
    assert "example.com" not in written
    assert str(tmp_path.parent) not in written.replace(str(ran.out), "")  # the closing line names the folder it was given
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", written)
    assert not re.search(r"\b20[2-9]\d-[01]\d-[0-3]\d\b", written)


def test_a_name_of_a_file_neither_steers_a_terminal_nor_breaks_a_table(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "a|b\x1b[2J\n|.csv", regulars(1500, users=40))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--level", "reduced")

    summary = (ran.out / "summary.md").read_text()
    assert ran.code == 0, ran.said
    assert "\x1b" not in ran.said + summary
    assert "a\\|b [2J \\|.csv" in summary
    assert ran.result["trace"]["name"] == log.name


@pytest.mark.usefixtures("plots")
def test_pictures_are_drawn_and_where_they_cannot_be_the_rest_is_written(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = requests_file(tmp_path / "day.grlog")
    arguments = ("--trace", log, "--pool", plain, "--level", "reduced")

    with_plots = run("simulate", tmp_path / "with", *arguments)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    without = run("simulate", tmp_path / "without", *arguments)

    assert {path.name for path in with_plots.out.iterdir()} == {"result.json", "summary.md", "latency.png", "timeline.png"}
    assert all(path.read_bytes().startswith(PNG) for path in with_plots.out.glob("*.png"))
    assert without.code == 0
    assert {path.name for path in without.out.iterdir()} == {"result.json", "summary.md"}
    assert "pip install '.[bench]'" in without.outcome.stderr


def test_too_few_requests_are_not_trusted_and_all_the_same_written(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "log.csv", regulars(1200, users=10))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--level", "reduced")
    printed = run("simulate", tmp_path / "json", "--trace", log, "--pool", plain, "--level", "reduced", "--json")

    assert (ran.code, printed.code) == (3, 3)
    assert json.loads(printed.outcome.stdout) == ran.result
    assert ran.result["trusted"] is False
    assert "too few for a P99" in ran.result["notTrustedBecause"][0]
    assert "Not to be trusted" in (ran.out / "summary.md").read_text()
    assert "NOT TO BE TRUSTED" in ran.outcome.stdout


@pytest.mark.parametrize("command", ["simulate", "oracle"])
@pytest.mark.parametrize(
    "visits",
    [
        strangers(1),
        [(5.0, "u", 100, 3)] * 3,
        [(1.0, "u", 0, 1), (2.0, "v", 0, 1), (3.0, "u", 1, 1)],
        [(1.0, "u", 4096, 1 << 20)],
        [(1e12 - 1.0, "u", 1, 1), (1e12, "u", 1, 1)],
    ],
    ids=["one", "at-once", "empty", "large", "late"],
)
def test_the_smallest_and_the_oddest_logs_give_a_result_that_says_how_little_it_is_worth(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch, command: str, visits: list[Visit]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = event_csv(tmp_path / "log.csv", visits)

    ran = run(
        command,
        tmp_path / "out",
        "--trace",
        log,
        "--pool",
        plain,
        *(("--warm-up", "0s") if command == "simulate" else ("--workers", "1")),
    )

    assert ran.code == 3, ran.said
    assert ran.result["trace"]["requests"] == len(visits)
    assert "NaN" not in (ran.out / "result.json").read_text()
    assert "nan" not in (ran.out / "summary.md").read_text()


def test_more_load_than_any_split_carries_is_not_trusted(tmp_path: Path, plain: Path) -> None:
    log = event_csv(tmp_path / "log.csv", strangers(3000, every_ms=0.4, history=4000))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--level", "reduced")

    assert ran.code == 3
    assert any("overload at every split" in reason for reason in ran.result["notTrustedBecause"])


def test_a_split_that_cannot_carry_a_load_that_others_can_is_a_finding(tmp_path: Path, plain: Path) -> None:
    # the state of 40 regulars fits beside a small EMB cache; beside a large one everything is computed anew
    log = event_csv(tmp_path / "log.csv", regulars(4000, users=40, every_ms=0.7, history=3000))

    ran = run("simulate", tmp_path / "out", "--trace", log, "--pool", plain, "--policy", "static:95", "--level", "reduced")

    assert ran.result["run"]["utilisationPercent"] >= 100.0
    assert ran.code == 0, ran.said
    assert any("overload is a matter of the split" in doubt for doubt in ran.result["doubts"])


@pytest.mark.parametrize(
    ("command", "options", "bars"),
    [
        ("simulate", ("--level", "reduced"), (b"MissRatioCurve", b"static:50")),
        ("oracle", ("--window", "45s", "--workers", "1", "--fresh"), (b"91 splits", b"100%")),
    ],
)
def test_progress_is_shown_on_stderr_and_to_a_terminal_only(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch, command: str, options: tuple[str, ...], bars: tuple[bytes, ...]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = requests_file(tmp_path / "day.grlog")
    arguments = ["--trace", str(log), "--pool", str(plain), *options, "--json"]
    terminal, behind = pty.openpty()
    shown = b""

    ran = subprocess.Popen(
        [sys.executable, "-m", "grfleet.cli", command, *arguments, "--out", str(tmp_path / "shown")],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=behind,
    )
    os.close(behind)
    with contextlib.suppress(OSError):  # the terminal's other end has closed
        while more := os.read(terminal, 4096):
            shown += more
    os.close(terminal)
    printed, _ = ran.communicate(timeout=60)

    assert ran.returncode == 0
    assert [bar for bar in bars if bar not in shown] == []
    assert json.loads(printed)["command"] == command
    assert run(command, tmp_path / "quiet", *arguments).outcome.stderr == ""
