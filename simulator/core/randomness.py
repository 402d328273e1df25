"""Counter-based random numbers: every stream is a pure function of a 64-bit seed, so two engines given the same request agree.

SplitMix64 (Steele, Lea, Flood 2014) applied to seed + counter; cheap for the few dozen draws that one request needs, and a
longer draw starts with the same numbers as a shorter one.
"""

import math

import numpy as np
import xxhash
from numpy.typing import NDArray

GOLDEN = 0x9E37_79B9_7F4A_7C15
_MASK = (1 << 64) - 1
_MIX_1 = np.uint64(0xBF58_476D_1CE4_E5B9)
_MIX_2 = np.uint64(0x94D0_49BB_1331_11EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_11 = (np.uint64(shift) for shift in (30, 27, 31, 11))
_TO_UNIT = np.float64(2.0**-53)
_STEPS = np.arange(1, 1025, dtype=np.uint64) * np.uint64(GOLDEN)


def seed_of(text: str) -> int:
    """Return a 64-bit seed for a text such as a request id."""
    return xxhash.xxh64_intdigest(text.encode())


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finaliser of each value, a bijection on 64 bits."""
    mixed = (values ^ (values >> _SHIFT_30)) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFT_27)) * _MIX_2
    out: NDArray[np.uint64] = mixed ^ (mixed >> _SHIFT_31)
    return out


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """Return the first `count` numbers of a seed's stream, each in [0, 1)."""
    steps = _STEPS[:count] if count <= len(_STEPS) else np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    out: NDArray[np.float64] = (mix(steps + np.uint64(seed & _MASK)) >> _SHIFT_11).astype(np.float64)
    out *= _TO_UNIT
    return out


def binomial(trials: int, probability: float, *, seed: int) -> int:
    """Return one binomial draw: exact by inversion when the smaller side's mean is below 16, else normal and rounded."""
    flip = probability > 0.5
    p = 1.0 - probability if flip else probability
    mean = trials * p
    first, second = uniforms(seed, 2).tolist()
    if p <= 0.0 or trials == 0:
        drawn = 0
    elif mean < 16.0:
        term = math.exp(trials * math.log1p(-p))
        below, drawn = term, 0
        while first > below and drawn < trials:
            term *= (trials - drawn) / (drawn + 1) * p / (1.0 - p)
            drawn += 1
            below += term
    else:
        gauss = math.sqrt(-2.0 * math.log(1.0 - first)) * math.cos(2.0 * math.pi * second)
        drawn = min(trials, max(0, math.floor(mean + gauss * math.sqrt(mean * (1.0 - p)) + 0.5)))
    return trials - drawn if flip else drawn
