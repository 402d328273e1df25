"""The full path of a split decision in C, where it could be compiled; `policies.allocation.path` uses it by itself.

numpy stays the reference and the fallback: what the core does not take (odd pools, bounds or curves) it hands back, and without
it nothing is lost but time. `GRFLEET_KERNEL=numpy` leaves it out although it is there. It is looked for once, on import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.allocation.core import build
from policies.allocation.model_file import Origin, TrainedModel
from policies.allocation.types import Curve

if TYPE_CHECKING:
    from policies.allocation.table import AccessTable

ENVIRONMENT = "GRFLEET_KERNEL"
Binned = tuple[NDArray[np.float64], NDArray[np.float64]]


def available() -> bool:
    """Whether the compiled core is used."""
    return _core() is not None


def why_not() -> str | None:
    """Say why the core is not used; None where it is."""
    return None if available() else _look()[1]


def nothing() -> Callable[[], object]:
    """Return a compiled call that does nothing: what Python and the processor take for any call, for benchmarks to compare with.

    Raises
    ------
    ValueError
        If there is no core.
    """
    module = _core()
    if module is None:
        raise ValueError(f"no compiled core: {why_not()}")
    call: Callable[[], object] = module.lib.gr_source_digest
    return call


def _core() -> Any:
    return _look()[0]


@cache
def _look() -> tuple[Any, str | None]:
    if os.environ.get(ENVIRONMENT) == "numpy":
        return None, f"{ENVIRONMENT}=numpy asks for numpy"
    try:
        module = import_module(f"{__name__}.{build.MODULE}")
        made_from = module.ffi.string(module.lib.gr_source_digest()).decode()
        if made_from != build.source_digest():
            return None, "the compiled core is of other source than this: python -m policies.allocation.core"
    except (ImportError, AttributeError, OSError) as why:
        return None, f"it is not compiled ({why}): python -m policies.allocation.core"
    return module, None


def evaluate(
    emb_capacity_bytes: NDArray[np.float64],
    emb_miss_ratio: NDArray[np.float64],
    kv_capacity_bytes: NDArray[np.float64],
    kv_miss_ratio: NDArray[np.float64],
    figures: NDArray[np.float64],
    model: TrainedModel | None,
) -> tuple[NDArray[np.float64], NDArray[np.float32]] | None:
    """Evaluate n rows (arguments as in `path.PathRows`).

    Returns
    -------
    (float64[GR_RESULTS, n], float32[n, 31]) or None
        Results by row as in `enum gr_result` of split_core.h (from GR_OUTLIER on only with a model), and the features; None where
        there is no core or it leaves a row to numpy.
    """
    module = _core()
    if module is None:
        return None
    ffi, lib = module.ffi, module.lib
    n = len(figures)
    curves = [np.ascontiguousarray(each, dtype=np.float64) for each in (emb_capacity_bytes, emb_miss_ratio)]
    curves += [np.ascontiguousarray(each, dtype=np.float64) for each in (kv_capacity_bytes, kv_miss_ratio)]
    packed = np.ascontiguousarray(figures, dtype=np.float64)
    if packed.shape != (n, lib.GR_FIGURES) or any(each.ndim != 2 or len(each) != n for each in curves):
        return None
    if curves[0].shape != curves[1].shape or curves[2].shape != curves[3].shape:
        return None
    results = np.empty((lib.GR_RESULTS, n))
    features = np.empty((n, lib.GR_FEATURES), dtype=np.float32)
    e_capacity, e_miss, k_capacity, k_miss = (ffi.from_buffer(each) for each in curves)
    done = lib.gr_evaluate(
        n,
        e_capacity,
        e_miss,
        curves[0].shape[1],
        k_capacity,
        k_miss,
        curves[2].shape[1],
        ffi.from_buffer("double[]", packed),
        ffi.NULL if model is None else _packed(model),
        ffi.from_buffer("double[]", results),
        ffi.from_buffer("float[]", features),
    )
    return (results, features) if done == n else None


class Outcome(NamedTuple):
    """What the path says of one instance: the fields of `path.PathResults`, then those of `path.Guest`, all as plain numbers.

    `outlier` is -1 and `clamped` is 0 where there is none; without a model all from `outlier` on are NaN.
    """

    anchor_emb_bytes: float
    anchor_p99_ms: float
    smoothed_emb_bytes: float
    current_p99_ms: float
    outlier: float
    action: float
    emb_bytes: float
    clamped: float
    p99_ms: float
    smoothed_p99_ms: float


One = Callable[[Curve, Curve, Sequence[float], TrainedModel | None], Outcome]


class _Lane:
    """Memory for the results of one row, with its pointers: one for each thread that is inside at the same time."""

    __slots__ = ("_memory", "features", "results", "tolist")

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._memory = bytearray(8 * lib.GR_RESULTS)
        self.results = ffi.from_buffer("double[]", self._memory)
        self.tolist: Any = memoryview(self._memory).cast("d").tolist
        self.features = ffi.new("float[]", lib.GR_FEATURES)


def bind(fallback: One) -> One:
    """Make `path.evaluate_one`, which makes nothing but its outcome, and asks `fallback` where there is no core or it declines.

    All it needs is bound to it, and it is one call deep: an agent decides from a cold cache, where look-ups cost microseconds.
    """
    module = _core()
    if module is None:
        return fallback
    ffi, call, figures_expected = module.ffi, module.lib.gr_evaluate, module.lib.GR_FIGURES
    free, new = [_Lane(ffi, module.lib)], tuple.__new__
    held: tuple[TrainedModel | None, Any] = (None, ffi.NULL)

    def one(emb: Curve, kv: Curve, figures: Sequence[float], model: TrainedModel | None) -> Outcome:
        nonlocal held
        if len(figures) != figures_expected:
            return fallback(emb, kv, figures, model)
        mine = held
        if mine[0] is not model:
            mine = held = (model, ffi.NULL if model is None else _packed(model))
        try:
            lane = free.pop()
        except IndexError:
            lane = _Lane(ffi, module.lib)
        emb_capacity, kv_capacity = emb.packed_capacity_bytes, kv.packed_capacity_bytes
        done = call(
            1,
            emb_capacity,
            emb.packed_miss_ratio,
            len(emb_capacity) >> 3,
            kv_capacity,
            kv.packed_miss_ratio,
            len(kv_capacity) >> 3,
            figures,
            mine[1],
            lane.results,
            lane.features,
        )
        outcome = new(Outcome, lane.tolist())
        free.append(lane)
        return outcome if done == 1 else fallback(emb, kv, figures, model)

    return one


@lru_cache(maxsize=4)
def _packed(model: TrainedModel) -> Any:
    """The model in the core's own memory, for as long as it is among the last four used."""
    ffi = _core().ffi
    packed = ffi.new("gr_model *")
    layers = {"w1": model.w1.T, "w2": model.w2.T, "w3": model.w3[0], "b1": model.b1, "b2": model.b2}
    ranges = {"mean": model.mean, "scale": model.scale, "low": model.low, "high": model.high}
    for name, array in {**layers, **ranges}.items():
        flat = np.ascontiguousarray(array, dtype=np.float32).tobytes()
        place = ffi.buffer(ffi.addressof(packed[0], name))
        place[:] = flat
    packed.b3 = float(model.b3[0])
    packed.from_anchor = model.header.origin is Origin.ANCHOR
    packed.max_step_percent = model.max_step_percent
    return packed


