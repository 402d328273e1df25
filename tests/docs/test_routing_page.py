"""The pages of the gateway: the walk is run as one session with a real HAProxy; flags are the command's, named tests exist."""

import os
import re

import pytest
from documented import ROOT, elsewhere, flags_in_table, flags_of, read, short_folder, walk

from dataplane.gateway.main import _parser
from testbed.debian import DebianError, ensure_debian_tree

PAGE, FAULTS = "docs/routing.md", "docs/routing-faults.md"
PORTS = ("9100", "9101", "9102", "9103")


def test_the_walk_ends_with_every_user_on_the_server_that_is_left() -> None:
    try:
        tree = ensure_debian_tree(["haproxy"])
    except DebianError as error:
        pytest.skip(f"no HAProxy here, so the walk of the gateway is NOT run: {error}")
    with short_folder() as toys:
        places = elsewhere(toys, PORTS, {"grfleet-gateway": "dataplane.gateway.main"})
        walk(PAGE, places, within=tree.environment(dict(os.environ)), logs=[toys / "gateway.log"])


def test_the_table_of_flags_is_that_of_the_command() -> None:
    assert flags_in_table(PAGE) == flags_of(_parser())


def test_each_test_that_the_page_names_for_a_fault_exists() -> None:
    named = re.findall(r"^\| [^|]+ \| `(test_gateway_\w+\.py)` \| `(test_\w+)` \|$", read(FAULTS), re.M)
    assert len(named) > 20
    folder = ROOT / "tests" / "dataplane" / "gateway"
    assert [(file, test) for file, test in named if f"def {test}(" not in (folder / file).read_text()] == []
