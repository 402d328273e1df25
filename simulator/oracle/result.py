"""What the oracle found: latencies by window and split, the choices they lead to, the noise in them, and all doubts."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.oracle.choice import Choice, NoiseFloor

ARRAYS = (
    "counted",
    "count",
    "p99_ms",
    "mean_ms",
    "slo_percent",
    "utilisation_percent",
    "kv_users_found_percent",
    "emb_hit_percent",
    "fleet_p99_ms",
    "fleet_mean_ms",
    "fleet_slo_percent",
    "whole_p99_ms",
)


@dataclass(frozen=True, kw_only=True)
class OracleResult:
    """The best splits in hindsight.

    Attributes
    ----------
    log_digest : str
    seed : int
    start_ms, window_ms, slo_ms : float
    splits : tuple of int
        EMB shares of the pool in percent, rising; the last axis of the arrays.
    count : int64, shape (instances, windows)
    p99_ms, mean_ms, slo_percent, utilisation_percent, emb_hit_percent : float64, (instances, windows, splits)
        Each instance at each split from the first request on. NaN in windows without requests; hits are of HBM.
    kv_users_found_percent : float64, (instances, windows, splits)
        States found in HBM, weighted by their bytes. Not the share of tokens that hit: what a history has grown by since misses.
    fleet_p99_ms, fleet_mean_ms, fleet_slo_percent : float64, shape (windows, splits)
        Of all requests together, every instance at the same split.
    whole_p99_ms : float64, shape (splits,)
        P99 over all counted windows of the fleet at each split.
    counted : bool, shape (windows,)
        Windows that enter choices and gains: not warm-up, and not cut short by the log's ends, as far as others are left.
    fleet : Choice
        For all instances moving as one.
    instances : tuple of Choice
        For each instance by itself.
    noise : NoiseFloor
        Of the fleet's choice.
    instance_noise : NoiseFloor
        Mean over the instances.
    doubts : tuple of str
        What makes the result less than trustworthy; empty when nothing does.
    """

    log_digest: str
    seed: int
    start_ms: float
    window_ms: float
    slo_ms: float
    splits: tuple[int, ...]
    count: NDArray[np.int64]
    p99_ms: NDArray[np.float64]
    mean_ms: NDArray[np.float64]
    slo_percent: NDArray[np.float64]
    utilisation_percent: NDArray[np.float64]
    kv_users_found_percent: NDArray[np.float64]
    emb_hit_percent: NDArray[np.float64]
    fleet_p99_ms: NDArray[np.float64]
    fleet_mean_ms: NDArray[np.float64]
    fleet_slo_percent: NDArray[np.float64]
    whole_p99_ms: NDArray[np.float64]
    counted: NDArray[np.bool_]
    fleet: Choice
    instances: tuple[Choice, ...]
    noise: NoiseFloor
    instance_noise: NoiseFloor
    doubts: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything: equal results have equal digests."""
        total = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name in ARRAYS:
            column = getattr(self, name)
            total.update(f"{name}:{column.dtype.str}:{column.shape}".encode())
            total.update(np.ascontiguousarray(column).tobytes())
        return total.hexdigest()

    def percents(self, places: NDArray[np.int64]) -> list[int | None]:
        """Return splits of a `Choice` as EMB percents; None in windows without requests."""
        return [self.splits[place] if place >= 0 else None for place in places.tolist()]

    def summary(self) -> dict[str, Any]:
        """Return the figures for a report: plain numbers, strings and lists; None stands for what has no value."""
        return {
            "logDigest": self.log_digest,
            "digest": self.digest,
            "seed": self.seed,
            "windowMs": self.window_ms,
            "windows": int(self.count.shape[1]),
            "countedWindows": int(self.counted.sum()),
            "instances": int(self.count.shape[0]),
            "requests": int(self.count.sum()),
            "splits": [self.splits[0], self.splits[-1], len(self.splits)],
            "fleet": {
                **self._summary_of(self.fleet),
                "bestPercents": self.percents(self.fleet.best),
                "plannedPercents": self.percents(self.fleet.planned),
                "windowP99Ms": [_rounded(value) for value in self.fleet_p99_ms[:, self.fleet.static].tolist()],
                "bestWindowP99Ms": [
                    _rounded(self.fleet_p99_ms[window, place]) if place >= 0 else None
                    for window, place in enumerate(self.fleet.best.tolist())
                ],
                "wholeP99MsBySplit": [_rounded(value) for value in self.whole_p99_ms.tolist()],
            },
            "byInstance": [self._summary_of(choice) for choice in self.instances],
            "noise": _noise(self.noise),
            "instanceNoise": _noise(self.instance_noise),
            "doubts": list(self.doubts),
        }

    def _summary_of(self, choice: Choice) -> dict[str, Any]:
        return {
            "staticPercent": self.splits[choice.static],
            "staticMs": _rounded(choice.static_ms),
            "bestMs": _rounded(choice.best_ms),
            "plannedMs": _rounded(choice.planned_ms),
            "gainPercent": _rounded(choice.gain_percent),
            "plannedGainPercent": _rounded(choice.planned_gain_percent),
        }

    def _header(self) -> dict[str, Any]:
        choices = [
            [choice.best.tolist(), choice.planned.tolist(), choice.static, choice.static_ms, choice.best_ms, choice.planned_ms]
            for choice in (self.fleet, *self.instances)
        ]
        scalars = {name: getattr(self, name) for name in ("log_digest", "seed", "start_ms", "window_ms", "slo_ms")}
        noise = [list(vars(floor).values()) for floor in (self.noise, self.instance_noise)]
        return {**scalars, "splits": self.splits, "choices": choices, "noise": noise, "doubts": self.doubts}


def _noise(floor: NoiseFloor) -> dict[str, float | None]:
    return {
        "regretPercent": _rounded(floor.regret_percent),
        "optimismPercent": _rounded(floor.optimism_percent),
        "confirmedGainPercent": _rounded(floor.confirmed_gain_percent),
    }


def _rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
