"""docs/rollout.md says what is so: its commands run, its table has every reason of the condition."""

from __future__ import annotations

from pathlib import Path

import pytest
from documented import commands, environment, named_in_first_cells, run
from integration_fleet import Fleet

from crds.reasons import reasons_of
from testbed.binaries import Binaries

NAME = "docs/rollout.md"


def test_every_reason_of_the_condition_is_explained_and_no_other() -> None:
    named = named_in_first_cells(NAME, head="| reason of `RolloutProgressing` | status | what to do |")
    assert named == {reason.name for reason in reasons_of("RolloutProgressing")}


@pytest.mark.slow
def test_the_commands_of_the_page_run_against_an_api_server(fleet: Fleet, testbed_binaries: Binaries) -> None:
    """Without an operator: what it answers to them is told by the other tests of rollouts."""
    fleet.apply("HBMPolicy", "ranker", {})
    fleet.apply_pool("ranker", fleet.new_pair(), policies={"hbm": "ranker"})
    shell = environment(kubeconfig=fleet.plane.kubeconfig, programs=Path(testbed_binaries["kubectl"]).parent)
    assert len(commands(NAME)) >= 8
    for command in commands(NAME):
        done = run(command.replace("--namespace feed", f"--namespace {fleet.namespace}"), within=shell)
        assert done.returncode == 0, (command, done.stderr)
    assert fleet.pool("ranker")["spec"]["paused"] is True
