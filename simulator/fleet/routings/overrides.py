"""The joint score as a gateway has it: a table of slots, and a table of hot users that is weighed anew at each look.

Between two looks nothing is weighed: a request goes where the tables say, as HAProxy would send it. What waits is therefore read
as a slow average: whoever follows the queue of the moment with a table that stands for a second sends all to the same place.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policies.routing.overrides import OverridePlan, plan_overrides
from policies.routing.types import InstanceFacts, Limits, LoadBound, Override, Residency
from simulator.fleet.routing import Arrivals, RoutingObservation
from simulator.fleet.routings.gateway import Gateway
from simulator.fleet.routings.work import Work

HOT_MS = 60_000.0
"""Users without a request for so long are not hot, and not weighed."""


class OverrideRouting(Gateway):
    """Slots by rendezvous, and overrides by `policies.routing`.

    Parameters
    ----------
    memory_ms : float
        Over which the work that waits is averaged.
    limits : Limits, optional

    Attributes
    ----------
    plans : list of OverridePlan
        One a look.
    """

    def __init__(
        self,
        work: Work,
        *,
        users: int,
        instances: int,
        interval_ms: float = 1000.0,
        memory_ms: float = 50_000.0,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(work, users=users, instances=instances, interval_ms=interval_ms)
        usual = Limits(ttl_ms=HOT_MS, most_wait_ms=work.typical_ms, bound=LoadBound(percent=125.0, floor=2.0))
        self._limits = limits or usual
        self.plans: list[OverridePlan] = []
        self._overrides: tuple[Override, ...] = ()
        self._target: dict[int, int] = {}
        self._seen_ms = np.full(users, -np.inf)
        self._usual_ms = np.zeros(instances)
        self._memory_ms = memory_ms
        self._slot = np.zeros(users, dtype=np.int64)

    def _look(self, now_ms: float, observations: Sequence[RoutingObservation]) -> None:
        super()._look(now_ms, observations)
        self._usual_ms += (self._waiting - self._usual_ms) * min(self.interval_ms / self._memory_ms, 1.0)
        hot = np.flatnonzero(self._seen_ms > now_ms - HOT_MS)
        users, instances = np.nonzero(self._tokens[:, hot].any(axis=0))
        residency = [
            Residency(
                user_key=f"{user:08d}",
                instance_uid=str(at),
                start_id="1",
                kv_tokens_hbm=int(self._tokens[0, user, at]),
                kv_tokens_host=int(self._tokens[1, user, at]),
                seen_ms=now_ms,
            )
            for user, at in zip(hot[users].tolist(), instances.tolist(), strict=True)
        ]
        plan = plan_overrides(
            residency,
            [self._facts(seen) for seen in observations],
            slot_owner=self._owner,
            limits=self._limits,
            now_ms=now_ms,
            previous=self._overrides,
        )
        self.plans.append(plan)
        self._overrides = plan.overrides
        self._target = {int(each.user_key): int(each.instance_uid) for each in plan.overrides}

    def _facts(self, seen: RoutingObservation) -> InstanceFacts:
        work, at = self._work, seen.instance
        rows_ms = work.rows_per_token * work.row_ms * (1.0 - float(self._row_hits.mean()))
        return InstanceFacts(
            name=f"instance-{at}",
            uid=str(at),
            start_id="1",
            ready=at in self._able,
            in_flight=float(self._usual_ms[at]) / work.typical_ms,
            ms_per_token_recompute=work.token_ms + rows_ms,
            ms_per_token_host=work.host_ms,
            ms_per_token_ssd=work.ssd_ms,
            emb_overlap=float(self._row_hits[at]),
            ms_per_row=work.row_ms,
            rows_per_request=float(work.rows_per_token * work.candidates),
            queue_ms=float(self._usual_ms[at]),
        )

    def _owner(self, user_key: str) -> str | None:
        return str(self._first(int(self._slot[int(user_key)])))

    def _first(self, slot: int) -> int:
        order: list[int] = self._order[slot].tolist()
        return next(at for at in order if at in self._able)

    def _pick(
        self,
        place: int,
        user: int,
        slot: int,
        waiting: list[float],
        kv_ms: NDArray[np.float32],
        rows_ms: NDArray[np.float32],
    ) -> int:
        return self._target[user] if user in self._target else self._first(slot)

    def _expect(self, arrivals: Arrivals, chosen: NDArray[np.int64]) -> None:
        super()._expect(arrivals, chosen)
        self._seen_ms[arrivals.user] = arrivals.arrival_ms
        self._slot[arrivals.user] = arrivals.slot
