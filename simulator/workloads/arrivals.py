"""When requests come: recorded arrival series fitted to a rate and a duration, and generated ones.

Few requests are a stretch of the recording itself, warped linearly, which keeps the shape of its gaps. More requests than the
recording has cannot be had that way; they follow its **rate curve**, and within one step of the curve come at random (Poisson). A
step is a number of recorded arrivals wide, so that the curve is fine where the recording is dense: 512 for the calm one, lest
chance in it be blown up into swings of a whole fleet, and 64 for the bursty.
"""

import numpy as np
from numpy.typing import NDArray

RESOLUTION = {"conversation": 512, "code": 64}
Times = NDArray[np.float64]


def recorded(series_ms: Times, count: int, *, duration_ms: float, resolution: int, rng: np.random.Generator) -> tuple[Times, str]:
    """Return `count` sorted arrivals within [0, duration), in milliseconds, and the rule in words.

    Parameters
    ----------
    series_ms : NDArray
        Shape (n,), recorded arrivals that rise; at least 2 * resolution of them.
    resolution : int
        Recorded arrivals in one step of the rate curve.
    """
    if len(series_ms) < 2 * resolution:
        raise ValueError(f"arrivals: {len(series_ms)} in the recording, at least {2 * resolution} are needed")
    if count < len(series_ms):
        start = int(rng.integers(len(series_ms) - count))
        stretch = series_ms[start : start + count + 1]
        span = float(stretch[-1] - stretch[0])
        if not span > 0:
            raise ValueError("arrivals: the recording has them all in one instant")
        return (stretch[:-1] - stretch[0]) * (duration_ms / span), "a stretch of the recording, warped linearly"
    edges = series_ms[::resolution]
    length = float(edges[-1])
    start_ms = float(rng.uniform(0.0, length))
    expected = expected_arrivals(np.array([start_ms, start_ms + duration_ms]), edges)
    moments = moments_of(np.sort(rng.uniform(expected[0], expected[1], count)), edges)
    rule = f"rate curve of the recording in steps of {resolution} arrivals, as long as it was, Poisson within a step"
    return np.clip(moments - start_ms, 0.0, np.nextafter(duration_ms, 0.0)), rule


def expected_arrivals(moments_ms: Times, edges_ms: Times) -> Times:
    """Return the steps of the rate curve passed by each moment; the curve starts again after its end."""
    length, steps = edges_ms[-1] - edges_ms[0], len(edges_ms) - 1
    rounds, rest = np.divmod(moments_ms - edges_ms[0], length)
    passed: Times = rounds * steps + np.interp(rest + edges_ms[0], edges_ms, np.arange(steps + 1.0))
    return passed


def moments_of(passed: Times, edges_ms: Times) -> Times:
    """Return the moments by which so many steps are passed: the inverse of `expected_arrivals`."""
    length, steps = edges_ms[-1] - edges_ms[0], len(edges_ms) - 1
    rounds, rest = np.divmod(passed, steps)
    moments: Times = rounds * length + np.interp(rest, np.arange(steps + 1.0), edges_ms)
    return moments


def day_curve(*, day_ms: float, peak_to_trough: float) -> Times:
    """Return edges of equal expected arrivals over one day whose rate is a sine with this ratio of peak to trough."""
    depth = (peak_to_trough - 1.0) / (peak_to_trough + 1.0)
    grid = np.linspace(0.0, 1.0, 4097)
    passed = grid + depth * (np.cos(2.0 * np.pi * grid) - 1.0) / (2.0 * np.pi)  # trough in the first half, peak in the second
    return np.interp(np.linspace(0.0, 1.0, 1025), passed, grid * day_ms)


def trapezoid(moments_ms: Times, start_ms: float, end_ms: float) -> Times:
    """Return 0..1: how far a burst is on at each moment; a fifth of it is rise, a fifth fall."""
    edge = (end_ms - start_ms) / 5.0
    shape: Times = np.interp(moments_ms, [start_ms, start_ms + edge, end_ms - edge, end_ms], [0.0, 1.0, 1.0, 0.0])
    return shape


def burst_arrivals(count: int, start_ms: float, end_ms: float, rng: np.random.Generator) -> Times:
    """Return `count` sorted arrivals of a burst, spread as its trapezoid."""
    grid = np.linspace(start_ms, end_ms, 513)
    passed = np.concatenate([[0.0], np.cumsum(trapezoid((grid[1:] + grid[:-1]) / 2.0, start_ms, end_ms))])
    return np.interp(np.sort(rng.uniform(0.0, passed[-1], count)), passed, grid)
