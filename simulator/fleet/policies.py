"""The border between a fleet in virtual time and whoever chooses its splits.

Each interval every instance reports what an agent could have measured over it: deltas of counters, limits and bytes in use, and
the sampled accesses. A policy answers with EMB bytes per instance; the fleet shrinks, and grows when nothing is above a limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.allocation.types import Curve


def _no_keys() -> NDArray[np.uint64]:
    return np.zeros(0, dtype=np.uint64)


def _no_times() -> NDArray[np.float64]:
    return np.zeros(0, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class FleetObservation:
    """One instance over the interval that has just ended.

    Attributes
    ----------
    instance : int
    interval_ms : float
    pool_bytes, granule_bytes, link_bytes_per_second : int
    emb_bytes, kv_bytes : int
        Limits in force.
    emb_used_bytes, kv_used_bytes, refill_backlog_bytes : int
    requests, kv_tokens_asked, kv_tokens_hit, emb_rows_asked, emb_rows_missed : int
        Counted over the interval; tokens hit are those of HBM and of a tier that was loaded from.
    demand_bytes : int
    service_ms, service_squared_ms2, emb_miss_ms, kv_miss_ms : float
        Serving time, its squares, and what of it misses cost.
    p99_ms : float or None
        Of the requests that arrived in the interval; None when none did.
    rows_per_token, emb_row_bytes, kv_bytes_per_token : int
        Of the workload and the model.
    user_keys, user_times_ms, user_bytes
        Every user's access with the bytes its history takes.
    row_keys, row_times_ms
        Accesses of sampled rows; one row in `rows_one_in` is sampled. Empty where rows are not simulated.
    row_samples_lost : int
        Sampled accesses beyond what one interval can keep.
    emb_curve : Curve or None
        The curve itself where rows are not simulated.
    """

    instance: int
    interval_ms: float
    pool_bytes: int
    granule_bytes: int
    link_bytes_per_second: int
    emb_bytes: int
    kv_bytes: int
    emb_used_bytes: int
    kv_used_bytes: int
    refill_backlog_bytes: int
    requests: int
    kv_tokens_asked: int
    kv_tokens_hit: int
    emb_rows_asked: int
    emb_rows_missed: int
    demand_bytes: int
    service_ms: float
    service_squared_ms2: float
    emb_miss_ms: float
    kv_miss_ms: float
    p99_ms: float | None
    rows_per_token: int
    emb_row_bytes: int
    kv_bytes_per_token: int
    rows_one_in: int = 1
    user_keys: NDArray[np.uint64] = field(default_factory=_no_keys)
    user_times_ms: NDArray[np.float64] = field(default_factory=_no_times)
    user_bytes: NDArray[np.float64] = field(default_factory=_no_times)
    row_keys: NDArray[np.uint64] = field(default_factory=_no_keys)
    row_times_ms: NDArray[np.float64] = field(default_factory=_no_times)
    row_samples_lost: int = 0
    emb_curve: Curve | None = None

    @property
    def utilisation(self) -> float:
        """Serving time over time."""
        return self.service_ms / self.interval_ms if self.interval_ms > 0.0 else 0.0


class SplitPolicy(Protocol):
    """Chooses splits in virtual time."""

    @property
    def interval_ms(self) -> float:
        """Time between two decisions; infinite for a policy that never decides."""
        ...

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        """Return the EMB bytes wanted for each observation's instance, in order; None leaves it as it is."""
        ...


class ApartSplit(SplitPolicy, Protocol):
    """A policy that can decide for each instance by itself, so that several processes may each ask a copy of it."""

    @property
    def apart(self) -> bool:
        """Whether what it decides for one instance depends on nothing that another one reports."""
        ...

    def notes(self) -> Any:
        """Return what it has noted since it was asked before, in a form that can be pickled."""
        ...

    def join(self, notes: Any) -> None:
        """Add what a copy has noted."""
        ...


class PlannedSplit(SplitPolicy, Protocol):
    """A policy that looks at nothing, so that nothing is observed for it; `decide` is not asked."""

    def planned(self, now_ms: float, instances: int) -> list[int | None]:
        """Return the EMB bytes wanted for each of so many instances; None leaves it as it is."""
        ...


class ModestSplit(SplitPolicy, Protocol):
    """A policy that is content with some of the sampled rows, and with one instance after the other."""

    @property
    def rows_one_in(self) -> int:
        """Of the rows that the fleet samples it wants to see one in so many, a power of two; 1 where it does not say."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether it may be asked about all of an instance's time before it is asked about the next; no where it does not say."""
        ...


def rows_shown(policy: SplitPolicy) -> int:
    """Return of how many sampled rows a policy sees one; 0 for none."""
    return 0 if hasattr(policy, "planned") else int(getattr(policy, "rows_one_in", 1))


@dataclass(frozen=True)
class FixedSplit:
    """Holds the split that the fleet was configured with."""

    interval_ms: float = math.inf

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        return [None] * len(observations)
