"""Random numbers for compiled loops: SplitMix64 seeded by (seed, request), so that no draw depends on the order of simulation.

Normal numbers come from a table of 4096 equally likely quantiles, binomial ones by inversion where the mean is small and from the
normal otherwise, as in `simulator.core.randomness`.
"""

import math
from statistics import NormalDist

import numpy as np

from simulator.compiled import lean

GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_1 = np.uint64(0xBF58_476D_1CE4_E5B9)
_MIX_2 = np.uint64(0x94D0_49BB_1331_11EB)
_S30, _S27, _S31, _S11, _S52 = (np.uint64(shift) for shift in (30, 27, 31, 11, 52))
_NORMAL = np.array([NormalDist().inv_cdf((place + 0.5) / 4096) for place in range(4096)])
_INVERT_BELOW = 16.0


@lean
def mix(value: np.uint64) -> np.uint64:
    """Return SplitMix64's finaliser, a bijection on 64 bits."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@lean
def stream_of(seed: np.uint64, number: int) -> np.uint64:
    """Return the start of the stream of one request; step it by GOLDEN and `mix`."""
    return mix(seed ^ (np.uint64(number) * GOLDEN + GOLDEN))


@lean
def unit(value: np.uint64) -> float:
    """Return a number in [0, 1) from 64 random bits."""
    return np.float64(value >> _S11) * 1.1102230246251565e-16


@lean
def binomial(trials: int, probability: float, value: np.uint64) -> int:
    """Return a binomial draw from 64 random bits."""
    if trials <= 0 or probability <= 0.0:
        return 0
    if probability >= 1.0:
        return trials
    flip = probability > 0.5
    p = 1.0 - probability if flip else probability
    mean = trials * p
    drawn = 0
    if mean < _INVERT_BELOW:
        first = unit(value)
        term = math.exp(trials * math.log1p(-p))
        below = term
        while first > below and drawn < trials:
            term *= (trials - drawn) / (drawn + 1) * p / (1.0 - p)
            drawn += 1
            below += term
    else:
        spread = _NORMAL[np.int64(value >> _S52)] * math.sqrt(mean * (1.0 - p))
        drawn = min(trials, max(0, math.floor(mean + spread + 0.5)))
    return trials - drawn if flip else drawn
