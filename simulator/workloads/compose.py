"""Composition of a request stream: who comes and with which history from one trace, when from another.

A workload is a row of phases. Each phase takes the next events of its own stream of visits (users, order of return, history
lengths) and the next arrivals of one common arrival series, warped linearly so that the phase lasts as long as its plan says.
Linear warping keeps the shape of the series: its bursts, and its coefficient of variation. Items are not in any of the traces;
their popularity is a Zipf law that the engine draws from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from contract.engine import ItemPopularity, RankRequest
from contract.keys import user_key
from simulator.traces import TraceEvent


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """What one phase is made of.

    Attributes
    ----------
    name : str
        Shown to people.
    visits : Sequence[TraceEvent]
        Users and histories, in the order in which they come. Used up, they start again with new users (clones).
    duration_ms, requests_per_second : float
        Length and mean rate.
    history_percent : int
        Scale of the history length, percent.
    max_history_tokens : int
        Longer histories are cut, as a model with a bounded context does.
    candidates : tuple of int
        Least and most items to rank where the visit does not say (drawn uniformly).
    rows_per_token : int
        Embedding rows looked up per new token (item id and side ids).
    popularity : ItemPopularity
        How the engine draws the rows.
    """

    name: str
    visits: Sequence[TraceEvent]
    duration_ms: float
    requests_per_second: float
    history_percent: int
    max_history_tokens: int
    candidates: tuple[int, int]
    rows_per_token: int
    popularity: ItemPopularity


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase as composed: its place in time (milliseconds) and how often its visits had to be cloned to fill it."""

    name: str
    start_ms: float
    end_ms: float
    requests: int
    users: int
    clones: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests sorted by `arrival_ms`, the phases they belong to, and from when on figures count them."""

    requests: tuple[RankRequest, ...]
    phases: tuple[Phase, ...]
    measured_from_ms: float = 0.0

    @property
    def duration_ms(self) -> float:
        return self.phases[-1].end_ms

    def phase_at(self, arrival_ms: float) -> int:
        """Return the index of the phase that is on at `arrival_ms`."""
        return next((index for index, phase in enumerate(self.phases) if arrival_ms < phase.end_ms), len(self.phases) - 1)


def compose(
    plans: Sequence[PhasePlan], arrivals_ms: NDArray[np.float64], *, pool_key: bytes, model_version: str, seed: int
) -> Workload:
    """Return the workload of some phases played one after the other.

    Parameters
    ----------
    plans : sequence of PhasePlan
        At least one.
    arrivals_ms : NDArray
        Shape (n,), rising arrival times; each phase takes the next stretch of it, starting again at the end.
    pool_key : bytes
        Key under which user ids are hashed.
    seed : int
        Of what no trace gives: the number of candidates.

    Raises
    ------
    ValueError
        When a plan asks for no request, has no visits, or the arrival series is shorter than a phase.
    """
    random = Random(seed)
    requests: list[RankRequest] = []
    phases: list[Phase] = []
    start_ms, taken = 0.0, 0
    for number, plan in enumerate(plans):
        wanted = round(plan.requests_per_second * plan.duration_ms / 1000.0)
        if wanted < 1 or not plan.visits:
            raise ValueError(f"phase {plan.name}: {wanted} requests from {len(plan.visits)} visits; both must be at least 1")
        times, taken = _warped(arrivals_ms, taken, wanted, start_ms=start_ms, duration_ms=plan.duration_ms)
        keys: dict[str, str] = {}
        for index, arrival_ms in enumerate(times):
            clone, place = divmod(index, len(plan.visits))
            visit = plan.visits[place]
            user = visit.user if not clone else f"{visit.user}/clone-{clone}"
            key = keys.get(user) or keys.setdefault(user, user_key(pool_key, user))
            requests.append(_request(plan, visit, f"p{number}-{index}", key, float(arrival_ms), model_version, random))
        end_ms = start_ms + plan.duration_ms
        clones = -(-wanted // len(plan.visits)) - 1
        phases.append(Phase(name=plan.name, start_ms=start_ms, end_ms=end_ms, requests=wanted, users=len(keys), clones=clones))
        start_ms = end_ms
    return Workload(requests=tuple(requests), phases=tuple(phases))


def _request(
    plan: PhasePlan, visit: TraceEvent, request_id: str, key: str, arrival_ms: float, model_version: str, random: Random
) -> RankRequest:
    drawn = random.randint(*plan.candidates)
    return RankRequest(
        request_id=request_id,
        user_key=key,
        model_version=model_version,
        history_tokens=min(visit.history_tokens * plan.history_percent // 100, plan.max_history_tokens),
        candidates=visit.candidates or drawn,
        arrival_ms=arrival_ms,
        rows_per_token=plan.rows_per_token,
        item_popularity=plan.popularity,
    )


def _warped(
    arrivals_ms: NDArray[np.float64], taken: int, wanted: int, *, start_ms: float, duration_ms: float
) -> tuple[NDArray[np.float64], int]:
    """Return the next `wanted` arrivals, moved to `start_ms` and stretched to `duration_ms`, and how far the series is used."""
    if wanted + 1 > len(arrivals_ms):
        raise ValueError(f"arrivals: {len(arrivals_ms)} in the trace, {wanted + 1} needed for one phase")
    if taken + wanted + 1 > len(arrivals_ms):
        taken = 0
    stretch = arrivals_ms[taken : taken + wanted + 1]
    span = float(stretch[-1] - stretch[0])
    if not span > 0:
        raise ValueError("arrivals: a phase would fall into one instant; the arrival series must spread over time")
    return start_ms + (stretch[:-1] - stretch[0]) * (duration_ms / span), taken + wanted
