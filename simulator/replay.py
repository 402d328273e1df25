"""Replays of one workload through a group of instances at fixed splits, in virtual time.

The same requests go to the same instances as live (by the slots of a routing table) and seed themselves by their ids, so replays
at different splits differ by the split alone, and a replay at the live split repeats what the engines did. Statistics are exact,
from every latency, not from histograms.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contract.engine import RankRequest
from contract.keys import SLOTS, slot_of
from contract.table import NOBODY
from simulator.core.instance import GRInstanceCore


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What became of some requests; all arrays have shape (requests,), in the order of the workload.

    Attributes
    ----------
    arrival_ms, latency_ms, service_ms
        Model time.
    history_tokens, kv_tokens_hit, emb_rows_asked, emb_rows_missed
        What was asked of the caches, and what they held or missed.
    instances
        Number of instances that served them.
    """

    arrival_ms: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    service_ms: NDArray[np.float64]
    history_tokens: NDArray[np.int64]
    kv_tokens_hit: NDArray[np.int64]
    emb_rows_asked: NDArray[np.int64]
    emb_rows_missed: NDArray[np.int64]
    instances: int

    def between(self, start_ms: float, end_ms: float) -> "Outcomes":
        """Return the requests that arrived in [start, end)."""
        chosen = (self.arrival_ms >= start_ms) & (self.arrival_ms < end_ms)
        return Outcomes(
            arrival_ms=self.arrival_ms[chosen],
            latency_ms=self.latency_ms[chosen],
            service_ms=self.service_ms[chosen],
            history_tokens=self.history_tokens[chosen],
            kv_tokens_hit=self.kv_tokens_hit[chosen],
            emb_rows_asked=self.emb_rows_asked[chosen],
            emb_rows_missed=self.emb_rows_missed[chosen],
            instances=self.instances,
        )


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Figures of some outcomes; None where nothing was asked. Latencies in ms, the rest in percent."""

    requests: int
    p50_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    slo_percent: float | None
    kv_hit_percent: float | None
    emb_hit_percent: float | None
    utilisation_percent: float | None


def statistics_of(outcomes: Outcomes, *, slo_ms: float, span_ms: float | None = None) -> Statistics:
    """Return the figures of `outcomes`.

    Parameters
    ----------
    slo_ms : float
        A request is good when its latency is at most this.
    span_ms : float, optional
        Time over which the requests came, for the utilisation of an instance; their own spread when absent.
    """
    count = len(outcomes.latency_ms)
    if not count:
        return Statistics(
            requests=0,
            p50_ms=None,
            p99_ms=None,
            mean_ms=None,
            slo_percent=None,
            kv_hit_percent=None,
            emb_hit_percent=None,
            utilisation_percent=None,
        )
    p50, p99 = np.percentile(outcomes.latency_ms, [50.0, 99.0])
    span = span_ms or float(outcomes.arrival_ms[-1] - outcomes.arrival_ms[0])
    busy = float(outcomes.service_ms.sum())
    return Statistics(
        requests=count,
        p50_ms=float(p50),
        p99_ms=float(p99),
        mean_ms=float(outcomes.latency_ms.mean()),
        slo_percent=100.0 * float((outcomes.latency_ms <= slo_ms).mean()),
        kv_hit_percent=_percent(outcomes.kv_tokens_hit, outcomes.history_tokens),
        emb_hit_percent=_percent(outcomes.emb_rows_asked - outcomes.emb_rows_missed, outcomes.emb_rows_asked),
        utilisation_percent=100.0 * busy / (span * outcomes.instances) if span > 0 else None,
    )


def even_slots(instances: int) -> list[int]:
    """Return 4096 slots dealt out in turn, for replays without a published table."""
    return [slot % instances for slot in range(SLOTS)]


def replay(
    requests: Sequence[RankRequest],
    owners: Sequence[int],
    cores: Sequence[GRInstanceCore],
    *,
    before_request: Callable[[float], None] = lambda now_ms: None,
) -> Outcomes:
    """Serve `requests` in order of arrival on `cores` and return what became of them.

    Parameters
    ----------
    requests : sequence of RankRequest
        Sorted by `arrival_ms`, which all carry.
    owners : sequence of int
        For each of 4096 slots the index of its instance.
    before_request : callable
        Called with the arrival time before each request; a controller in virtual time acts here.

    Raises
    ------
    ValueError
        When a slot of a request has no owner, or a request no arrival stamp.
    """
    count = len(requests)
    floats = np.zeros((3, count))
    counts = np.zeros((4, count), dtype=np.int64)
    for place, request in enumerate(requests):
        owner = owners[slot_of(request.user_key)]
        if owner == NOBODY or request.arrival_ms is None:
            raise ValueError(f"{request.request_id}: no owner of its slot, or no arrival stamp")
        before_request(request.arrival_ms)
        answer = cores[owner].rank(request, request.arrival_ms)
        floats[:, place] = request.arrival_ms, answer.latency_ms, answer.service_ms
        counts[:, place] = request.history_tokens, answer.kv_tokens_hit, answer.emb_rows_asked, answer.emb_rows_missed
    return Outcomes(
        arrival_ms=floats[0],
        latency_ms=floats[1],
        service_ms=floats[2],
        history_tokens=counts[0],
        kv_tokens_hit=counts[1],
        emb_rows_asked=counts[2],
        emb_rows_missed=counts[3],
        instances=len(cores),
    )


def replay_fixed(
    requests: Sequence[RankRequest],
    owners: Sequence[int],
    emb_percents: Iterable[int],
    *,
    core_at: Callable[[int, int], GRInstanceCore],
    instances: int,
) -> dict[int, Outcomes]:
    """Return the outcomes at each fixed split.

    Parameters
    ----------
    emb_percents : iterable of int
        EMB shares to try, in points of usable.
    core_at : callable
        (EMB percent, index of the instance) -> a fresh core, as the live engines were started.
    """
    return {
        percent: replay(requests, owners, [core_at(percent, index) for index in range(instances)]) for percent in emb_percents
    }


def _percent(part: NDArray[np.int64], whole: NDArray[np.int64]) -> float | None:
    total = int(whole.sum())
    return 100.0 * float(part.sum()) / total if total else None
