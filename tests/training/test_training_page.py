"""The page on training: its commands exist, its figures are those of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented import ROOT, commands, read

from training.curves import CATALOGUES, EXPONENTS
from training.dynamics import MAX_STEP_PERCENT


def test_each_command_of_the_page_is_a_task_of_the_makefile() -> None:
    tasks = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = commands("docs/training.md")
    assert wanted
    for command in wanted:
        assert command.split()[0] == "make"
        assert command.split()[1] in tasks


def test_each_option_of_the_page_is_one_of_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "grfleet.cli", "train", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": "", "TERM": "dumb"},
        cwd=ROOT,
    ).stdout
    for option in set(re.findall(r"--[a-z][a-z-]+", read("docs/training.md"))):
        assert option in told, option


def test_the_page_says_how_many_laws_there_are_and_how_far_an_answer_goes() -> None:
    page = read("docs/training.md")
    assert f"{len(EXPONENTS) * len(CATALOGUES)} laws" in page
    assert MAX_STEP_PERCENT == 10.0
    assert "1 is ten points" in page


def test_without_torch_the_command_says_what_to_do(tmp_path: Path) -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        pytest.skip("torch is installed here")
    done = subprocess.run(
        [sys.executable, "-m", "grfleet.cli", "train", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "make train" in done.stderr
    assert not any(tmp_path.iterdir())
