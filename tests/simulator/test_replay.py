"""Replays in virtual time: repeatable, fair, and telling the two halves of the demonstration apart."""

from pathlib import Path

import numpy as np
import pytest

from contract.keys import SLOTS
from contract.table import NOBODY
from simulator.replay import Outcomes, even_slots, replay, replay_fixed, statistics_of
from simulator.workloads import TraceFiles, Workload, demo_core, demo_workload
from simulator.workloads.demo import SLO_MS

TRACES = TraceFiles.under(Path(__file__).resolve().parents[2] / "traces")
INSTANCES = 4


@pytest.fixture(scope="module")
def workload() -> Workload:
    return demo_workload(TRACES)


@pytest.fixture(scope="module")
def fixed(workload: Workload) -> dict[int, Outcomes]:
    return replay_fixed(workload.requests, even_slots(INSTANCES), (20, 35, 80), core_at=demo_core, instances=INSTANCES)


def p99(outcomes: Outcomes, start_ms: float, end_ms: float) -> float:
    value = statistics_of(outcomes.between(start_ms, end_ms), slo_ms=SLO_MS).p99_ms
    assert value is not None
    return value


def test_the_two_halves_want_splits_that_lie_far_apart(workload: Workload, fixed: dict[int, Outcomes]) -> None:
    change_ms, end_ms = workload.phases[0].end_ms, workload.duration_ms
    first = {percent: p99(found, workload.measured_from_ms, change_ms) for percent, found in fixed.items()}
    second = {percent: p99(found, change_ms, end_ms) for percent, found in fixed.items()}

    assert first[20] < 0.8 * first[80]
    assert second[80] < 0.8 * second[20]


def test_the_load_and_the_slo_are_those_of_the_written_rule(workload: Workload, fixed: dict[int, Outcomes]) -> None:
    start_ms, change_ms, end_ms = workload.measured_from_ms, workload.phases[0].end_ms, workload.duration_ms
    whole = statistics_of(fixed[35].between(start_ms, end_ms), slo_ms=SLO_MS, span_ms=end_ms - start_ms)
    own_best = [fixed[20].between(start_ms, change_ms).latency_ms, fixed[80].between(change_ms, end_ms).latency_ms]

    assert whole.utilisation_percent == pytest.approx(50.0, abs=1.5)
    assert np.ceil(1.25 * np.percentile(np.concatenate(own_best), 99.0) / 10.0) * 10.0 == SLO_MS


def test_replaying_again_gives_the_same_outcome_to_the_last_digit(workload: Workload) -> None:
    requests = workload.requests[:400]
    first, second = (replay(requests, even_slots(1), [demo_core(50, 0)]) for _ in range(2))

    assert np.array_equal(first.latency_ms, second.latency_ms)
    assert np.array_equal(first.emb_rows_missed, second.emb_rows_missed)


def test_a_controller_is_called_before_each_request(workload: Workload) -> None:
    seen: list[float] = []
    requests = workload.requests[:20]

    replay(requests, even_slots(1), [demo_core(50, 0)], before_request=seen.append)

    assert seen == [request.arrival_ms for request in requests]


def test_a_slot_without_an_owner_is_refused(workload: Workload) -> None:
    with pytest.raises(ValueError, match="no owner"):
        replay(workload.requests[:1], [NOBODY] * SLOTS, [demo_core(50, 0)])


def test_figures_of_nothing_are_missing_and_not_zero(fixed: dict[int, Outcomes]) -> None:
    nothing = statistics_of(fixed[20].between(-2.0, -1.0), slo_ms=SLO_MS)

    assert nothing.requests == 0
    assert nothing.p99_ms is nothing.slo_percent is nothing.kv_hit_percent is None
