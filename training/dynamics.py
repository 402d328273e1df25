"""n instances in virtual time, one call a second: traffic, caches that fill and shrink, queue, estimates, reward.

A cache is what it holds, and so the length of window that its content covers. A shrink cuts it at once; after growth the window
gets longer as time passes (misses fill the room), faster under a throttled refill, and at once under a blocking one, which stops
serving meanwhile. P99 is the anchor's own M/G/1 formula on the true misses. The reward knows what no agent knows: how far the
P99 lies above the best that any split could reach in the long run under the laws of the moment.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.allocation.anchor import INDIFFERENT, CostColumns, predict_p99_ms
from policies.allocation.features import PROBE_OFFSETS, Situation, features
from policies.allocation.goals import SMOOTH_MS, SMOOTH_PER_VOLATILITY
from policies.allocation.recovery import BLOCKING_PERCENT_PER_SECOND
from policies.allocation.types import Bounds
from training.curves import Floats, RowTables, at, held, held_at, of_an_age, row_misses, user_misses, window_of
from training.estimates import KV_SIZE_CV2, Estimates
from training.worlds import STEPS, THROTTLE_SHARE, Ints, Refill, Worlds, rate_factor, second_share

MAX_STEP_PERCENT = 10.0
"""Points of usable that an action of 1 stands for, counted from the smoothed anchor: 0 is the strategy MissRatioCurve."""
LOWEST, HIGHEST = Bounds().min_emb_percent / 100.0, Bounds().max_emb_percent / 100.0
"""Bounds of the EMB share in every world: the defaults of a policy."""
MOVE_COST = 1.0
"""Reward lost by moving all of usable once, in units of the logarithm of P99."""
MOST_REGRET = 2.0
"""What a regret without end counts; a small one counts as it is."""

_DT_MS = 1000.0
_GRID: Floats = np.arange(5, 96) / 100.0
_COARSE: Floats = np.arange(5, 96, 2) / 100.0
_FORGIVEN_MS = 10.0  # of a second's requests one percent may wait without a trace in the P99
_RATE_MEMORY = 0.8
_GROUPS = 8
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Outcome:
    """What one second brought; float64[n] each.

    Attributes
    ----------
    reward
    p99_ms, best_p99_ms
        True P99, and the least that any split would reach in the long run.
    best_share
        That split.
    moved
        Share of usable moved.
    done : bool[n]
        Whether the course has ended.
    """

    reward: Floats
    p99_ms: Floats
    best_p99_ms: Floats
    best_share: Floats
    moved: Floats
    done: NDArray[np.bool_]


@dataclass(frozen=True)
class _Moment:
    """Truth at one second: misses over windows, what they hold (shares of usable), pace, costs as `Estimates` takes them."""

    emb: Floats
    kv: Floats
    emb_held: Floats
    kv_held: Floats
    rates: Floats
    costs: Floats

    @property
    def columns(self) -> CostColumns:
        """The true costs, float64[n, 1] each."""
        return CostColumns(*(self.costs[:, place, None] for place in range(len(CostColumns._fields))))

    @property
    def kv_size_cv2(self) -> Floats:
        """Spread of the history lengths, float64[n, 1]."""
        return self.costs[:, KV_SIZE_CV2, None]


class Instances:
    """n instances, each in a world of its own.

    Parameters
    ----------
    worlds
        The worlds in play; replaced one by one with those of `pool` as courses end, if there is a pool.
    tables
        Row laws.
    rng
        Of everything random from now on. What is drawn does not depend on actions, so two policies see the same courses.
    pool
        Worlds that instances go on to; without one, an instance that is done stays in its last second.
    """

    def __init__(self, worlds: Worlds, tables: RowTables, rng: np.random.Generator, *, pool: Worlds | None = None) -> None:
        n = len(worlds)
        self.worlds, self.tables, self.rng, self.pool = worlds, tables, rng, pool
        self.share = worlds.first_share.copy()
        self.estimates = Estimates(n)
        self.at_s = np.zeros(n)
        self.content = np.zeros((n, 2))  # what the two caches hold, as shares of usable: rows, users
        self._limit = self.share.copy()  # of rows, a second ago
        self.moving = np.zeros(n, dtype=np.bool_)
        self.last_action = np.zeros(n)
        self.smoothed = np.full(n, np.nan)
        self.rate_noise = np.zeros(n)
        self.kv_miss = np.full(n, 0.5)
        self.backlog = np.zeros(n)
        self.observed_p99_ms = np.full(n, np.nan)
        self.load = np.zeros(n)
        self.anchor_share = np.full(n, 0.5)
        self._begin(np.arange(n))

    def __len__(self) -> int:
        return len(self.share)

    def stagger(self) -> None:
        """Put the instances into eight groups at different points of their courses, so that they do not all end together."""
        group = np.arange(len(self)) % _GROUPS
        self._begin(np.arange(len(self)), at_s=np.floor(group * (STEPS / _GROUPS)))

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that changes, but the worlds and the random numbers; `restore` takes it."""
        own = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        theirs = {f"estimates.{name}": value for name, value in vars(self.estimates).items()}
        worlds = {f"worlds.{name}": value for name, value in vars(self.worlds).items()}
        return own | theirs | worlds

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Go on from what `state` returned."""
        for name, value in state.items():
            head, _, rest = name.partition(".")
            setattr({"estimates": self.estimates, "worlds": self.worlds}[head] if rest else self, rest or name, value.copy())

    def step(self, action: Floats) -> Outcome:
        """Let a second pass under the actions, float64[n] in -1..1."""
        action = np.clip(action, -1.0, 1.0)
        origin = np.where(np.isnan(self.smoothed), self.share, self.smoothed)
        return self._pass(origin + action * MAX_STEP_PERCENT / 100.0, action)

    def step_towards(self, wanted: Floats) -> Outcome:
        """Let a second pass with other splits wanted (shares of usable): what every strategy but a trained one does."""
        return self._pass(wanted, np.zeros(len(self)))

    def step_wanting(self, wanted: Floats, action: Floats) -> Outcome:
        """Let a second pass with splits wanted that guards made of the actions."""
        return self._pass(wanted, action)

    def _pass(self, wanted: Floats, action: Floats) -> Outcome:
        before = self.share
        self._approach(wanted)
        moved = np.abs(self.share - before)
        self.last_action = action
        self.at_s = self.at_s + 1.0
        self.rate_noise = self.rate_noise * _RATE_MEMORY + self.rng.standard_normal(len(self)) * self.worlds.jitter * 0.6
        now = self._moment()
        blocked_ms = self._fill(now)
        p99, kv_miss, load = self._p99(now, blocked_ms)
        best_share, best = self._best(now)
        self.kv_miss, self.load = kv_miss, load
        self._observe(p99)
        self.estimates.update(self.worlds, now.emb, now.kv, now.rates, now.costs, self.rng.standard_normal((len(self), 6)))
        regret = np.log(p99 / best)
        done = self.at_s >= STEPS
        if self.pool is not None:
            picked = self.rng.integers(len(self.pool), size=len(self))
            if done.any():
                self._replace(np.flatnonzero(done), picked[done])
        return Outcome(
            -(compressed(regret) + MOVE_COST * moved),
            p99,
            best,
            best_share,
            moved,
            done,
        )

    def situation(self) -> Situation:
        """Return what an agent would know now; moves the smoothed anchor on, so call it once a step."""
        known = self.estimates
        emb_held, kv_held = known.bytes_held()
        costs = known.costs(self.worlds)
        probes = np.clip(self.share[:, None] + np.array(PROBE_OFFSETS), LOWEST, HIGHEST)
        splits = np.concatenate((np.broadcast_to(_GRID, (len(self), len(_GRID))), probes), axis=1)
        emb, kv = at(emb_held, known.emb, splits), at(kv_held, known.kv, 1.0 - splits)
        p99 = _predict(emb, kv, costs, known.kv_size_cv2[:, None])
        tried, probed = p99[:, : len(_GRID)], slice(len(_GRID), None)
        good = tried <= tried.min(axis=1, keepdims=True) * (1.0 + INDIFFERENT)
        place = np.where(good, np.abs(_GRID - self.share[:, None]), np.inf).argmin(axis=1)
        self.anchor_share = _GRID[place]
        emb_volatility, kv_volatility = known.volatility(self.worlds)
        tau_s = SMOOTH_MS / 1000.0 * (1.0 + SMOOTH_PER_VOLATILITY * np.maximum(emb_volatility, kv_volatility))
        smoothed = self.smoothed + (self.anchor_share - self.smoothed) * -np.expm1(-1.0 / tau_s)
        self.smoothed = np.where(np.isnan(self.smoothed), self.anchor_share, smoothed)
        return Situation(
            emb_share=self.share,
            anchor_share=self.anchor_share,
            smoothed_anchor_share=self.smoothed,
            anchor_p99_ms=tried[np.arange(len(self)), place],
            probe_emb_miss=emb[:, probed],
            probe_kv_miss=kv[:, probed],
            probe_p99_ms=p99[:, probed],
            **{name: column[:, 0] for name, column in costs._asdict().items()},
            kv_size_cv2=known.kv_size_cv2,
            emb_volatility=emb_volatility,
            kv_volatility=kv_volatility,
            emb_samples=known.samples[:, 0],
            kv_samples=known.samples[:, 1],
            observed_p99_ms=self.observed_p99_ms,
            utilisation=np.minimum(self.load, 1.02),
            utilisation_slow=np.minimum(known.usual_load, 1.02),
            refill_blocking=(self.worlds.refill == Refill.BLOCKING).astype(np.float64),
            backlog_share=self.backlog,
            last_action=self.last_action,
        )

    def features(self) -> NDArray[np.float32]:
        """Return the features of `situation`, float32[n, 31]; once a step."""
        return features(self.situation())

    def best_share(self) -> Floats:
        """Return the split with the least P99 in the long run under the laws of this moment: the truth, which no agent knows."""
        return self._best(self._moment())[0]

    def _approach(self, wanted: Floats) -> None:
        """Bounds, deadband and slew, as `policies.allocation.strategy` has them (without granules)."""
        distance = np.clip(wanted, LOWEST, HIGHEST) - self.share
        blocking = self.worlds.refill == Refill.BLOCKING
        slew = np.where(blocking, np.minimum(self.worlds.slew, BLOCKING_PERCENT_PER_SECOND / 100.0), self.worlds.slew)
        moving = self.moving | (np.abs(distance) > self.worlds.deadband)
        step = np.where(moving, np.clip(distance, -slew, slew), 0.0)
        self.moving = moving & (np.abs(distance - step) > 1e-9)
        self.share = self.share + step

    def _moment(self) -> _Moment:
        w = self.worlds
        second = second_share(w, self.at_s)
        shares = np.stack((1.0 - second, second), axis=1)
        arrival = w.arrival_per_s * rate_factor(w, self.at_s) * np.exp(self.rate_noise)
        pace = arrival / 1000.0
        asked = shares * w.tokens
        tokens = asked.sum(axis=1)
        kv_rate = pace * tokens * w.kv_token_bytes / w.usable_bytes
        again = w.rows_per_token * self.kv_miss
        rows_asked = shares * (w.rows + again[:, None] * w.tokens)
        accesses = pace * rows_asked.sum(axis=1)
        emb_rate = accesses * w.row_bytes / w.usable_bytes
        age_ms = np.maximum(self.at_s[:, None] - w.starts, 0.0) * 1000.0
        kv = emb = kv_seen = emb_seen = np.zeros(())
        for crowd in (0, 1):
            users = user_misses(
                never=w.never[:, crowd],
                short=w.short[:, crowd],
                short_ms=w.short_ms[:, crowd],
                long_ms=w.long_ms[:, crowd],
                steepness=w.steepness[:, crowd],
            )
            part = asked[:, crowd] / tokens
            kv, kv_seen = _add(kv, kv_seen, part, users, age_ms[:, crowd])
            part = rows_asked[:, crowd] / np.maximum(rows_asked.sum(axis=1), 1e-12)
            rows = row_misses(self.tables, w.law[:, crowd], accesses * part, w.drift[:, crowd])
            emb, emb_seen = _add(emb, emb_seen, part, rows, age_ms[:, crowd])
        squares = (shares * w.tokens * w.tokens * (1.0 + w.tokens_cv2)).sum(axis=1)
        costs = np.stack(
            (
                w.ms_per_row,
                w.ms_per_token,
                w.rows_per_token,
                w.base_ms,
                w.variance_ms2,
                arrival,
                (shares * w.rows).sum(axis=1),
                tokens,
                np.maximum(squares / (tokens * tokens) - 1.0, 0.0),
                self.load,
            ),
            axis=1,
        )
        return _Moment(
            emb=emb,
            kv=kv,
            emb_held=held(emb_seen * emb_rate[:, None]),
            kv_held=held(kv_seen * kv_rate[:, None]),
            rates=np.stack((emb_rate, kv_rate), axis=1),
            costs=costs,
        )

    def _fill(self, now: _Moment) -> Floats:
        """Let the contents follow the limits for a second; return the milliseconds in which nothing was served."""
        w = self.worlds
        limits = np.stack((self.share, 1.0 - self.share), axis=1)
        room = np.minimum(limits[:, 0], now.emb_held[:, -1]) - np.minimum(self.content[:, 0], limits[:, 0])
        for side, held_by in enumerate((now.emb_held, now.kv_held)):
            limit = limits[:, side]
            content = np.minimum(self.content[:, side], limit)  # a smaller limit cuts at once
            grown = held_at(held_by, window_of(held_by, content) + _DT_MS)
            self.content[:, side] = np.clip(grown, content, limit)
        link = w.link_bytes_per_ms / w.usable_bytes  # share of usable a millisecond
        lacking = np.maximum(np.minimum(limits[:, 0], now.emb_held[:, -1]) - self.content[:, 0], 0.0)
        throttled = w.refill == Refill.THROTTLED
        loaded = np.where(throttled, np.minimum(THROTTLE_SHARE * link * _DT_MS, lacking), 0.0)
        self.backlog = np.where(throttled, lacking - loaded, 0.0)
        at_once = np.where((w.refill == Refill.BLOCKING) & (limits[:, 0] > self._limit), np.maximum(room, 0.0), 0.0)
        self.content[:, 0] = np.minimum(
            np.maximum(self.content[:, 0] + loaded, np.where(at_once > 0.0, limits[:, 0], 0.0)), limits[:, 0]
        )
        self._limit = limits[:, 0].copy()
        return np.asarray(at_once / link)

    def _p99(self, now: _Moment, blocked_ms: Floats) -> tuple[Floats, Floats, Floats]:
        """True P99, KV misses and load of this second."""
        emb, kv = at(now.emb_held, now.emb, self.content[:, :1]), at(now.kv_held, now.kv, self.content[:, 1:])
        slowed = np.where((self.worlds.refill == Refill.THROTTLED) & (self.backlog > 0.0), 1.0 / (1.0 - THROTTLE_SHARE), 1.0)
        true, slowed = now.columns, slowed[:, None]
        costs = true._replace(ms_per_emb_miss_row=true.ms_per_emb_miss_row * slowed)
        p99 = predict_p99_ms(emb, kv, costs=costs, kv_size_cv2=now.kv_size_cv2)[:, 0]
        lost = true.kv_tokens_per_request * kv
        rows = true.emb_rows_per_request + true.emb_rows_per_kv_miss_token * lost
        service = true.base_service_ms + rows * emb * true.ms_per_emb_miss_row * slowed + lost * true.ms_per_kv_miss_token
        load = true.arrival_per_s * service / 1000.0
        return p99 + np.maximum(blocked_ms - _FORGIVEN_MS, 0.0), kv[:, 0], load[:, 0]

    def _best(self, now: _Moment) -> tuple[Floats, Floats]:
        """The best split in the long run and its P99."""
        splits = np.broadcast_to(_COARSE, (len(self), len(_COARSE)))
        emb, kv = at(now.emb_held, now.emb, splits), at(now.kv_held, now.kv, 1.0 - splits)
        p99 = _predict(emb, kv, now.columns, now.kv_size_cv2)
        place = p99.argmin(axis=1)
        return _COARSE[place], p99[np.arange(len(self)), place]

    def _observe(self, p99: Floats) -> None:
        w = self.worlds
        wrong = np.exp(w.p99_bias + w.p99_noise * self.rng.standard_normal(len(self)))
        self.observed_p99_ms = np.where(self.rng.random(len(self)) < w.p99_missing, np.nan, p99 * wrong)

    def _replace(self, where: Ints, picked: Ints) -> None:
        assert self.pool is not None
        self.worlds.put(where, self.pool.take(picked))
        self._begin(where)

    def _begin(self, where: Ints, *, at_s: Floats | None = None) -> None:
        """Put instances at the start of their course, caches full and estimates ripe."""
        self.share[where] = self._limit[where] = self.worlds.first_share[where]
        self.at_s[where] = 0.0 if at_s is None else at_s[where]
        self.moving[where] = False
        self.last_action[where] = 0.0
        self.smoothed[where] = np.nan
        self.rate_noise[where] = 0.0
        self.backlog[where] = 0.0
        self.observed_p99_ms[where] = np.nan
        for _ in range(2):  # KV misses and the pace of rows depend on each other
            now = self._moment()
            limits = np.stack((self.share, 1.0 - self.share), axis=1)
            most = np.stack((now.emb_held[:, -1], now.kv_held[:, -1]), axis=1)
            self.content[where] = np.minimum(limits, most)[where]
            _, kv_miss, load = self._p99(now, np.zeros(len(self)))
            self.kv_miss[where], self.load[where] = kv_miss[where], load[where]
        draws = self.rng.standard_normal((len(self), 6))[where]
        now = self._moment()
        self.estimates.begin(
            where, self.worlds.take(where), now.emb[where], now.kv[where], now.rates[where], now.costs[where], draws
        )


def compressed(regret: Floats) -> Floats:
    """Return a regret (logarithm of P99 over the best) as the reward counts it: a small one as it is, at most `MOST_REGRET`."""
    return np.asarray(MOST_REGRET * -np.expm1(-np.maximum(regret, -0.5) / MOST_REGRET))


def _predict(emb: Floats, kv: Floats, costs: CostColumns, kv_size_cv2: Floats) -> Floats:
    """Predict P99 for some rows at a time, so that intermediate results stay in the processor's cache: twice as fast."""
    out = np.empty_like(emb)
    for first in range(0, len(emb), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        some = CostColumns(*(column[rows] for column in costs))
        out[rows] = predict_p99_ms(emb[rows], kv[rows], costs=some, kv_size_cv2=kv_size_cv2[rows])
    return out


def _add(whole: Floats, seen: Floats, part: Floats, misses: Floats, age_ms: Floats) -> tuple[Floats, Floats]:
    """Add a crowd's share of misses: all of them, and those whose content can exist already."""
    missed, holding = of_an_age(misses, age_ms)
    return np.asarray(whole + part[:, None] * missed), np.asarray(seen + part[:, None] * holding)
