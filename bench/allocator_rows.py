"""The rows of the allocation study: who chooses the splits, from a fixed split to the whole learned path and the oracle's plan.

Every adaptive row is the agent's own code (`simulator.fleet.allocation`) under another intent; each leaves something out of the
last one. All start at the same split. Two things stand between an agent and what it sees: one row in 16 of those that the
simulation samples, to save time, and, in the sweep of noisy estimates, an error on the capacities of both curves.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.allocation.model_file import SHAPES, TrainedModel
from policies.allocation.recovery import Recovery
from policies.allocation.residual import Residual
from policies.allocation.types import AllocationIntent, Curve, EstimatorView, Learned, Step, Strategy
from simulator.fleet.allocation import AgentSplit, UserCurves
from simulator.fleet.policies import FleetObservation

INTERVAL_MS = 2000.0
THINNED = 16
CLAMP_PERCENT = 10.0
_UNCLAMPED = 100.0
_NOISE_S = 5.0  # how long an error of the curve lasts, as in the model's card
_SLIP_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to choose splits.

    Attributes
    ----------
    key, title : str
    strategy : Strategy or None
        None for splits that nobody chooses on the way.
    clamp_percent : float or None
        None lets the model act without clamp and without the guard against foreign loads.
    residual, recovery : bool
    """

    key: str
    title: str
    strategy: Strategy | None = None
    clamp_percent: float | None = CLAMP_PERCENT
    residual: bool = False
    recovery: bool = False

    @property
    def learned(self) -> bool:
        return self.strategy is Strategy.LEARNED

    def intent(self, *, model: TrainedModel | None, blocking: bool) -> AllocationIntent:
        """Return what the agents follow."""
        if self.strategy is None:
            raise ValueError(f"{self.key}: nobody decides")
        clamp = _UNCLAMPED if self.clamp_percent is None else self.clamp_percent
        sha256 = model.sha256 if model is not None and self.learned else None
        return AllocationIntent(
            strategy=self.strategy,
            step=Step(interval_ms=INTERVAL_MS),
            learned=Learned(model_sha256=sha256, clamp_percent=clamp, residual=Residual(enabled=self.residual)),
            recovery=Recovery(freeze_when_blocking=self.recovery),
            freeze_on_backlog=False,
            refill_blocking=blocking,
        )


ROWS: Mapping[str, Row] = {
    row.key: row
    for row in (
        Row(key="static-50", title="static 50"),
        Row(key="static-best", title="static, best in hindsight"),
        Row(key="hill", title="hill climb", strategy=Strategy.HILL_CLIMB),
        Row(key="arc2", title="ARC2", strategy=Strategy.TWO_POOL_ARC),
        Row(key="anchor", title="anchor", strategy=Strategy.MISS_RATIO_CURVE),
        Row(key="ppo", title="PPO", strategy=Strategy.LEARNED, clamp_percent=None),
        Row(key="clamped", title="PPO clamped", strategy=Strategy.LEARNED),
        Row(key="residual", title="+ residual", strategy=Strategy.LEARNED, residual=True),
        Row(key="recovery", title="+ recovery", strategy=Strategy.LEARNED, residual=True, recovery=True),
        Row(key="oracle", title="oracle, pays for moves"),
    )
}
SHIPPED = "recovery"
FIXED = ("static-50", "static-best", "oracle")


def same_run(key: str, *, blocking: bool) -> str:
    """Return the row whose run this one is: where refill blocks nobody, recovery changes no decision."""
    return "residual" if key == "recovery" and not blocking else key


def same_outcome(key: str, acted: Collection[str]) -> tuple[str, ...]:
    """Return the rows whose run a run of the residual row was as well, by what acted in it: they lack what never acted."""
    if key != "residual" or "residual" in acted:
        return ()
    return ("clamped",) if acted else ("clamped", "ppo")


def decisive(model: TrainedModel) -> str:
    """Return a digest of what of a model decides: a card that was written again changes none of it."""
    total = hashlib.sha256(f"{model.max_step_percent} {model.header.origin}".encode())
    for name in SHAPES:
        total.update(getattr(model, name).tobytes())
    return total.hexdigest()


@dataclass(frozen=True)
class Plan:
    """Follows a list of EMB bytes, one a window; the same one throughout is a static split."""

    emb_bytes: tuple[int, ...]
    interval_ms: float

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        return self.planned(now_ms, len(observations))

    def planned(self, now_ms: float, instances: int) -> list[int | None]:
        window = min(round(now_ms / self.interval_ms), len(self.emb_bytes) - 1)
        return [self.emb_bytes[window]] * instances


