"""The pages of the gateway: the walk is run as one session with a real HAProxy; flags are the command's, named tests exist."""

import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented import ROOT, blocks, read, run

from dataplane.gateway.main import _parser
from testbed.debian import DebianError, ensure_debian_tree

PAGE, FAULTS = "docs/routing.md", "docs/routing-faults.md"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@pytest.fixture
def toys() -> Iterator[Path]:
    """A folder with a short path: Unix sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="toys-") as folder:
        yield Path(folder)


def test_the_walk_ends_with_every_user_on_the_server_that_is_left(toys: Path) -> None:
    try:
        tree = ensure_debian_tree(["haproxy"])
    except DebianError as error:
        pytest.skip(f"no HAProxy here, so the walk of the gateway is NOT run: {error}")
    session = "\n".join(["set -eu", *blocks(PAGE, "sh"), "wait"])
    for old, new in zip(("9100", "9101", "9102", "9103"), free_ports(4), strict=True):
        session = session.replace(old, str(new))
    session = session.replace("/tmp/toys", str(toys))
    session = session.replace(".venv/bin/python", sys.executable)
    session = session.replace(".venv/bin/grfleet-gateway", f"{sys.executable} -m dataplane.gateway.main")
    within = tree.environment({**os.environ, "PYTHONPATH": str(ROOT)})
    done = run(session, within=within)
    said = re.findall(r"I am (\w)", done.stdout)
    named = re.findall(r"x-gr-instance: (\w)", done.stdout)
    log = (toys / "gateway.log").read_text()
    assert len(said) == 15, done.stdout + done.stderr + log
    first, without_b, without_c = said[:5], said[5:10], said[10:]
    assert named == first
    assert [after for before, after in zip(first, without_b, strict=True) if before != "b" and before != after] == []
    assert "b" not in without_b
    assert set(without_c) == {"a"}


def test_the_table_of_flags_is_that_of_the_command() -> None:
    flags = {option for action in _parser()._actions for option in action.option_strings if option.startswith("--")} - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)", read(PAGE), re.M)) == flags


def test_each_test_that_the_page_names_for_a_fault_exists() -> None:
    named = re.findall(r"^\| [^|]+ \| `(test_gateway_\w+\.py)` \| `(test_\w+)` \|$", read(FAULTS), re.M)
    assert len(named) > 20
    folder = ROOT / "tests" / "dataplane" / "gateway"
    assert [(file, test) for file, test in named if f"def {test}(" not in (folder / file).read_text()] == []
