"""An instance that simulates one row in N must hit as often as one that simulates every row."""

import pytest
from core_requests import config, traffic

from contract.engine import Sampling
from simulator.core.instance import GRInstanceCore

#: Bound on the difference of hit ratios over 1 500 requests; the observed one is 0.001.
BOUND = 0.005


def emb_hit_ratio(one_in: int, *, emb_percent: int) -> float:
    core = GRInstanceCore(config(sampling=Sampling(users_one_in=1, rows_one_in=one_in), emb_percent=emb_percent), seed=3)
    core.warm()
    for request, arrival in traffic(1500):
        core.rank(request, arrival)
    counters = core.observe(0.0).counters.emb
    return counters.rows_hit / counters.rows_asked


@pytest.mark.parametrize("emb_percent", [15, 50])
def test_hit_ratio_of_a_sample_is_that_of_all_rows(emb_percent: int) -> None:
    exact = emb_hit_ratio(1, emb_percent=emb_percent)
    assert emb_hit_ratio(16, emb_percent=emb_percent) == pytest.approx(exact, abs=BOUND)


def test_a_warm_start_is_near_the_steady_state() -> None:
    core = GRInstanceCore(config(emb_percent=20, sampling=Sampling(users_one_in=1, rows_one_in=4)), seed=3)
    core.warm()
    stream = traffic(3000)
    ratios = []
    for part in (stream[:500], stream[2500:]):
        before = core.observe(0.0).counters.emb
        for request, arrival in part if part[0] is stream[0] else stream[500:]:
            core.rank(request, arrival)
        after = core.observe(0.0).counters.emb
        ratios.append((after.rows_hit - before.rows_hit) / (after.rows_asked - before.rows_asked))
    assert ratios[0] == pytest.approx(ratios[1], abs=0.02)
