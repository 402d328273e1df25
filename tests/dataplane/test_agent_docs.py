"""docs/agent.md names every flag and reason, and no flag that does not exist. Metrics have a page and a test of their own."""

import re
from pathlib import Path

from dataplane.agent.main import _parser
from dataplane.agent.reasons import MESSAGES
from policies.allocation.types import Reason

DOC = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()


def test_the_table_of_flags_is_that_of_the_command() -> None:
    flags = {option for action in _parser()._actions for option in action.option_strings if option.startswith("--")} - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)", DOC, re.M)) == flags


def test_every_reason_is_explained_in_the_document_and_in_a_message() -> None:
    assert {reason.value for reason in Reason} <= set(MESSAGES)
    assert [reason for reason in MESSAGES if f"`{reason}`" not in DOC] == []
