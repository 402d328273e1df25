"""What a page of the documentation shows: its blocks of code, the commands that a reader types, the names in its tables.

A block marked `sh` holds commands, each on a line of its own unless the page is one session (docs/first-pool.md).
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read(page: str) -> str:
    """The text of a page, named by its path in the checkout."""
    return (ROOT / page).read_text()


def labels(page: str) -> set[str]:
    """Languages of the blocks."""
    return {label for label, _ in _BLOCK.findall(read(page))}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of one language."""
    return [body for label, body in _BLOCK.findall(read(page)) if label == language]


def commands(page: str) -> list[str]:
    """The lines of the `sh` blocks, without comments."""
    lines = [line.strip() for body in blocks(page, "sh") for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def named_in_first_cells(page: str, *, head: str) -> set[str]:
    """The CamelCase words in the first column of the table that begins with this line."""
    table = read(page).split(head, 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"`([A-Z]\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:])))


def environment(*, kubeconfig: Path, programs: Path) -> dict[str, str]:
    """That of a shell in which kubectl is on the PATH and speaks to this control plane."""
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"}


def run(
    command: str, *, within: Mapping[str, str], at: Path = ROOT, timeout_seconds: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, at the root of the checkout or in another folder; the caller judges its code."""
    return subprocess.run(
        ["bash", "-c", command], cwd=at, env=within, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )


def run_away(page: str, *, within: Mapping[str, str], at: Path, timeout_seconds: float = 120.0) -> list[str]:
    """Run the commands of a page one by one in a folder of the test's own; return what each said. All must end well."""
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = []
    for command in commands(page):
        typed = command.replace("docs/examples", str(EXAMPLES))
        done = run(typed, within={**within, **programs}, at=at, timeout_seconds=timeout_seconds)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        said.append(done.stdout + done.stderr)
    return said


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short path, as Unix sockets have at most 107 characters and the folders of tests may lie deep."""
    with tempfile.TemporaryDirectory(prefix="toys-", dir="/tmp") as folder:
        yield Path(folder)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def moved(text: str, places: Mapping[str, str]) -> str:
    """A page's text with other ports, folders and programs than the page names, the longest first.

    In one pass, as a port that is free now may hold the digits of one that is still to be replaced.
    """
    return re.sub("|".join(map(re.escape, sorted(places, key=len, reverse=True))), lambda found: places[found[0]], text)


def elsewhere(folder: Path, ports: Sequence[str], programs: Mapping[str, str]) -> dict[str, str]:
    """Where a walk takes place, for `moved`: free ports, this folder in place of /tmp/toys, and these programs by modules."""
    programs = {f".venv/bin/{name}": f"{sys.executable} -m {module}" for name, module in programs.items()}
    numbers = dict(zip(ports, map(str, free_ports(len(ports))), strict=True))
    return {"/tmp/toys": str(folder), ".venv/bin/python": sys.executable, **programs, **numbers}


def walk(page: str, places: Mapping[str, str], *, within: Mapping[str, str], logs: Sequence[Path]) -> None:
    """Run a page as one session: every user keeps its server while others leave, and all end on the one that is left.

    The page asks five users three times: of three servers, without the second, and without the third.
    """
    session = moved("\n".join(["set -eu", *blocks(page, "sh"), "wait"]), places)
    done = run(session, within={**within, "PYTHONPATH": str(ROOT)})
    said, named = re.findall(r"I am (\w)", done.stdout), re.findall(r"x-gr-instance: (\w)", done.stdout)
    assert len(said) == 15, done.stdout + done.stderr + "".join(log.read_text() for log in logs if log.exists())
    first, without_b, without_c = said[:5], said[5:10], said[10:]
    assert named == first
    assert [after for before, after in zip(first, without_b, strict=True) if before != "b" and before != after] == []
    assert "b" not in without_b
    assert set(without_c) == {"a"}


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """The long flags that a command takes."""
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")} - {"--help"}


def flags_in_table(page: str) -> set[str]:
    """The long flags that begin a row of a table."""
    return set(re.findall(r"^\| `(--[a-z-]+)", read(page), re.M))
