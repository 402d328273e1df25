"""docs/operations.md names tests, conditions, reasons and alerts that exist; its commands are run by the end-to-end tests."""

from __future__ import annotations

import re

import pytest
from documented import ROOT, blocks, labels, read

from crds.reasons import CONDITIONS

PAGE = read("docs/operations.md")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
FAULTS = [row for row in ROWS if len(row) == 5 and row[0] != "fault"]


@pytest.mark.parametrize("row", FAULTS, ids=[row[0] for row in FAULTS])
def test_each_fault_names_a_test_that_is_there(row: list[str]) -> None:
    named = re.findall(r"`([^`]+\.py)`", row[4])
    assert named
    for path in named:
        assert (ROOT / path if path.startswith("e2e/") else ROOT / "tests" / path).is_file(), path


def test_what_is_to_be_seen_has_the_names_of_conditions_reasons_and_alerts() -> None:
    reasons = {reason.name for condition in CONDITIONS for reason in condition.reasons}
    words = reasons | {str(condition.type) for condition in CONDITIONS}
    alerts = set(re.findall(r"alert: (\w+)", read("charts/grfleet/files/alerts.yaml")))
    metrics = read("docs/metrics.md")
    others = {"NotReady", "Terminating"}  # a node's, and a drain's reason
    for row in FAULTS:
        for word in re.findall(r"`(\w+)(?:=\w+)?`", row[2]):
            known = word in words | alerts | others or f"`{word}`" in metrics
            assert known, f"{row[0]}: {word}"


def test_the_page_is_run_from_its_first_block_on() -> None:
    assert labels("docs/operations.md") == {"sh", "bash"}
    assert len(blocks("docs/operations.md", "bash")) == PAGE.count("<!-- not run:")