class Agents:
    """Agents that see one sampled row in `THINNED`; nothing that one says depends on what another one sees."""

    rows_one_in = THINNED
    one_by_one = True

    def __init__(
        self,
        row: Row,
        *,
        model: TrainedModel | None,
        blocking: bool,
        users: UserCurves,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        running = model
        if model is not None and row.clamp_percent is None:
            running = unguarded(model)
        disturbed = Disturbed(noise, seed=seed, interval_ms=INTERVAL_MS) if noise > 0.0 else None
        self._agents = AgentSplit(
            row.intent(model=model, blocking=blocking),
            model=running if row.learned else None,
            seen_as=disturbed,
            users=users,
        )

        self.acted: dict[int, set[str]] = {}  # by instance, layers around the network that ever changed what it said
        self.reasons: dict[int, Counter[str]] = {}

    @property
    def interval_ms(self) -> float:
        return INTERVAL_MS

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        wanted = self._agents.decide(now_ms, observations)
        for seen in observations:
            decision = self._agents.last[seen.instance]
            self.reasons.setdefault(seen.instance, Counter())[decision.reason.value] += 1
            acted, guest = self.acted.setdefault(seen.instance, set()), decision.guest
            if guest is not None:
                marks = {"guard": bool(guest.outlier), "clamp": guest.clamped, "residual": guest.residual_points != 0.0}
                acted.update(name for name, acts in marks.items() if acts)
        return wanted

    def words(self, instances: int) -> dict[str, Any]:
        """Return how often the first so many instances gave each reason, and which layers ever acted in them."""
        reasons = sum((self.reasons[number] for number in range(instances)), Counter())
        return {"reasons": dict(reasons), "acted": sorted(set().union(*(self.acted[number] for number in range(instances))))}


def unguarded(model: TrainedModel) -> TrainedModel:
    """Return a model to which no load is foreign."""
    most = np.full_like(model.high, np.finfo(np.float32).max)
    return replace(model, low=-most, high=most)


class Disturbed:
    """Puts an error on the capacities of both curves: a factor for each instance and curve whose logarithm wanders (AR(1)).

    An error of the curve is one of its quick half, too: `Curve.volatility`, which is their difference, grows with what the
    factor slips away from itself. The draws depend on seed, instance and step only, so all rows of an episode have the same.

    Parameters
    ----------
    deviation : float
        Standard deviation of the logarithm.
    """

    def __init__(self, deviation: float, *, seed: int, interval_ms: float) -> None:
        self._deviation = deviation
        self._seed = seed
        self._keep = math.exp(-interval_ms / 1000.0 / _NOISE_S)
        self._slip_step = 1.0 - math.exp(-interval_ms / 1000.0 / _SLIP_S)
        self._of: dict[int, tuple[np.random.Generator, NDArray[np.float64], NDArray[np.float64]]] = {}

    def __call__(self, instance: int, view: EstimatorView) -> EstimatorView:
        """Return the view with the error of this step; called once a decision."""
        if instance not in self._of:
            rng = np.random.default_rng([self._seed, instance])
            self._of[instance] = (rng, self._deviation * rng.standard_normal(4), np.full(2, 1.1 * self._deviation))
        rng, error, slip = self._of[instance]
        error = self._keep * error + self._deviation * math.sqrt(1.0 - self._keep**2) * rng.standard_normal(4)
        slip = slip + self._slip_step * (np.abs(error[2:] - error[:2]) - slip)
        self._of[instance] = (rng, error, slip)
        emb = None if view.emb is None else stretched(view.emb, float(error[0]), float(slip[0]))
        kv = None if view.kv is None else stretched(view.kv, float(error[1]), float(slip[1]))
        return msgspec.structs.replace(view, emb=emb, kv=kv)


def stretched(curve: Curve, error: float, slip: float) -> Curve:
    """Return a curve whose capacities are wrong by exp(error), more volatile by what a slip of exp(slip) changes it."""
    capacity = curve.capacity_bytes
    moved = np.interp(capacity, capacity * math.exp(slip), curve.miss_ratio)
    shaken = float(np.abs(moved - curve.miss_ratio).mean())
    return msgspec.structs.replace(
        curve,
        packed_capacity_bytes=(capacity * math.exp(error)).astype("<f8").tobytes(),
        volatility=curve.volatility + shaken,
    )


def plain(row: Row) -> dict[str, Any]:
    """Return all that a row depends on, the model's digest and the way it is run apart."""
    return {
        "row": row.key,
        "intent": None if row.strategy is None else msgspec.to_builtins(row.intent(model=None, blocking=False)),
        "clamp": row.clamp_percent,
        "thinned": THINNED,
        "noiseSeconds": [_NOISE_S, _SLIP_S],
    }
