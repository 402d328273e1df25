"""How the fitted constants were fitted, and how wrong a law is about points it has not seen.

Every law here is linear in its constants (one aside, which is searched), so a fit is a least-squares solution with relative
weights. Leave-one-out repeats it without each point, or without each group of points, and predicts what was left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.physics.accelerator import AcceleratorProfile
from simulator.physics.model_shape import ModelShape
from simulator.physics.published import Cell, Table
from simulator.physics.service import ServiceLaw, Work

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Constants of a law and its relative errors, predicted / published - 1.

    Parameters
    ----------
    constants : array
        Least-squares solution on all points.
    searched : float, optional
        The constant that is not linear.
    errors : array
        Of the fit, on the points it was fitted on.
    left_out : array
        Of each point by a fit without it.
    """

    constants: Floats
    searched: float | None
    errors: Floats
    left_out: Floats


def fit(
    features: Callable[[float], Floats],
    published: Sequence[float],
    *,
    known: Sequence[float] | None = None,
    search: Sequence[float] = (),
    groups: Sequence[object] | None = None,
) -> Fit:
    """Fit a law and cross-validate it: prediction = features @ constants + known, smallest sum of squared relative errors.

    Parameters
    ----------
    features : callable
        The points' features, shape (points, constants), for one value of the searched constant (0.0 when there is none).
    published : sequence of float
        What was measured.
    known : sequence of float, optional
        Part of each prediction that is not fitted here; zero when absent.
    search : sequence of float
        Values of the searched constant to try; it is chosen anew whenever points are left out.
    groups : sequence, optional
        Points with equal labels are left out together; each point alone when absent.
    """
    target = np.asarray(published, dtype=np.float64)
    rest = np.ones_like(target) if known is None else 1.0 - np.asarray(known, dtype=np.float64) / target
    designs = {value: features(value) / target[:, None] for value in (search or (0.0,))}
    labels = list(range(len(target))) if groups is None else list(groups)
    constants, chosen = _best(designs, rest, np.ones(len(target), dtype=bool))
    left_out = np.empty_like(target)
    for label in dict.fromkeys(labels):
        mine = np.array([other == label for other in labels])
        others, value = _best(designs, rest, ~mine)
        left_out[mine] = designs[value][mine] @ others - rest[mine]
    return Fit(
        constants=constants,
        searched=chosen if search else None,
        errors=designs[chosen] @ constants - rest,
        left_out=left_out,
    )


def _best(designs: dict[float, Floats], rest: Floats, keep: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Solve for each searched value and keep the one with the smallest squared error on the points kept."""
    best: tuple[float, float, Floats] | None = None
    for value, design in designs.items():
        constants = np.asarray(np.linalg.lstsq(design[keep], rest[keep], rcond=None)[0], dtype=np.float64)
        loss = float(np.sum((design[keep] @ constants - rest[keep]) ** 2))
        if best is None or loss < best[0]:
            best = (loss, value, constants)
    assert best is not None, "there is at least one value"
    return best[2], best[1]


def works_of(requests: int, *, history: int, cached: int = 0, candidates: int = 0) -> list[Work]:
    """A batch of equal requests."""
    return [Work(history_tokens=history, cached_tokens=cached, candidate_tokens=candidates)] * requests


def service_features(device: AcceleratorProfile, shape: ModelShape, batches: Sequence[list[Work]]) -> Callable[[float], Floats]:
    """Features of the service law: 1 for the launches, operations for 1 / R; searched: serial query tokens (0: the profile's)."""

    def features(serial_query_tokens: float) -> Floats:
        law = ServiceLaw(accelerator=device, shape=shape)
        scale = serial_query_tokens / device.serial_query_tokens if serial_query_tokens else 1.0
        rows = []
        for batch in batches:
            flops = law.flops(batch)
            rows.append([1.0, flops.projection + max(flops.attention, scale * law.occupancy_floor_flops(batch))])
        return np.array(rows)

    return features


def hstu_batches(table: Table) -> list[list[Work]]:
    """The batches of a published HSTU table."""
    return [
        works_of(
            int(row["batch"]),
            history=int(row["history_tokens"]),
            cached=int(row["cached_tokens"]),
            candidates=int(row["candidate_tokens"]),
        )
        for row in table.rows
    ]


def growing_histories(row: Mapping[str, Cell]) -> list[list[Work]]:
    """The batches of a published pass in which each history grows by one step and finds what it had in the cache."""
    batch, step, candidates = int(row["batch"]), int(row["step_tokens"]), int(row["candidate_tokens"])
    return [
        works_of(batch, history=step * turn, cached=step * (turn - 1), candidates=candidates)
        for turn in range(1, int(row["batches"]) + 1)
    ]


def prefill_batches(table: Table) -> list[list[Work]]:
    """The prefills of a published decoder table."""
    return [works_of(int(row["batch"]), history=int(row["context_tokens"])) for row in table.rows]


def decode_features(device: AcceleratorProfile, shape: ModelShape, table: Table, *, passes: int = 2) -> Callable[[float], Floats]:
    """Features of the decode law: passes for the fixed time of one, operations for 1 / R."""
    law = ServiceLaw(accelerator=device, shape=shape)
    rows = [
        [
            float(passes),
            passes * law.pass_flops(context_tokens=int(row["context_tokens"]), beams=int(row["beams"]), batch=int(row["batch"])),
        ]
        for row in table.rows
    ]
    return lambda _searched: np.array(rows)


def transfer_features(sizes: Sequence[float]) -> Callable[[float], Floats]:
    """Features of a transfer: 1 for the fixed time, bytes for 1 / rate."""
    return lambda _searched: np.array([[1.0, size] for size in sizes])
