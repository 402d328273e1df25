"""Machine code for the loops of the simulator, by numba, kept between runs; engines and agents never import this.

Arithmetic stays as written: no fast-math, so that the same seed gives the same bytes on every run of a machine type.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays at its first call.

    Raises
    ------
    ModuleNotFoundError
        Without numba; the message says how to get it.
    """
    return cast(F, _numba().njit(cache=True, nogil=True)(function))


def lean(function: F) -> F:
    """Compile as `compiled`, for functions that make no arrays: nobody counts who holds one; x / 0 is infinite or NaN.

    Counting is an atomic step for each array at each inner call, and takes most of the time of small functions that pass many
    arrays on. A function that makes an array does not compile this way.

    Raises
    ------
    ModuleNotFoundError
        Without numba; the message says how to get it.
    """
    return cast(F, _numba().njit(cache=True, nogil=True, error_model="numpy", forceinline=True, _nrt=False)(function))


def _numba() -> Any:
    try:
        import numba
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the fleet simulator needs numba: pip install '.[sim]' in the checkout", name="numba"
        ) from error
    return numba
