"""The split policy of an agent in virtual time: the same estimators, costs and decision, fed with what the fleet observes.

One estimator of users, one of rows and one memory of costs an instance, as `dataplane.agent` has them; `policies.allocation` does
the rest. Strategy, bounds, pace and dead band come with the intent, so all strategies are one class; Learned needs its model too.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from policies.allocation.costs import COSTS_FORGET, CostMemory, WorkDelta, costs_of, link_prior, update_costs
from policies.allocation.estimator import ROWS_SPREAD, USERS_SPREAD, ReuseTimeEstimator
from policies.allocation.model_file import TrainedModel
from policies.allocation.strategy import decide
from policies.allocation.types import (
    AllocationIntent,
    AllocationState,
    Curve,
    Decision,
    EstimatorView,
    Observation,
    SplitInForce,
)
from policies.measurement import Fresh, Missing
from simulator.fleet.policies import FleetObservation

MEMORY_MS = 60_000.0
TABLE_ENTRIES = 1 << 16
PRIOR_ROWS_PER_TOKEN = 1.0
START_ID = "simulated"


@dataclass
class UserCurves:
    """Miss-ratio curves of users by instance and time, for runs of one log that differ in nothing but who chooses the splits.

    Attributes
    ----------
    curves : dict
    complete : bool
        Set after the first run; from then on they are only read, and that half of the estimator's work is saved.
    """

    curves: dict[tuple[int, float], Curve | None] = field(default_factory=dict)
    complete: bool = False


class AgentSplit:
    """Decides for each instance as the agent beside it would.

    Parameters
    ----------
    intent : AllocationIntent
        Strategy, bounds and pace; its interval is the policy's.
    memory_ms : float
        Time constant with which the estimators forget old accesses.
    model : TrainedModel or None
        What strategy Learned runs, where the intent names its digest.
    seen_as : callable or None
        Changes what the estimators know before a decision, by instance: how a study disturbs the curves.
    users : UserCurves or None
        Curves of users that another run of the same log has found or will use: they depend on who came, not on the split.

    Attributes
    ----------
    reasons : Counter
        How often each reason was given.
    last : dict of int to Decision
        The last decision for each instance.
    """

    def __init__(
        self,
        intent: AllocationIntent,
        *,
        memory_ms: float = MEMORY_MS,
        model: TrainedModel | None = None,
        seen_as: Callable[[int, EstimatorView], EstimatorView] | None = None,
        users: UserCurves | None = None,
    ) -> None:
        self.intent = intent
        self._model = model
        self._seen_as = seen_as
        self._user_curves = users
        self.reasons: Counter[str] = Counter()
        self.last: dict[int, Decision] = {}
        self._memory_ms = memory_ms
        self._minds: dict[int, _Mind] = {}

    @property
    def interval_ms(self) -> float:
        return self.intent.step.interval_ms

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        """Return the target of each instance, None where nothing may be applied."""
        wanted: list[int | None] = []
        for seen in observations:
            mind = self._minds.get(seen.instance)
            if mind is None:
                mind = self._minds[seen.instance] = _Mind(seen, memory_ms=self._memory_ms, users=self._user_curves)
            decision = mind.decide(seen, self.intent, now_ms, self._model, self._seen_as)
            self.reasons[decision.reason.value] += 1
            self.last[seen.instance] = decision
            wanted.append(decision.target_emb_bytes if decision.may_apply else None)
        return wanted

    @property
    def apart(self) -> bool:
        """Agents know nothing of each other; a study may disturb them together, and curves that are being gathered are shared."""
        return self._seen_as is None and (self._user_curves is None or self._user_curves.complete)

    def notes(self) -> tuple[Counter[str], dict[int, Decision]]:
        """Return the reasons and last decisions since the last call."""
        noted = self.reasons, self.last
        self.reasons, self.last = Counter(), {}
        return noted

    def join(self, notes: tuple[Counter[str], dict[int, Decision]]) -> None:
        """Add the reasons and last decisions of a copy."""
        self.reasons.update(notes[0])
        self.last.update(notes[1])


class _Mind:
    """What one agent knows and remembers."""

    def __init__(self, seen: FleetObservation, *, memory_ms: float, users: UserCurves | None) -> None:
        self._memory_ms = memory_ms
        self._user_curves = users
        self._users, self._rows = (
            ReuseTimeEstimator(sample_rate=1.0 / one_in, ordinary_spread=spread, decay_ms=memory_ms, table_entries=TABLE_ENTRIES)
            for one_in, spread in ((1, USERS_SPREAD), (seen.rows_one_in, ROWS_SPREAD))
        )
        self._costs = CostMemory()
        self._state = AllocationState()

    def decide(
        self,
        seen: FleetObservation,
        intent: AllocationIntent,
        now_ms: float,
        model: TrainedModel | None,
        seen_as: Callable[[int, EstimatorView], EstimatorView] | None,
    ) -> Decision:
        self._learn(seen, now_ms)
        emb = seen.emb_curve or self._rows.view(now_ms=now_ms)
        kv = self._users_view(seen, now_ms)
        prior = link_prior(
            emb_row_bytes=seen.emb_row_bytes,
            kv_bytes_per_token=seen.kv_bytes_per_token,
            link_bytes_per_second=seen.link_bytes_per_second,
            emb_rows_per_kv_miss_token=PRIOR_ROWS_PER_TOKEN,
        )
        costs = costs_of(self._costs, kv_size_cv2=kv.size_cv2 if kv is not None else 0.0, prior=prior)
        view = EstimatorView(emb=emb, kv=kv, costs=costs)
        if seen_as is not None:
            view = seen_as(seen.instance, view)
        decision, self._state = decide(observation_of(seen), view, intent, self._state, now_ms, model)
        return decision

    def _users_view(self, seen: FleetObservation, now_ms: float) -> Curve | None:
        known = self._user_curves
        if known is not None and known.complete:
            return known.curves[seen.instance, now_ms]
        self._users.ingest(
            seen.user_keys,
            seen.user_times_ms,
            seen.user_bytes,
            asked_bytes=float(seen.kv_tokens_asked * seen.kv_bytes_per_token),
            now_ms=now_ms,
        )
        curve = self._users.view(now_ms=now_ms)
        if known is not None:
            known.curves[seen.instance, now_ms] = curve
        return curve

    def _learn(self, seen: FleetObservation, now_ms: float) -> None:
        if seen.emb_curve is None:
            # The correction for unsampled hot keys compares sampled with asked bytes: what got lost must not count as asked.
            kept = len(seen.row_keys)
            share = kept / (kept + seen.row_samples_lost) if seen.row_samples_lost else 1.0
            self._rows.ingest(
                seen.row_keys,
                seen.row_times_ms,
                float(seen.emb_row_bytes),
                asked_bytes=float(seen.emb_rows_asked * seen.emb_row_bytes) * share,
                now_ms=now_ms,
            )
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
            kv_miss_ms=max(seen.kv_miss_ms, 0.0),
        )
        self._costs = update_costs(self._costs, work, decay_ms=self._memory_ms / COSTS_FORGET)


def observation_of(seen: FleetObservation) -> Observation:
    """Return the policy's observation of one interval of one instance."""
    return Observation(
        interval_ms=seen.interval_ms,
        usable_bytes=seen.pool_bytes,
        granule_bytes=seen.granule_bytes,
        split=SplitInForce(
            start_id=START_ID,
            revision=0,
            emb_bytes=seen.emb_bytes,
            kv_bytes=seen.kv_bytes,
            emb_used_bytes=seen.emb_used_bytes,
            kv_used_bytes=seen.kv_used_bytes,
            overage_bytes=max(0, seen.emb_used_bytes - seen.emb_bytes) + max(0, seen.kv_used_bytes - seen.kv_bytes),
            refill_backlog_bytes=seen.refill_backlog_bytes,
        ),
        requests=Fresh(float(seen.requests)),
        kv_tokens_asked=Fresh(float(seen.kv_tokens_asked)),
        kv_tokens_hit=Fresh(float(seen.kv_tokens_hit)),
        emb_rows_asked=Fresh(float(seen.emb_rows_asked)),
        emb_rows_hit=Fresh(float(seen.emb_rows_asked - seen.emb_rows_missed)),
        demand_bytes=Fresh(float(seen.demand_bytes)),
        p99_ms=Missing() if seen.p99_ms is None else Fresh(seen.p99_ms),
        utilisation=Fresh(seen.utilisation),
        emb_row_bytes=float(seen.emb_row_bytes),
        kv_bytes_per_token=float(seen.kv_bytes_per_token),
    )
