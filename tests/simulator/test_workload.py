"""The demonstration's traffic: what its written rule promises about users, arrivals and halves."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from contract.engine import ItemPopularity
from simulator.traces import TraceError, TraceEvent, load_azure
from simulator.workloads import PhasePlan, TraceFiles, Workload, compose, demo_workload

TRACES = TraceFiles.under(Path(__file__).resolve().parents[2] / "traces")
KEY = b"0123456789abcdef"


@pytest.fixture(scope="module")
def workload() -> Workload:
    return demo_workload(TRACES)


def halves(workload: Workload) -> list[list[str]]:
    """The users of both phases, in order."""
    users: list[list[str]] = [[], []]
    for request in workload.requests:
        users[workload.phase_at(request.arrival_ms or 0.0)].append(request.user_key)
    return users


def plan(visits: list[TraceEvent], *, rate: float = 10.0, duration_ms: float = 1000.0) -> PhasePlan:
    return PhasePlan(
        name="phase",
        visits=visits,
        duration_ms=duration_ms,
        requests_per_second=rate,
        history_percent=50,
        max_history_tokens=1000,
        candidates=(5, 9),
        rows_per_token=2,
        popularity=ItemPopularity(exponent=1.0, catalog_rows=1000),
    )


def visit(user: str, tokens: int = 100, candidates: int = 0) -> TraceEvent:
    return TraceEvent(time_ms=0.0, user=user, history_tokens=tokens, candidates=candidates)


def test_users_come_back_in_the_first_half_and_nobody_does_in_the_second(workload: Workload) -> None:
    first, second = halves(workload)

    assert len(first) / len(set(first)) > 2
    assert max(Counter(second).values()) == 1
    assert not set(first) & set(second)


def test_the_halves_are_equally_long_after_the_run_in_and_equally_loaded(workload: Workload) -> None:
    first, second = workload.phases

    assert first.end_ms - workload.measured_from_ms == pytest.approx(second.end_ms - second.start_ms)
    assert workload.duration_ms - workload.measured_from_ms == pytest.approx(120_000.0)
    rates = [phase.requests / (phase.end_ms - phase.start_ms) for phase in workload.phases]
    assert rates[0] == pytest.approx(rates[1], rel=0.01)


def test_requests_are_sorted_and_stay_inside_their_half(workload: Workload) -> None:
    arrivals = [request.arrival_ms or 0.0 for request in workload.requests]

    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0.0
    assert arrivals[-1] < workload.duration_ms
    assert len({request.request_id for request in workload.requests}) == len(arrivals)


def test_warping_keeps_the_shape_of_the_real_arrivals(workload: Workload) -> None:
    count = workload.phases[0].requests
    real = np.diff(load_azure(TRACES.azure)[:count])
    ours = np.diff([request.arrival_ms or 0.0 for request in workload.requests[:count]])

    assert ours.std() / ours.mean() == pytest.approx(real.std() / real.mean(), rel=1e-6)


def test_the_same_seed_gives_the_same_requests_and_another_changes_candidates_only(workload: Workload) -> None:
    again, other = demo_workload(TRACES), demo_workload(TRACES, seed=2)

    assert again == workload
    assert [r.user_key for r in other.requests] == [r.user_key for r in workload.requests]
    assert [r.candidates for r in other.requests] != [r.candidates for r in workload.requests]


def test_no_request_carries_a_raw_user_id() -> None:
    made = compose([plan([visit("somebody")])], np.arange(50.0), pool_key=KEY, model_version="1", seed=1)

    assert all("somebody" not in repr(request) for request in made.requests)


def test_a_stream_that_is_used_up_starts_again_with_new_users() -> None:
    made = compose([plan([visit("a"), visit("b"), visit("a")])], np.arange(50.0), pool_key=KEY, model_version="1", seed=1)

    users = [request.user_key for request in made.requests]

    assert users[0] == users[2] != users[3]
    assert made.phases[0].clones == 3
    assert made.phases[0].users == len(set(users)) == 7


def test_histories_are_scaled_and_cut_and_a_trace_that_knows_candidates_keeps_them() -> None:
    visits = [visit("a", tokens=300, candidates=77), visit("b", tokens=9_000)]
    made = compose([plan(visits)], np.arange(50.0), pool_key=KEY, model_version="1", seed=1)

    assert [r.history_tokens for r in made.requests[:2]] == [150, 1000]
    assert made.requests[0].candidates == 77
    assert 5 <= made.requests[1].candidates <= 9


@pytest.mark.parametrize(
    ("made_of", "arrivals", "expected"),
    [
        (plan([visit("a")], rate=0.1), np.arange(50.0), "0 requests"),
        (plan([]), np.arange(50.0), "0 visits"),
        (plan([visit("a")]), np.arange(5.0), "5 in the trace"),
        (plan([visit("a")]), np.zeros(50), "one instant"),
    ],
)
def test_a_plan_that_cannot_be_filled_is_refused(
    made_of: PhasePlan, arrivals: "np.typing.NDArray[np.float64]", expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        compose([made_of], arrivals, pool_key=KEY, model_version="1", seed=1)


def test_a_folder_without_traces_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"mooncake_conversation\.jsonl: cannot be read"):
        demo_workload(TraceFiles.under(tmp_path))
