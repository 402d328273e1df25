"""What agents predicted, beside what came: whether the model that chooses the splits knows the latencies of this fleet.

A prediction is the P99 that an agent expects at the split in force. Choices need differences between splits to be right, not the
level; a level that is far off says that something in the model of an agent does not fit, and that forecasts must not be quoted.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grfleet.simulate.schema import Prediction
from simulator.fleet.allocation import AgentSplit
from simulator.fleet.policies import FleetObservation
from simulator.fleet.result import FleetResult

FAR_PERCENT = 25.0
LOW_LOAD_PERCENT = 30.0
LEAST_REQUESTS = 1000


class Foretold:
    """Agents whose predictions are kept: mean predicted P99 of each instance from a moment on, in milliseconds."""

    def __init__(self, agents: AgentSplit, *, from_ms: float) -> None:
        self.agents = agents
        self._from_ms = from_ms
        self._sums: dict[int, tuple[float, int]] = {}

    @property
    def interval_ms(self) -> float:
        return self.agents.interval_ms

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        """Return what the agents want."""
        wanted = self.agents.decide(now_ms, observations)
        for seen in observations if now_ms >= self._from_ms else ():
            predicted = self.agents.last[seen.instance].predicted_p99_ms
            if predicted is not None and math.isfinite(predicted):
                total, count = self._sums.get(seen.instance, (0.0, 0))
                self._sums[seen.instance] = total + predicted, count + 1
        return wanted

    @property
    def apart(self) -> bool:
        """Whether each instance may be decided for by itself, in a process of its own."""
        return self.agents.apart

    def notes(self) -> tuple[Any, dict[int, tuple[float, int]]]:
        """Return what was noted since the last call."""
        sums, self._sums = self._sums, {}
        return self.agents.notes(), sums

    def join(self, notes: tuple[Any, dict[int, tuple[float, int]]]) -> None:
        """Add what a copy has noted of other instances."""
        self.agents.join(notes[0])
        self._sums.update(notes[1])

    def beside(self, result: FleetResult) -> Prediction | None:
        """Return predictions beside the measured P99, mean over the instances that have both; None without any."""
        instance, latency = result.instance[result.measured], result.latency_ms[result.measured]
        pairs = []
        for number, (total, count) in sorted(self._sums.items()):
            own = latency[instance == number]
            if len(own) >= LEAST_REQUESTS:
                pairs.append((total / count, float(np.percentile(own, 99.0))))
        if not pairs:
            return None
        predicted, measured = (float(mean) for mean in np.mean(np.array(pairs), axis=0))
        return Prediction(
            instances=len(pairs),
            decisions=sum(count for _, count in self._sums.values()),
            predicted_p99_ms=round(predicted, 4),
            measured_p99_ms=round(measured, 4),
            error_percent=round(100.0 * (predicted / measured - 1.0), 2) if measured > 0.0 else None,
        )


def doubt_of(prediction: Prediction | None, *, policy: str, utilisation_percent: float | None) -> str | None:
    """Return why predictions of a run must not be quoted, None where they may."""
    if prediction is None or prediction.error_percent is None or abs(prediction.error_percent) <= FAR_PERCENT:
        return None
    low = utilisation_percent is not None and utilisation_percent < LOW_LOAD_PERCENT and prediction.error_percent < 0.0
    why = " (at a load below 30 % it is known to be too low)" if low else ""
    return (
        f"{policy}: agents predict a P99 of {prediction.predicted_p99_ms:.2f} ms where {prediction.measured_p99_ms:.2f} ms were"
        f" measured{why}; they choose by differences between splits, but do not quote their forecasts"
    )
