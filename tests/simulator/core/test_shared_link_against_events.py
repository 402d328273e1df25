"""The account of the link from job to job against the event model of the same link, in which everything happens at its time."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.core.physics import DEMO_ACCELERATOR
from simulator.core.shared_link import SharedLink
from simulator.physics.link import HostLink, Purpose
from simulator.physics.transfer import TransferCost

#: 1 000 bytes a millisecond either way; a slow way to the host makes off-load wait.
LINK = replace(
    DEMO_ACCELERATOR,
    link_bytes_per_second=1_000_000,
    to_host_bytes_per_second=800_000,
    duplex_to_device_share=0.45,
    duplex_to_host_share=0.97,
)


@dataclass(frozen=True)
class Jobs:
    """Times of arrival, bytes that each brings to the device and hands to off-load, and what it computes for afterwards."""

    arrival_ms: list[float]
    in_bytes: list[int]
    out_bytes: list[int]
    compute_ms: list[float]


def some_jobs(count: int, *, utilisation: float, out_load: float, seed: int) -> Jobs:
    random = np.random.default_rng(seed)
    in_bytes = random.exponential(4000.0, count) * (random.random(count) < 0.5) + 1.0
    compute = random.exponential(4.0, count)
    gap = (in_bytes.mean() / 1e3 + 4.0) / utilisation
    out = random.exponential(1.0, count) * (random.random(count) < 0.3) / 0.3 * out_load * gap * 800.0
    return Jobs(
        arrival_ms=np.cumsum(random.exponential(gap, count)).tolist(),
        in_bytes=in_bytes.astype(int).clip(1).tolist(),
        out_bytes=out.astype(int).tolist(),
        compute_ms=compute.tolist(),
    )


def by_account(jobs: Jobs) -> NDArray[np.float64]:
    """Return latencies."""
    link, free, handed, latencies = SharedLink(LINK), 0.0, 0, []
    for at, size, out, compute in zip(jobs.arrival_ms, jobs.in_bytes, jobs.out_bytes, jobs.compute_ms, strict=True):
        link.offload_until(at, offloaded_bytes=handed, refilling=False)
        handed += out
        if at >= free:
            link.free_since(at)
        free += link.hand_over(at, offloaded_bytes=handed, free_at_ms=free)
        start = max(at, free)
        link.offload_until(start, offloaded_bytes=handed, refilling=False)
        took = link.load_ms(size)
        link.took(took)
        free = start + took + compute
        latencies.append(free - at)
    return np.array(latencies)


def plain_cost() -> TransferCost:
    return TransferCost(
        name="plain",
        to_device_fixed_ms=0.0,
        to_device_bytes_per_second=LINK.link_bytes_per_second,
        to_host_fixed_ms=0.0,
        to_host_bytes_per_second=LINK.to_host_bytes_per_second or 0,
        to_device_duplex_share=LINK.duplex_to_device_share,
        to_host_duplex_share=LINK.duplex_to_host_share,
    )


def by_events(jobs: Jobs) -> NDArray[np.float64]:
    """The same on `HostLink`: off-load is submitted at the arrival, the load when the server takes the job up."""
    link, latencies = HostLink(plain_cost()), dict[int, float]()
    queue: list[int] = []
    free, loading = 0.0, -1
    place, count = 0, len(jobs.arrival_ms)
    flights: dict[int, int] = {}
    while len(latencies) < count:
        arrival = jobs.arrival_ms[place] if place < count else np.inf
        begin = max(free, link.clock_ms) if queue and loading < 0 else np.inf
        event = link.next_event_ms()
        now = min(arrival, begin, np.inf if event is None else event)
        for done in link.advance(now):
            if done.transfer in flights:
                job = flights.pop(done.transfer)
                free, loading = done.finished_ms + jobs.compute_ms[job], -1
                latencies[job] = free - jobs.arrival_ms[job]
        if now == arrival:
            if jobs.out_bytes[place]:
                link.submit(Purpose.OFFLOAD, jobs.out_bytes[place], now_ms=now)
            queue.append(place)
            place += 1
        elif now == begin and loading < 0 and now >= free:
            loading = queue.pop(0)
            flights[link.submit(Purpose.RELOAD, jobs.in_bytes[loading], now_ms=now)] = loading
    return np.array([latencies[job] for job in range(count)])


def loads_ms(jobs: Jobs, latency_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how long each job's load took, from its latency."""
    arrival = np.array(jobs.arrival_ms)
    finished = arrival + latency_ms
    started = np.maximum(arrival, np.concatenate(([0.0], finished[:-1])))
    return finished - started - np.array(jobs.compute_ms)


@pytest.mark.parametrize(
    ("utilisation", "out_load"), [(0.3, 0.05), (0.3, 0.4), (0.5, 0.05), (0.5, 0.2), (0.65, 0.05), (0.65, 0.2)]
)
def test_off_load_slows_loads_and_delays_jobs_as_it_does_event_by_event(utilisation: float, out_load: float) -> None:
    jobs = some_jobs(6000, utilisation=utilisation, out_load=out_load, seed=5)
    mine, theirs, alone = by_account(jobs), by_events(jobs), by_account(replace(jobs, out_bytes=[0] * len(jobs.out_bytes)))
    load, true_load, free_load = (loads_ms(jobs, each).mean() for each in (mine, theirs, alone))
    assert true_load > 1.05 * free_load
    assert load == pytest.approx(true_load, rel=0.015)
    assert mine.mean() == pytest.approx(theirs.mean(), rel=0.04)
    assert np.percentile(mine, 99) == pytest.approx(np.percentile(theirs, 99), rel=0.07)


def test_a_refill_that_yields_gets_what_the_event_model_leaves_it() -> None:
    """Loads take the link from 40 % of the time on; a refill may have a fifth of its rate in what they leave."""
    jobs = some_jobs(6000, utilisation=0.65, out_load=0.0, seed=6)
    account, events = SharedLink(LINK), HostLink(plain_cost(), caps_bytes_per_second={Purpose.REFILL: 200_000})
    events.submit(Purpose.REFILL, 1 << 40, now_ms=0.0)
    free = refilled = last = 0.0
    for at, size, compute in zip(jobs.arrival_ms, jobs.in_bytes, jobs.compute_ms, strict=True):
        refilled += account.left_for_refill_ms(at - last) * 200.0
        start = max(at, free)
        events.advance(start)
        events.submit(Purpose.RELOAD, size, now_ms=start)
        account.took(account.load_ms(size))
        free, last = start + size / 1e3 + compute, at
    assert refilled < 0.85 * 200.0 * last
    assert refilled == pytest.approx(events.moved_bytes(Purpose.REFILL), rel=0.01)
