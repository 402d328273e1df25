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
    try:
        import numba
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the fleet simulator needs numba: pip install 'grfleet[sim]'", name="numba") from error
    return cast(F, numba.njit(cache=True, nogil=True)(function))
