"""The host link as a priority queue and the off-load queue as one that turns away, against their closed forms.

Within four standard errors of batch means, which are at most 5 % of what is expected.
"""

import numpy as np
import pytest
from queue_formulas import md1_refused_share, preemptive_times_ms

from simulator.physics.link import HostLink, Purpose
from simulator.physics.transfer import TransferCost
from simulator.tiers.offload import OffloadQueue

FIXED_MS = 2.0
LINK = TransferCost(
    name="simple",
    to_device_fixed_ms=FIXED_MS,
    to_device_bytes_per_second=1_000_000,
    to_host_fixed_ms=1.0,
    to_host_bytes_per_second=1_000_000,
    to_device_duplex_share=0.5,
    to_host_duplex_share=1.0,
)


def test_classes_of_transfers_take_as_long_as_in_a_priority_queue_whose_work_is_resumed() -> None:
    """1 000 bytes take a millisecond; the fixed time comes before and delays nobody else."""
    kinds = {
        Purpose.DEMAND: ([500, 1500], [0.5, 0.5], 0.25),
        Purpose.RELOAD: ([4000], [1.0], 0.25),
        Purpose.REFILL: ([1000, 9000], [0.75, 0.25], 0.15),
    }
    rng, count = np.random.default_rng(9), 24_000
    means = [float(np.dot(sizes, shares)) / 1e3 for sizes, shares, _ in kinds.values()]
    seconds = [float(np.dot(np.square(sizes), shares)) / 1e6 for sizes, shares, _ in kinds.values()]
    rates = [load / mean for (_, _, load), mean in zip(kinds.values(), means, strict=True)]
    times = np.cumsum(rng.exponential(1.0 / sum(rates), count))
    chosen = rng.choice(len(kinds), count, p=np.array(rates) / sum(rates))
    purposes = list(kinds)
    link, done = HostLink(LINK), []
    for now, place in zip(times.tolist(), chosen.tolist(), strict=True):
        done += link.advance(now)
        sizes, shares, _ = kinds[purposes[place]]
        link.submit(purposes[place], int(rng.choice(sizes, p=shares)), now_ms=now)
    done += link.advance(link.clock_ms + 1e5)
    assert len(done) == count
    for purpose, expected in zip(purposes, preemptive_times_ms(rates, means, seconds), strict=True):
        mine = sorted((one for one in done if one.purpose is purpose), key=lambda one: one.submitted_ms)
        took = np.array([one.finished_ms - one.submitted_ms - FIXED_MS for one in mine])
        batches = np.array([batch.mean() for batch in np.array_split(took, 30)])
        error = batches.std(ddof=1) / 30**0.5
        assert abs(took.mean() - expected) <= 4.0 * error, purpose
        assert error <= 0.05 * expected, purpose


@pytest.mark.parametrize(("load", "places"), [(0.7, 1), (0.7, 3), (1.2, 4)])
def test_a_bounded_offload_queue_with_one_copier_refuses_as_md1_with_so_many_places_does(load: float, places: int) -> None:
    rng, count = np.random.default_rng(10), 60_000
    queue = OffloadQueue(chunk_tokens=32, limit_tokens=32 * places)
    busy, until = None, 0.0
    refused = np.zeros(count)
    for user, now in enumerate(np.cumsum(rng.exponential(1.0 / load, count)).tolist()):
        while busy is not None and until <= now:
            queue.copied(busy)
            busy = queue.next_range()
            until += 1.0
        refused[user] = not queue.offer(user, 32)
        queue.owe_nothing(user)
        if busy is None:
            busy, until = queue.next_range(), now + 1.0
    batches = refused.reshape(60, -1).mean(axis=1)
    error = batches.std(ddof=1) / 60**0.5
    expected = md1_refused_share(load, places)
    assert abs(batches.mean() - expected) <= 4.0 * error
    assert error <= 0.04 * expected
    assert queue.counts.dropped == 32 * refused.sum()
