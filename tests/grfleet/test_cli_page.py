"""docs/cli.md names every column, command and flag there is, and none that there is not."""

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from grfleet.access import SPELLINGS
from grfleet.cli import app
from grfleet.top.columns import instance_columns, pool_columns

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()


def named_in_first_cells(section: str) -> list[str]:
    return [name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]


def section(title: str) -> str:
    return PAGE.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]


def test_the_columns_of_pools_are_those_of_the_table() -> None:
    assert named_in_first_cells(section("Pools")) == [column.title for column in pool_columns(namespaces=True)]


def test_the_columns_of_instances_are_those_of_the_table() -> None:
    assert named_in_first_cells(section("Instances")) == [column.title for column in instance_columns()]


def test_the_commands_are_those_of_the_program() -> None:
    commands = getattr(typer.main.get_command(app), "commands", {})
    named = [words.split()[0] for words in named_in_first_cells(PAGE.split("## top", 1)[0])]
    assert set(named) == set(commands)


def test_every_flag_about_the_cluster_is_named() -> None:
    before_top = PAGE.split("## top", 1)[0]
    assert [flag for flag in SPELLINGS if flag.lstrip("-") not in before_top] == []


def test_the_version_is_that_of_the_package() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout.strip()) == (0, metadata.version("grfleet"))


def commands_below(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the program with the words that call it, groups included."""
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_below(each, (*words, name))


def test_the_help_of_every_flag_is_shown_whole() -> None:
    lost = []
    for words, command in commands_below(typer.main.get_command(app)):
        shown = " ".join(
            CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "600", "TERMINAL_WIDTH": "600"}).stdout.split()
        )
        lost += [(*words, each.name) for each in command.params if " ".join((each.help or "").split()) not in shown]
    assert lost == []  # words in square brackets are markup, which is not shown
