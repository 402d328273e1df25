"""Rounds measurements for status, so that noise writes nothing.

A published number has a resolution (one point, two significant digits, a tenth of a percent) and is sticky: it is replaced
only when the measurement has left it by more than that resolution. A value that flutters around the border of two roundings
therefore stays. Missing stays missing: None in, None out.
"""

from __future__ import annotations

import math
from decimal import Decimal


def steady_points(value: float | None, published: int | None) -> int | None:
    """Whole points in 0..100 for `value`, or `published` while `value` is within one point of it."""
    if value is None:
        return None
    if published is not None and abs(value - published) < 1:
        return published
    return min(100, max(0, round(value)))


def steady_latency(value_ms: float | None, published: str | None) -> str | None:
    """Milliseconds with two significant digits as a decimal string, or `published` while `value_ms` is within its last digit."""
    if value_ms is None:
        return None
    if published is not None and abs(value_ms - float(published)) < _second_digit(float(published)):
        return published
    step = _second_digit(value_ms)
    return _plain(round(value_ms / step) * step, step)


def steady_share(value_percent: float | None, published: str | None) -> str | None:
    """Percent with one decimal in "0".."100" as a string, or `published` while `value_percent` is within 0.1 of it."""
    if value_percent is None:
        return None
    if published is not None and abs(value_percent - float(published)) < 0.1:
        return published
    return _plain(min(100.0, max(0.0, value_percent)), 0.1)


def _second_digit(value: float) -> float:
    """The weight of the second significant digit, not below a microsecond's worth of milliseconds."""
    return float(10.0 ** (math.floor(math.log10(value)) - 1)) if value > 0.01 else 0.001


def _plain(value: float, step: float) -> str:
    """Decimal string without exponent or trailing zeros, with as many places as `step` has."""
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    text = f"{Decimal(repr(value)):.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
