"""Whether a user's prefix is computed ahead of its ranking request: RelayGR's sequence-aware trigger as a pure function.

Only a request whose in-line ranking would miss the budget is worth it, and only while the prefix fits the memory set aside
(Little's law), a slot and the rate are free, and nobody computes the same prefix already. Every unknown is answered with "no":
the request is then ranked in line, which is what happens without pre-inference. It takes numbers and returns a reason.
"""

from __future__ import annotations

import enum

import msgspec

from policies.measurement import Fresh, Measurement, Missing
from policies.preinference.littles_law import sustainable_per_s


class Verdict(enum.StrEnum):
    """Answer of the trigger. Only ADMIT starts a computation; RESIDENT and IN_FLIGHT need none."""

    ADMIT = "Admit"
    RESIDENT = "Resident"
    IN_FLIGHT = "InFlight"
    PREFIX_TOO_SHORT = "PrefixTooShort"
    NOT_AT_RISK = "NotAtRisk"
    RISK_UNKNOWN = "RiskUnknown"
    TOO_LATE = "TooLate"
    MEMORY_FULL = "MemoryFull"
    SLOTS_BUSY = "SlotsBusy"
    RATE_LIMITED = "RateLimited"


class InlineCost(msgspec.Struct, frozen=True, kw_only=True):
    """What ranking costs at the percentile that the budget is about, from the measured costs of the pool.

    Attributes
    ----------
    base_ms
        Per request, whatever its length.
    ms_per_token, ms_per_candidate
        Per token that is not cached, and per candidate.
    """

    base_ms: float
    ms_per_token: float
    ms_per_candidate: float = 0.0


class TriggerRules(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds in force, as published; from PreInferencePolicy.

    Attributes
    ----------
    min_prefix_tokens
        Shorter histories are ranked in line.
    budget_ms, safety_percent
        At risk means: predicted above the budget less the safety.
    prefix_bytes
        Memory for prefixes of the instance that the user belongs to.
    max_inflight, max_per_second
        Most computations at once and started per second, of the caller's share of the pool.
    life_ms
        Time from the signal until ranking has used the prefix, at a high percentile; afterwards it counts as gone.
    """

    min_prefix_tokens: int
    budget_ms: float
    safety_percent: float
    prefix_bytes: int
    max_inflight: int
    max_per_second: float
    life_ms: float


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """An early signal of the cascade: this user will be ranked soon.

    Attributes
    ----------
    tokens, bytes
        Length of the history that is not cached, and the memory its attention state needs.
    inline_ms
        Predicted time to rank in line, waiting included (`inline_ms`); not fresh while the costs are unknown.
    compute_ms, lead_ms
        Predicted time to compute the prefix, and the time until the ranking request comes. None: not known, not judged.
    resident
        The instance holds the whole prefix already.
    """

    tokens: int
    bytes: int
    inline_ms: Measurement
    compute_ms: float | None = None
    lead_ms: float | None = None
    resident: bool = False


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is going on at this moment.

    Attributes
    ----------
    computing_same_user
        A prefix of this user is being computed, or waits for its ranking request.
    computing
        Computations under way.
    live_bytes
        Memory of prefixes that are computed or wait, those just admitted included.
    starts_left
        Starts that the rate still allows now (`TokenBucket.tokens`).
    """

    computing_same_user: bool
    computing: int
    live_bytes: float
    starts_left: float


def inline_ms(*, tokens: int, candidates: int, wait_ms: Measurement, cost: InlineCost | None) -> Measurement:
    """Predict the time to rank in line, in ms: ``wait + base + tokens x per token + candidates x per candidate``.

    Returns
    -------
    Measurement
        As old as `wait_ms`, and not fresh where that or the cost is not known.
    """
    if cost is None:
        return Missing()
    if not isinstance(wait_ms, Fresh):
        return wait_ms
    work = cost.base_ms + tokens * cost.ms_per_token + candidates * cost.ms_per_candidate
    return Fresh(value=wait_ms.value + work, age_ms=wait_ms.age_ms)


def thresholds(
    *,
    min_prefix_tokens: int,
    budget_ms: float,
    safety_percent: float,
    prefix_bytes: int,
    slots: int,
    max_per_second: float,
    instances: int,
    life_ms: float,
    mean_prefix_bytes: float | None,
) -> TriggerRules:
    """Return the rules for the users of one instance, to be published to the callers.

    The rate is the instance's share of `max_per_second`, and no more than its memory sustains by Little's law: above that rate
    prefixes would only push each other out.

    Parameters
    ----------
    prefix_bytes, slots
        What the instance has (`CapacityPlan`).
    max_per_second, instances
        Limit of the pool and among how many instances it is shared.
    mean_prefix_bytes
        Mean size of a prefix; None while it is not known, and then memory alone decides at each signal.
    """
    rate = max_per_second / max(instances, 1)
    if mean_prefix_bytes is not None:
        rate = min(rate, sustainable_per_s(budget_bytes=prefix_bytes, life_ms=life_ms, bytes_per_prefix=mean_prefix_bytes))
    return TriggerRules(
        min_prefix_tokens=min_prefix_tokens,
        budget_ms=budget_ms,
        safety_percent=safety_percent,
        prefix_bytes=prefix_bytes,
        max_inflight=slots,
        max_per_second=rate,
        life_ms=life_ms,
    )


def judge(signal: Signal, *, rules: TriggerRules, load: Load) -> Verdict:
    """Decide about one signal; the checks run from the cheapest remedy to the dearest."""
    if signal.resident:
        return Verdict.RESIDENT
    if load.computing_same_user:
        return Verdict.IN_FLIGHT
    if signal.tokens < rules.min_prefix_tokens:
        return Verdict.PREFIX_TOO_SHORT
    if not isinstance(signal.inline_ms, Fresh):
        return Verdict.RISK_UNKNOWN
    if signal.inline_ms.value <= rules.budget_ms * (1.0 - rules.safety_percent / 100.0):
        return Verdict.NOT_AT_RISK
    if signal.compute_ms is not None and signal.lead_ms is not None and signal.compute_ms > signal.lead_ms:
        return Verdict.TOO_LATE
    if load.live_bytes + signal.bytes > rules.prefix_bytes:
        return Verdict.MEMORY_FULL
    if load.computing >= rules.max_inflight:
        return Verdict.SLOTS_BUSY
    if load.starts_left < 1.0:
        return Verdict.RATE_LIMITED
    return Verdict.ADMIT
