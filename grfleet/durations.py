"""Lengths of time as people type them: `500ms`, `60s`, `5m`, `24h`; where it makes sense also a share of the log, `20%`."""

import re

_LENGTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|%)")
LEAST_TRAFFIC_MS, MOST_TRAFFIC_MS = 1e3, 250.0 * 3600e3
_MS = {"ms": 1.0, "s": 1e3, "m": 60e3, "h": 3600e3}


def length_ms(text: str, *, of_ms: float | None = None) -> float:
    """Return milliseconds.

    Parameters
    ----------
    of_ms : float, optional
        What a percentage is taken of; none may be given when absent.

    Raises
    ------
    ValueError
        When it is no length of time.
    """
    match = _LENGTH.fullmatch(text)
    if match is None or (match[2] == "%" and of_ms is None):
        raise ValueError(f"{text} is no length of time; write 500ms, 60s, 5m or 24h" + (" or 20%" if of_ms is not None else ""))
    if match[2] == "%":
        if float(match[1]) > 100.0:
            raise ValueError(f"{text} is more than the whole log")
        return float(match[1]) / 100.0 * (of_ms or 0.0)
    return float(match[1]) * _MS[match[2]]


def traffic_ms(text: str) -> float:
    """Return the length of generated traffic in milliseconds, which is bounded.

    Raises
    ------
    ValueError
        When it is no length of time, or outside 1s and 250h.
    """
    length = length_ms(text)
    if not LEAST_TRAFFIC_MS <= length <= MOST_TRAFFIC_MS:
        raise ValueError(f"{text} is not within 1s and 250h")
    return length
