"""Recovery: notices a burst of load, and says how the split may move until it has passed.

Model: the logarithm of utilisation, smoothed quickly, against what is usual (an EWMA control chart; Roberts 1959). A burst
is a quick value far above the usual one: by the policy's percent, and by four standard deviations of its own noise, so that an
instance with few requests a second does not cry wolf. The usual value does not learn from a burst, unless it lasts: then it is
the new level.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

_QUICK_MS = 1958.0  # time constant at which a step a second has weight 0.4
USUAL_MS = 60_000.0  # time constant of what is usual
_SIGMAS = 4.0
_LEAST_SEEN_MS = 15_000.0  # before that, nothing is usual yet
_NEW_LEVEL_MS = 180_000.0  # a burst that lasts this long is none
_LEAVE = 0.5  # a burst is over below this share of the way back to usual
_HARM = 1.10  # a freeze ends when moving would make the predicted P99 this many times better
_LONGEST_FREEZE_MS = 60_000.0  # what lasts longer than the memory of the curves is not sat out: they have learnt it by then

BURST_LINK_PERCENT = 20.0
"""Refill takes at most this share of the host link from serving during a burst and until it has been calm for a while."""
BLOCKING_PERCENT_PER_SECOND = 0.3
"""Where refill blocks serving, the split moves at most this many points a second at any time.

Of 48 GiB behind 20 GB/s that is a standstill of less than one percent of the time: the slowest percent of requests hardly knows.
"""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's words on bursts.

    Attributes
    ----------
    burst_percent
        A burst is utilisation this many percent over what is usual.
    calm_seconds
        Time without a burst after which the split counts as calm again.
    freeze_when_blocking
        Hold the split during a burst where refill blocks serving.
    """

    burst_percent: float = 15.0
    calm_seconds: float = 30.0
    freeze_when_blocking: bool = True


class Phase(StrEnum):
    """Where the load stands."""

    CALM = "Calm"
    BURST = "Burst"
    RECOVERING = "Recovering"


class BurstWatch(msgspec.Struct, frozen=True, kw_only=True):
    """What the detector remembers; start with `BurstWatch()`.

    Attributes
    ----------
    phase, since_ms
        Where the load stands, and since when.
    quick, usual
        Smoothed logarithms of utilisation; None before the first.
    variance
        Variance of one interval's logarithm around the usual one, in calm.
    seen_ms
        Time watched so far.
    """

    phase: Phase = Phase.CALM
    since_ms: float = 0.0
    quick: float | None = None
    usual: float | None = None
    variance: float = 0.0
    seen_ms: float = 0.0


def watch(state: BurstWatch, *, utilisation: float, dt_ms: float, now_ms: float, recovery: Recovery) -> BurstWatch:
    """Take in one interval and return where the load stands now.

    Parameters
    ----------
    utilisation
        Serving time over time in the interval; nothing (0) or what is not a number tells nothing and changes nothing.
    dt_ms
        Time since the last call.
    """
    if not (math.isfinite(utilisation) and utilisation > 0.0 and dt_ms > 0.0):
        return state
    x = math.log(utilisation)
    if state.quick is None or state.usual is None:
        return BurstWatch(quick=x, usual=x, since_ms=now_ms, seen_ms=dt_ms)
    step = 1.0 - math.exp(-dt_ms / _QUICK_MS)
    quick = state.quick + step * (x - state.quick)
    noise = math.sqrt(state.variance * step / (2.0 - step))
    threshold = max(math.log1p(recovery.burst_percent / 100.0), _SIGMAS * noise)
    phase = _next_phase(state, quick - state.usual, threshold, now_ms, recovery)
    moved = msgspec.structs.replace(
        state,
        phase=phase,
        since_ms=state.since_ms if phase is state.phase else now_ms,
        quick=quick,
        seen_ms=state.seen_ms + dt_ms,
    )
    if phase is Phase.BURST:
        return moved
    if state.phase is Phase.BURST and now_ms - state.since_ms >= _NEW_LEVEL_MS:
        return msgspec.structs.replace(moved, usual=quick)
    # At first all that was seen counts alike; later the past fades.
    learn = max(1.0 - math.exp(-dt_ms / USUAL_MS), dt_ms / moved.seen_ms)
    off = x - state.usual
    return msgspec.structs.replace(
        moved,
        usual=state.usual + learn * off,
        variance=(1.0 - learn) * (state.variance + learn * off * off),
    )


def _next_phase(state: BurstWatch, excess: float, threshold: float, now_ms: float, recovery: Recovery) -> Phase:
    lasted_ms = now_ms - state.since_ms
    if state.phase is Phase.BURST:
        over = excess < _LEAVE * threshold or lasted_ms >= _NEW_LEVEL_MS
        return Phase.RECOVERING if over else Phase.BURST
    if excess > threshold and state.seen_ms >= _LEAST_SEEN_MS:
        return Phase.BURST
    if state.phase is Phase.RECOVERING and lasted_ms < 1000.0 * recovery.calm_seconds:
        return Phase.RECOVERING
    return Phase.CALM


def usual_utilisation(state: BurstWatch) -> float | None:
    """What is usual, as a utilisation; None before anything was seen."""
    return None if state.usual is None else math.exp(state.usual)


def freezes(
    state: BurstWatch,
    *,
    recovery: Recovery,
    refill_blocking: bool,
    current_p99_ms: float | None,
    least_p99_ms: float | None,
    pays: bool = False,
    now_ms: float,
) -> bool:
    """Say whether the split is held now: early in a burst, where refill blocks serving, unless the split in force does harm.

    Parameters
    ----------
    current_p99_ms, least_p99_ms
        Predicted P99 at the split in force and at the best one; None where there is no prediction.
    pays
        Whether the best one is worth its refill even under this load.
    now_ms
        A monotone time, of which `state.since_ms` is one.
    """
    if state.phase is not Phase.BURST or not refill_blocking or not recovery.freeze_when_blocking:
        return False
    if pays or now_ms - state.since_ms >= _LONGEST_FREEZE_MS:
        return False
    harms = current_p99_ms is not None and least_p99_ms is not None and current_p99_ms > _HARM * least_p99_ms
    return not harms
