"""What an agent believes of its instance: the true curves and costs, late and with an error.

The estimator forgets over a minute, so after a change its curve is a mixture of then and now; its error is a factor on capacity
that wanders (AR(1) of the logarithm). Both make the quick histogram differ from the slow one, which is what `Curve.volatility`
says. Where they differ too much the estimate begins anew, as the watch for turns has it. Costs are ratios over ten seconds,
each wrong by a factor of its own.
"""

import math

import numpy as np

from policies.allocation.anchor import CostColumns
from policies.allocation.costs import COSTS_FORGET
from policies.allocation.estimator import QUICK
from policies.allocation.recovery import USUAL_MS
from training.curves import POINTS, STEP, Floats, held
from training.worlds import Ints, Worlds

_MEMORY_S = 60.0
_COST_MEMORY_S = _MEMORY_S / COSTS_FORGET
_TURN = 0.15  # difference in miss ratio at one length of window beyond which the estimate begins anew
_SLIP_MEMORY_S = 5.0
_PRICES = len(CostColumns._fields)
KV_SIZE_CV2, LOAD = _PRICES, _PRICES + 1
"""Columns of costs beside those of `CostColumns`, which come first: spread of the history lengths, and load."""
_ARRIVALS, _ROWS = CostColumns._fields.index("arrival_per_s"), CostColumns._fields.index("emb_rows_per_request")
_WRONG = 5  # of the prices, the first ones are wrong by `Worlds.cost_error`; demand is counted


class Estimates:
    """Estimates of n instances, one step a second."""

    def __init__(self, n: int) -> None:
        self.emb = np.ones((n, POINTS))
        self.kv = np.ones((n, POINTS))
        self._emb_quick = np.ones((n, POINTS))
        self._kv_quick = np.ones((n, POINTS))
        self._rates = np.ones((n, 2))  # shares of usable asked per ms: rows, histories
        self._samples = np.zeros((n, 2))
        self._errors = np.zeros((n, 4))  # logarithm of capacity: emb, kv, and of their quick histograms
        self._slip = np.zeros((n, 2))
        self._costs = np.ones((n, _PRICES + 2))
        self.usual_load = np.zeros(n)

    def begin(self, where: Ints, worlds: Worlds, emb: Floats, kv: Floats, rates: Floats, costs: Floats, draws: Floats) -> None:
        """Start the estimates of some instances ripe, with errors as they are after a long time.

        Parameters
        ----------
        where
            Which of the instances; all other arguments have one row for each of them.
        emb, kv
            Misses over the windows of `curves.WINDOW_MS`.
        rates
            float64[m, 2], shares of usable asked per ms.
        costs
            float64[m, 10]: the figures of `CostColumns` in order, KV size spread, load.
        draws
            float64[m, 6], standard normal.
        """
        self.emb[where], self._emb_quick[where] = emb, emb
        self.kv[where], self._kv_quick[where] = kv, kv
        self._rates[where] = rates
        self._costs[where] = costs
        self.usual_load[where] = costs[:, LOAD]
        self._errors[where] = draws[:, :4] * worlds.noise[:, None]
        self._slip[where] = 1.1 * worlds.noise[:, None]
        self._samples[where] = _pace(worlds, costs) * _MEMORY_S

    def update(self, worlds: Worlds, emb: Floats, kv: Floats, rates: Floats, costs: Floats, draws: Floats) -> None:
        """Take in one second; arguments as those of `begin`, for all instances."""
        slow, quick = math.exp(-1.0 / _MEMORY_S), math.exp(-QUICK / _MEMORY_S)
        self.emb += (emb - self.emb) * (1.0 - slow)
        self.kv += (kv - self.kv) * (1.0 - slow)
        self._emb_quick += (emb - self._emb_quick) * (1.0 - quick)
        self._kv_quick += (kv - self._kv_quick) * (1.0 - quick)
        self._rates += (rates - self._rates) * (1.0 - slow)
        self._samples = self._samples * slow + _pace(worlds, costs)
        self._costs += (costs - self._costs) * (1.0 - math.exp(-1.0 / _COST_MEMORY_S))
        self.usual_load += (costs[:, LOAD] - self.usual_load) * (1.0 - math.exp(-1.0 / (USUAL_MS / 1000.0)))
        for side, (curve, fast) in enumerate(((self.emb, self._emb_quick), (self.kv, self._kv_quick))):
            turned = np.abs(fast - curve).max(axis=1) > _TURN
            curve[turned] = fast[turned]
            self._samples[turned, side] *= 0.1
        keep = np.exp(-1.0 / worlds.noise_s)[:, None]
        self._errors = self._errors * keep + draws[:, :4] * worlds.noise[:, None] * np.sqrt(1.0 - keep * keep)
        slip = np.abs(self._errors[:, 2:] - self._errors[:, :2])
        self._slip += (slip - self._slip) * (1.0 - math.exp(-1.0 / _SLIP_MEMORY_S))

    def bytes_held(self) -> tuple[Floats, Floats]:
        """Capacities at which the two curves are known, as shares of usable, with their error; float64[n, POINTS] each."""
        error = np.exp(self._errors[:, :2])
        emb = held(self.emb * self._rates[:, :1]) * error[:, :1]
        kv = held(self.kv * self._rates[:, 1:]) * error[:, 1:]
        return emb, kv

    def volatility(self, worlds: Worlds) -> tuple[Floats, Floats]:
        """Mean difference between quick and slow curve, as `Curve.volatility`: of rows and of users."""
        out = []
        for side, (curve, fast) in enumerate(((self.emb, self._emb_quick), (self.kv, self._kv_quick))):
            # A curve shifted along its logarithmic axis differs from itself by shift times its fall, on average over the axis.
            slipped = self._slip[:, side] * worlds.volatility_scale * (1.0 - curve[:, -1]) / (STEP * POINTS)
            out.append(np.abs(fast - curve).mean(axis=1) + slipped)
        return out[0], out[1]

    def costs(self, worlds: Worlds) -> CostColumns:
        """Costs as they were measured, float64[n, 1] each."""
        known = self._costs[:, :_PRICES].copy()
        known[:, :_WRONG] *= worlds.cost_error
        return CostColumns(*(known[:, place, None] for place in range(_PRICES)))

    @property
    def kv_size_cv2(self) -> Floats:
        """Spread of the history lengths as it was measured, float64[n]."""
        return self._costs[:, KV_SIZE_CV2]

    @property
    def samples(self) -> Floats:
        """Samples behind the two curves, float64[n, 2]."""
        return self._samples


def _pace(worlds: Worlds, costs: Floats) -> Floats:
    """Sampled accesses a second: rows, users."""
    users = costs[:, _ARRIVALS]
    return np.stack((users * costs[:, _ROWS] * worlds.sample_rate, users), axis=1)