def count(table: AccessTable, keys: NDArray[np.uint64], t_ms: NDArray[np.float64], sizes: NDArray[np.float64]) -> Binned | None:
    """Take accesses into a table, as `AccessTable.count` does; None, and nothing taken in, where there is no core."""
    module = _core()
    if module is None:
        return None
    ffi = module.ffi
    arrays = [np.ascontiguousarray(keys, dtype=np.uint64), *(np.ascontiguousarray(a, dtype=np.float64) for a in (t_ms, sizes))]
    if len({each.shape for each in arrays}) != 1:
        return None
    binned, squares = np.zeros(table.bins + 1), np.zeros(table.bins + 1)
    memory = _table_of(ffi, table)
    module.lib.gr_count(
        len(keys),
        ffi.from_buffer("uint64_t[]", arrays[0]),
        ffi.from_buffer("double[]", arrays[1]),
        ffi.from_buffer("double[]", arrays[2]),
        memory,
        ffi.from_buffer("double[]", binned),
        ffi.from_buffer("double[]", squares),
    )
    return binned, squares


Ingester = Callable[[NDArray[np.uint64], int, float, float, float], tuple[int, float, float, float] | None]


def ingester(table: AccessTable, *, sums: NDArray[np.float64], keep: NDArray[np.float64]) -> Ingester:
    """Make what takes sample records into a table and histograms, which stay the same arrays: all that it needs is bound to it.

    Parameters
    ----------
    sums, keep
        As in `reuse.Histograms`.

    Returns
    -------
    callable
        Of records uint64[n, 3], kind, bytes a unit, shift and present time in ms; it returns (number, sum of bytes, sum of their
        squares, last time), or None, and nothing taken in, where there is no core or the stamps of the records do not rise.
    """
    module = _core()
    if module is None:
        return lambda *_: None
    ffi, take, histograms = module.ffi, module.lib.gr_ingest, sums.shape[1]
    memory = _table_of(ffi, table)
    held = table  # the core's struct only points into it
    sums_at, keep_at = (ffi.from_buffer("double[]", each, require_writable=True) for each in (sums, keep))
    said = bytearray(24)
    out, tolist = ffi.from_buffer("double[]", said), memoryview(said).cast("d").tolist

    def one(
        records: NDArray[np.uint64], kind: int, unit_bytes: float, shift_ms: float, now_ms: float
    ) -> tuple[int, float, float, float] | None:
        n, packed = len(records), ffi.from_buffer(records)
        taken = take(n, packed, kind, unit_bytes, shift_ms, now_ms, memory, histograms, keep_at, sums_at, out)
        assert held is not None
        return None if taken < 0 else (taken, *tolist())

    return one


def _table_of(ffi: Any, table: AccessTable) -> Any:
    """The table as the core reads it, for as long as the table is held."""
    memory = ffi.new("gr_table *")
    memory.key = ffi.from_buffer("uint64_t[]", table.key, require_writable=True)
    memory.last_ms = ffi.from_buffer("double[]", table.last_ms, require_writable=True)
    memory.weight = ffi.from_buffer("double[]", table.weight, require_writable=True)
    memory.sets, memory.bins, memory.decay_ms = table.sets, table.bins, table.decay_ms
    memory.shortest_ms, memory.log_step = table.shortest_ms, table.log_step
    return memory
