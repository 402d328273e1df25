"""The adaptive pool in virtual time: the agents' own loop moves every split towards the best fixed split of each half."""

import itertools
from pathlib import Path

import pytest

from grfleet.demo.objects import AGENT_MEMORY_SECONDS, STATIC_PERCENT, STEP
from grfleet.demo.rehearsal import Rehearsal, rehearse
from simulator.replay import even_slots
from simulator.workloads import TraceFiles, Workload, demo_core, demo_workload

TRACES = TraceFiles.under(Path(__file__).resolve().parents[2] / "traces")
INSTANCES = 4


@pytest.fixture(scope="module")
def workload() -> Workload:
    return demo_workload(TRACES)


@pytest.fixture(scope="module")
def adaptive(workload: Workload) -> Rehearsal:
    return rehearse(
        workload.requests,
        even_slots(INSTANCES),
        [demo_core(STATIC_PERCENT, index) for index in range(INSTANCES)],
        intent_spec={"strategy": "MissRatioCurve", "enforcement": "Active", "step": STEP},
        memory_ms=AGENT_MEMORY_SECONDS * 1000.0,
    )


def shares_at(run: Rehearsal, time_ms: float) -> list[float]:
    """EMB share of each instance at the last step before a moment."""
    last = {step.instance: step.emb_percent for step in run.steps if step.time_ms < time_ms}
    return [last[index] for index in range(INSTANCES)]


def test_splits_move_towards_kv_while_users_return(workload: Workload, adaptive: Rehearsal) -> None:
    # The best fixed split of this half is 20 %, the start 50 %.
    assert max(shares_at(adaptive, workload.phases[0].end_ms)) < STATIC_PERCENT - 10


def test_splits_move_towards_emb_when_nobody_returns(workload: Workload, adaptive: Rehearsal) -> None:
    # The best fixed split of this half is 80 %.
    before, after = shares_at(adaptive, workload.phases[0].end_ms), shares_at(adaptive, workload.duration_ms)

    assert min(after) > STATIC_PERCENT + 10
    assert all(late > early + 20 for early, late in zip(before, after, strict=True))


def test_no_split_moves_faster_than_the_policy_allows(adaptive: Rehearsal) -> None:
    for index in range(INSTANCES):
        shares = [step.emb_percent for step in adaptive.steps if step.instance == index]
        # One second a step; a granule may be saved up on top of the slew limit.
        assert max(abs(b - a) for a, b in itertools.pairwise(shares)) <= STEP["maxPercentPerSecond"] + 1


def test_every_step_says_why(adaptive: Rehearsal) -> None:
    assert all(step.reason for step in adaptive.steps)
    assert "AnchorTarget" in {step.reason for step in adaptive.steps}
