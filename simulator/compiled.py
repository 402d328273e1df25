"""Machine code for the loops of the simulator, by numba, kept between runs; engines and agents never import this.

Arithmetic stays as written: no fast-math, so that the same seed gives the same bytes on every run of a machine type.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays at its first call.

    Raises
    ------
    ModuleNotFoundError
        Without numba; the message says how to get it.
    """
    return cast(F, _kept(_numba().njit(cache=True, nogil=True)(function)))


def lean(function: F) -> F:
    """Compile as `compiled`, for functions that make no arrays: nobody counts who holds one; x / 0 is infinite or NaN.

    Counting is an atomic step for each array at each inner call, and takes most of the time of small functions that pass many
    arrays on. A function that makes an array does not compile this way.

    Raises
    ------
    ModuleNotFoundError
        Without numba; the message says how to get it.
    """
    options = {"cache": True, "nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": False}
    return cast(F, _kept(_numba().njit(**options)(function)))


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether an earlier run has kept machine code of a compiled function that fits the sources as they are."""
    file = getattr(getattr(function, "_cache", None), "_cache_file", None)
    return file is None or bool(file._load_index())


def _kept(dispatcher: Any) -> Any:
    """Let what is kept between runs go stale with any file whose code or constants it may contain.

    numba looks at the function's own file only, but machine code contains what was called and the constants of other files.
    """
    kept = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if kept is not None:  # not so where compilation is switched off
        kept._source_stamp = _sources()
    return dispatcher


@cache
def _sources() -> str:
    """Return a digest of every file in the folders of this room that have compiled functions."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    texts = {path: path.read_bytes() for path in files}
    folders = {path.parent for path, text in texts.items() if b"simulator.compiled import" in text}
    total = hashlib.sha256()
    for path, text in texts.items():
        if path.parent in folders or path == Path(__file__):
            total.update(f"{path.name}:{len(text)}:".encode() + text)
    return total.hexdigest()


def _numba() -> Any:
    try:
        import numba
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the fleet simulator needs numba: pip install '.[sim]' in the checkout", name="numba"
        ) from error
    return numba
