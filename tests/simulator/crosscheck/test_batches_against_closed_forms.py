"""Batches of equal requests against the bulk-service queue, within four standard errors (3 % of the wait), and a window."""

import numpy as np
import pytest
from queue_formulas import bulk_wait, mean_wait_ms

from simulator.physics.batching import Arrival, BatchRules, serve
from simulator.physics.service import Work

WORK = Work(history_tokens=300)


def waits_of_batches(rules: BatchRules, *, per_ms: float, batch_ms: float, count: int = 60_000) -> np.ndarray:
    times = np.cumsum(np.random.default_rng(12).exponential(1.0 / per_ms, count))
    stream = (Arrival(request=number, arrival_ms=at, work=WORK) for number, at in enumerate(times.tolist()))
    waited = np.zeros(count)
    for one in serve(stream, rules=rules, batch_ms=lambda batch: batch_ms):
        for arrival in one.batch.arrivals:
            waited[arrival.request] = one.start_ms - arrival.arrival_ms
    return waited


def close(waited: np.ndarray, expected: float) -> None:
    batches = waited.reshape(60, -1).mean(axis=1)
    error = batches.std(ddof=1) / 60**0.5
    assert abs(waited.mean() - expected) <= 4.0 * error
    assert error <= 0.03 * expected


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_batches_of_one_are_md1(load: float) -> None:
    assert bulk_wait(load, 1) == pytest.approx(mean_wait_ms(load=load, mean_ms=1.0, second_moment=1.0), rel=1e-6)
    close(waits_of_batches(BatchRules(window_ms=0.0, max_requests=1), per_ms=load / 5.0, batch_ms=5.0) / 5.0, bulk_wait(load, 1))


@pytest.mark.parametrize(("load", "most"), [(1.0, 2), (2.0, 4), (5.0, 8)])
def test_without_a_window_a_busy_server_fills_batches_as_in_the_bulk_service_queue(load: float, most: int) -> None:
    waited = waits_of_batches(BatchRules(window_ms=0.0, max_requests=most), per_ms=load / 5.0, batch_ms=5.0)
    close(waited / 5.0, bulk_wait(load, most))


@pytest.mark.parametrize("per_ms", [0.2, 2.0])
def test_with_a_window_and_a_fast_server_the_first_waits_all_of_it_and_the_others_half(per_ms: float) -> None:
    window = 3.0
    waited = waits_of_batches(BatchRules(window_ms=window, max_requests=1000), per_ms=per_ms, batch_ms=1e-6)
    others = per_ms * window
    close(waited, (window + others * window / 2.0) / (1.0 + others))
