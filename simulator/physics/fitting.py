"""How the fitted constants were fitted, and how wrong a law is about points it has not seen.

Every law here is linear in its constants (one aside, which is searched), so a fit is a least-squares solution with relative
weights. Leave-one-out repeats it without each point, or without each group of points, and predicts what was left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.physics.accelerator import AcceleratorProfile
from simulator.physics.model_shape import ModelShape
from simulator.physics.published import Table
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


def solve(features: Floats, published: Floats) -> Floats:
    """Constants that minimise the sum of squared relative errors.

    Parameters
    ----------
    features : array, shape (points, constants)
    published : array, shape (points,)
    """
    scaled = features / published[:, None]
    return np.asarray(np.linalg.lstsq(scaled, np.ones_like(published), rcond=None)[0], dtype=np.float64)


def fit(
    features: Callable[[float], Floats],
    published: Sequence[float],
    *,
    search: Sequence[float] = (),
    groups: Sequence[object] | None = None,
) -> Fit:
    """Fit a law and cross-validate it.

    Parameters
    ----------
    features : callable
        The points' features, shape (points, constants), for one value of the searched constant (0.0 when there is none).
    published : sequence of float
        What was measured.
    search : sequence of float
        Values of the searched constant to try; it is chosen anew whenever points are left out.
    groups : sequence, optional
        Points with equal labels are left out together; each point alone when absent.
    """
    target = np.asarray(published, dtype=np.float64)
    designs = {value: features(value) for value in (search or (0.0,))}
    labels = list(range(len(target))) if groups is None else list(groups)
    constants, chosen = _best(designs, target, np.ones(len(target), dtype=bool))
    left_out = np.empty_like(target)
    for label in dict.fromkeys(labels):
        mine = np.array([other == label for other in labels])
        others, value = _best(designs, target, ~mine)
        left_out[mine] = designs[value][mine] @ others / target[mine] - 1.0
    return Fit(
        constants=constants,
        searched=chosen if search else None,
        errors=designs[chosen] @ constants / target - 1.0,
        left_out=left_out,
    )


def _best(designs: dict[float, Floats], target: Floats, keep: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Solve for each searched value and keep the one with the smallest squared relative error on the points kept."""
    best: tuple[float, float, Floats] | None = None
    for value, design in designs.items():
        constants = solve(design[keep], target[keep])
        loss = float(np.sum((design[keep] @ constants / target[keep] - 1.0) ** 2))
        if best is None or loss < best[0]:
            best = (loss, value, constants)
    assert best is not None, "there is at least one value"
    return best[2], best[1]


def works_of(row_batch: int, *, history: int, cached: int = 0, candidates: int = 0) -> list[Work]:
    """A batch of equal requests."""
    return [Work(history_tokens=history, cached_tokens=cached, candidate_tokens=candidates)] * row_batch


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
