"""The agents of a fleet in virtual time: one estimator, cost memory and policy state beside each instance.

Estimators, costs and `decide` are those that agents run; only the way in (an observation of the simulator instead of counters
over a socket) and out (bytes instead of revisions) are different.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.allocation.costs import CostMemory, WorkDelta, costs_of, link_prior, update_costs
from policies.allocation.estimator import ReuseTimeEstimator
from policies.allocation.strategy import decide
from policies.allocation.types import AllocationIntent, AllocationState, EstimatorView, Observation, SplitInForce
from policies.measurement import Fresh, Measurement, Missing
from simulator.fleet.policies import FleetObservation

MEMORY_MS = 60_000.0
TABLE_ENTRIES = 1 << 16
PRIOR_ROWS_PER_TOKEN = 1.0


class AgentSplit:
    """Chooses splits as agents do that hold one intent each.

    Parameters
    ----------
    intent : AllocationIntent
    memory_ms : float
        Time constant with which the estimators forget old accesses.
    """

    def __init__(self, intent: AllocationIntent, *, memory_ms: float = MEMORY_MS) -> None:
        self.reasons: Counter[str] = Counter()
        self._intent = intent
        self._memory_ms = memory_ms
        self._agents: dict[int, _Agent] = {}

    @property
    def interval_ms(self) -> float:
        return self._intent.step.interval_ms

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        """Return the EMB bytes that each agent wants; None where it may not move, or need not."""
        return [self._one(now_ms, seen) for seen in observations]

    def _one(self, now_ms: float, seen: FleetObservation) -> int | None:
        agent = self._agents.get(seen.instance)
        if agent is None:
            agent = self._agents[seen.instance] = _Agent(
                users=_estimator(1, self._memory_ms), rows=_estimator(seen.rows_one_in, self._memory_ms)
            )
        agent.take_in(seen, now_ms, memory_ms=self._memory_ms)
        decision, agent.state = decide(_observed(seen), agent.view(seen, now_ms), self._intent, agent.state, now_ms)
        self.reasons[decision.reason.value] += 1
        target = decision.target_emb_bytes
        return target if decision.may_apply and target is not None and target != seen.emb_bytes else None


@dataclass(kw_only=True)
class _Agent:
    """What one agent knows."""

    users: ReuseTimeEstimator
    rows: ReuseTimeEstimator
    costs: CostMemory = field(default_factory=CostMemory)
    state: AllocationState = field(default_factory=AllocationState)

    def take_in(self, seen: FleetObservation, now_ms: float, *, memory_ms: float) -> None:
        asked = float(seen.kv_tokens_asked * seen.kv_bytes_per_token)
        self.users.ingest(seen.user_keys, seen.user_times_ms, seen.user_bytes, asked_bytes=asked, now_ms=now_ms)
        if seen.emb_curve is None:
            asked = float(seen.emb_rows_asked * seen.emb_row_bytes)
            row_bytes = float(seen.emb_row_bytes)
            self.rows.ingest(seen.row_keys, seen.row_times_ms, row_bytes, asked_bytes=asked, now_ms=now_ms)
        work = WorkDelta(
            interval_ms=seen.interval_ms,
            requests=seen.requests,
            kv_tokens_asked=seen.kv_tokens_asked,
            kv_tokens_missed=seen.kv_tokens_asked - seen.kv_tokens_hit,
            emb_rows_asked=seen.emb_rows_asked,
            emb_rows_missed=seen.emb_rows_missed,
            service_ms=seen.service_ms,
            service_squared_ms2=seen.service_squared_ms2,
            emb_miss_ms=seen.emb_miss_ms,
            kv_miss_ms=seen.kv_miss_ms,
        )
        self.costs = update_costs(self.costs, work, decay_ms=memory_ms / 2.0)

    def view(self, seen: FleetObservation, now_ms: float) -> EstimatorView:
        kv = self.users.view(now_ms=now_ms)
        prior = link_prior(
            emb_row_bytes=seen.emb_row_bytes,
            kv_bytes_per_token=seen.kv_bytes_per_token,
            link_bytes_per_second=seen.link_bytes_per_second,
            emb_rows_per_kv_miss_token=PRIOR_ROWS_PER_TOKEN,
        )
        costs = costs_of(self.costs, kv_size_cv2=kv.size_cv2 if kv is not None else 0.0, prior=prior)
        emb = seen.emb_curve if seen.emb_curve is not None else self.rows.view(now_ms=now_ms)
        return EstimatorView(emb=emb, kv=kv, costs=costs)


def _estimator(one_in: int, memory_ms: float) -> ReuseTimeEstimator:
    return ReuseTimeEstimator(sample_rate=1.0 / one_in, decay_ms=memory_ms, table_entries=TABLE_ENTRIES)


def _observed(seen: FleetObservation) -> Observation:
    p99: Measurement = Missing() if seen.p99_ms is None or not np.isfinite(seen.p99_ms) else Fresh(seen.p99_ms)
    return Observation(
        interval_ms=seen.interval_ms,
        usable_bytes=seen.pool_bytes,
        granule_bytes=seen.granule_bytes,
        split=SplitInForce(
            start_id="simulated",
            revision=0,
            emb_bytes=seen.emb_bytes,
            kv_bytes=seen.kv_bytes,
            emb_used_bytes=seen.emb_used_bytes,
            kv_used_bytes=seen.kv_used_bytes,
            refill_backlog_bytes=seen.refill_backlog_bytes,
        ),
        requests=Fresh(float(seen.requests)),
        kv_tokens_asked=Fresh(float(seen.kv_tokens_asked)),
        kv_tokens_hit=Fresh(float(seen.kv_tokens_hit)),
        emb_rows_asked=Fresh(float(seen.emb_rows_asked)),
        emb_rows_hit=Fresh(float(seen.emb_rows_asked - seen.emb_rows_missed)),
        demand_bytes=Fresh(float(seen.demand_bytes)),
        p99_ms=p99,
        utilisation=Fresh(seen.utilisation),
    )
