"""Translates between wire values and the values of the split policy.

Whatever could not be measured becomes Missing, Stale or NotANumber with a reason; zero always means a measured zero.
"""

from contract import agent
from contract.engine import Observe, SplitState
from dataplane.agent.observe import NoReading, Reading
from dataplane.agent.reasons import Freeze
from policies.allocation import latency
from policies.allocation.recovery import Recovery
from policies.allocation.residual import Residual
from policies.allocation.types import (
    AllocationIntent,
    Bounds,
    Enforcement,
    Learned,
    Observation,
    SplitInForce,
    Step,
    Strategy,
)
from policies.measurement import Fresh, Measurement, Missing, NotANumber, Stale


def split_in_force(split: SplitState, *, start_id: str) -> SplitInForce:
    """Return the policy's view of a split state that one engine process answered."""
    return SplitInForce(
        start_id=start_id,
        revision=split.revision,
        emb_bytes=split.limits.emb_bytes,
        kv_bytes=split.limits.kv_bytes,
        emb_used_bytes=split.used.emb_bytes,
        kv_used_bytes=split.used.kv_bytes,
        overage_bytes=split.overage_bytes,
        refill_backlog_bytes=split.refill_backlog_bytes,
    )


def policy_intent(spec: agent.IntentSpec, *, refill_blocking: bool = False) -> AllocationIntent:
    """Return an accepted intent as the policy takes it.

    Parameters
    ----------
    refill_blocking : bool
        What the engine says of itself. Only then may a backlog of refill, or a burst, freeze the split.
    """
    return AllocationIntent(
        strategy=Strategy(spec.strategy.value),
        enforcement=Enforcement(spec.enforcement.value),
        bounds=Bounds(
            min_emb_percent=float(spec.bounds.min_emb_percent),
            max_emb_percent=float(spec.bounds.max_emb_percent),
            fallback_emb_percent=float(spec.bounds.fallback_emb_percent),
        ),
        step=Step(
            max_percent_per_second=float(spec.step.max_percent_per_second),
            deadband_percent=float(spec.step.deadband_percent),
            interval_ms=float(spec.step.interval_ms),
        ),
        learned=Learned(
            model_sha256=spec.model_ref.sha256 if spec.model_ref is not None else None,
            clamp_percent=float(spec.learned.clamp_percent),
            residual=Residual(
                enabled=spec.learned.residual.enabled,
                max_percent=float(spec.learned.residual.max_percent),
                min_gain_percent=float(spec.learned.residual.min_gain_percent),
            ),
        ),
        recovery=Recovery(
            burst_percent=float(spec.recovery.burst_percent),
            calm_seconds=float(spec.recovery.calm_seconds),
            freeze_when_blocking=spec.recovery.freeze_when_blocking,
        ),
        paused=spec.paused,
        freeze_on_backlog=refill_blocking,
        refill_blocking=refill_blocking,
    )


def observation_of(reading: Reading, *, usable_bytes: int, second_writer: bool, resizable: bool) -> Observation:
    """Return the policy's observation of one window; figures are Missing while there is no window yet."""
    now, before = reading.now, reading.previous
    split = split_in_force(now.split, start_id=now.start_id)
    granule = reading.describe.granule_bytes
    if before is None:
        return _blind(
            Missing(), split, usable_bytes=usable_bytes, granule_bytes=granule, second_writer=second_writer, resizable=resizable
        )
    new, old = now.counters, before.counters
    interval_ms = now.clock_ms - before.clock_ms
    return Observation(
        interval_ms=interval_ms,
        usable_bytes=usable_bytes,
        granule_bytes=granule,
        split=split,
        requests=Fresh(float(new.requests - old.requests)),
        kv_tokens_asked=Fresh(float(new.kv.tokens_asked - old.kv.tokens_asked)),
        kv_tokens_hit=Fresh(float(new.kv.tokens_hit_hbm - old.kv.tokens_hit_hbm)),
        emb_rows_asked=Fresh(float(new.emb.rows_asked - old.emb.rows_asked)),
        emb_rows_hit=Fresh(float(new.emb.rows_hit - old.emb.rows_hit)),
        demand_bytes=Fresh(float(new.bytes.demand - old.bytes.demand)),
        p99_ms=p99_between(now, before),
        utilisation=Fresh((new.work_ms.service - old.work_ms.service) / interval_ms),
        second_writer=second_writer,
        resizable=resizable,
    )


def blind_observation(
    reading: NoReading, last: Observation | None, *, age_ms: float | None, second_writer: bool, resizable: bool
) -> Observation:
    """Return the observation of a round without a usable reading: nothing in it can be acted on.

    Parameters
    ----------
    age_ms : float or None
        Age of the last trusted reading, None when there never was one.
    """
    doubt: Stale | Missing | NotANumber
    if reading.reason is Freeze.NOT_A_NUMBER:
        doubt = NotANumber()
    elif age_ms is not None and reading.reason in (Freeze.ENGINE_UNREACHABLE, Freeze.STALE_DATA):
        doubt = Stale(age_ms=age_ms)
    else:
        doubt = Missing()
    return _blind(
        doubt,
        doubt,
        usable_bytes=last.usable_bytes if last is not None else 0,
        granule_bytes=last.granule_bytes if last is not None else 0,
        second_writer=second_writer,
        resizable=resizable,
    )


def p99_between(now: Observe, before: Observe) -> Measurement:
    """Return the 99th percentile of the requests between two observations of one engine process, in ms."""
    counts = latency.delta(now.latency.counts, before.latency.counts)
    return Missing() if counts is None else latency.quantile(counts, 0.99, anchor_ms=now.latency.anchor_ms)


def value_of(measurement: Measurement) -> float | None:
    """Return the number of a fresh measurement, None for anything else."""
    return measurement.value if isinstance(measurement, Fresh) else None


def _blind(
    doubt: Stale | Missing | NotANumber,
    split: SplitInForce | Stale | Missing | NotANumber,
    *,
    usable_bytes: int,
    granule_bytes: int,
    second_writer: bool,
    resizable: bool,
) -> Observation:
    return Observation(
        interval_ms=0.0,
        usable_bytes=usable_bytes,
        granule_bytes=granule_bytes,
        split=split,
        requests=doubt,
        kv_tokens_asked=doubt,
        kv_tokens_hit=doubt,
        emb_rows_asked=doubt,
        emb_rows_hit=doubt,
        demand_bytes=doubt,
        p99_ms=doubt,
        utilisation=doubt,
        second_writer=second_writer,
        resizable=resizable,
    )
