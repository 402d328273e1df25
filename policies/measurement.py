"""Four different things a measurement can be: fresh, stale, missing, or not a number.

A policy must never read "no data" as zero. The type makes the difference visible: only `Fresh` carries a value, so code
that wants a number has to say what it does with the other three. Zero is an ordinary fresh value.
"""

from __future__ import annotations

import math

import msgspec


class Fresh(msgspec.Struct, frozen=True, tag="fresh"):
    """A finite value young enough to act on.

    Attributes
    ----------
    value
        The measured number; finite.
    age_ms
        Age of the measurement when it was taken into the observation.
    """

    value: float
    age_ms: float = 0.0


class Stale(msgspec.Struct, frozen=True, tag="stale"):
    """A value existed but it is older than its limit; the value itself is withheld.

    Attributes
    ----------
    age_ms
        Age of the last value.
    """

    age_ms: float


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """Nothing was ever measured, or the source gave nothing this time."""


class NotANumber(msgspec.Struct, frozen=True, tag="nan"):
    """The source answered with NaN or an infinity."""


Measurement = Fresh | Stale | Missing | NotANumber
"""A measured quantity; match on the class before using it."""


def measured(value: float | None, *, age_ms: float, stale_after_ms: float) -> Measurement:
    """Classify a raw reading.

    Parameters
    ----------
    value
        The reading, or None where the source gave nothing.
    age_ms
        Age of the reading; a negative age (clock of the source ahead) counts as 0.
    stale_after_ms
        Greatest age at which the reading may be acted on.

    Returns
    -------
    Measurement
        `Missing` for None, `NotANumber` for NaN and infinities of the value or of its age, `Stale` beyond the limit,
        else `Fresh`.
    """
    if value is None:
        return Missing()
    if not (math.isfinite(value) and math.isfinite(age_ms)):
        return NotANumber()
    if age_ms > stale_after_ms:
        return Stale(age_ms=age_ms)
    return Fresh(value=float(value), age_ms=max(age_ms, 0.0))
