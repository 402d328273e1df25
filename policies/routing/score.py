"""What a request of each user would cost on each instance, in milliseconds, and where each user would best be.

Model: a request waits for the queue, recomputes or loads the history that no cache in HBM holds, and fetches the rows that the
EMB cache misses. The score is minus that sum, so a difference of scores is what a move saves. Residency is scaled by how far it
is trusted: a copy that nobody has confirmed for long attracts less. The place where a user is now counts in full and moves ahead
by a margin, so that old news and noise move nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.routing.types import InstanceFacts

NOBODY = -1
CHOICES = 4
"""How many places are kept for a user, the best first."""
UNLIKE = 2.0
"""How many times more or less than the median of its pool a token or a row may cost."""
_CELLS = 1 << 19  # of one block: stays near the processor's caches


class Costs(NamedTuple):
    """Costs by instance, float32[instances]; for the rows also float32[users, instances], where users differ.

    `token_ms`, `host_ms`, `ssd_ms`: a history token that is recomputed, or loaded from a tier. `rows_ms`: rows that miss.
    `wait_ms`: work that waits.
    """

    token_ms: NDArray[np.float32]
    host_ms: NDArray[np.float32]
    ssd_ms: NDArray[np.float32]
    rows_ms: NDArray[np.float32]
    wait_ms: NDArray[np.float32]


class Known(NamedTuple):
    """Residency as columns, one row a pair of user and instance: where, how many tokens by tier, how far it is trusted (0..1)."""

    user: NDArray[np.int64]
    instance: NDArray[np.int64]
    hbm: NDArray[np.float32]
    host: NDArray[np.float32]
    ssd: NDArray[np.float32]
    confidence: NDArray[np.float32]


class Wishes(NamedTuple):
    """Where users would go.

    `choices`, int64[users, CHOICES]: instances other than the one at home, the best first, NOBODY behind the last.
    `saved_ms`, float64[users, CHOICES]: what each saves against being at home. `kept`, bool[users]: is away from home now.
    """

    choices: NDArray[np.int64]
    saved_ms: NDArray[np.float64]
    kept: NDArray[np.bool_]


def costs_of(facts: Sequence[InstanceFacts], *, refill_slowdown: float = 1.25, most_wait_ms: float = math.inf) -> Costs:
    """Return the costs of some instances, which are those of one pool: none is far from the others.

    What a token that is computed or loaded from the host, or a row, costs counts within a factor of `UNLIKE` of the median.
    Waiting and the rows that miss each count up to a limit above the least of those that may serve. So an instance that says that
    it works for nothing, or asks for endless rows, draws no user from its state. What is unknown of one (NaN, infinite) is taken
    from the others, and is no reason for anything where it is unknown of all; what is negative counts as 0. Loading is never
    dearer than recomputing.
    """
    slower = np.array([refill_slowdown if fact.refilling else 1.0 for fact in facts])
    token_ms = _near_median(fact.ms_per_token_recompute for fact in facts)
    host_ms = _near_median(fact.ms_per_token_host for fact in facts)
    ssd_ms = _known_or(host_ms, [fact.ms_per_token_ssd for fact in facts])
    rows = _near_median(fact.rows_per_request for fact in facts)
    missed = 1.0 - np.minimum(known_or_mean(fact.emb_overlap for fact in facts), 1.0)
    rows_ms = missed * (rows.mean() if len(rows) else 0.0) * _near_median(fact.ms_per_row for fact in facts) * slower
    host_ms, ssd_ms = np.minimum(host_ms * slower, token_ms), np.minimum(ssd_ms * slower, token_ms)
    wait_ms = known_or_mean(fact.queue_ms for fact in facts)
    eligible = np.array([fact.eligible for fact in facts], dtype=np.bool_)
    rows_ms, wait_ms = (_above_least(cost, eligible, most_wait_ms) for cost in (rows_ms, wait_ms))
    return Costs(*(np.asarray(cost, dtype=np.float32) for cost in (token_ms, host_ms, ssd_ms, rows_ms, wait_ms)))


def _near_median(values: Iterable[float]) -> NDArray[np.float64]:
    """Return values from 0 up, within a factor of `UNLIKE` of the median of the known ones; the median where one is not known.

    Where most say that it costs nothing, there is no measure for the others.
    """
    given = np.array(list(values), dtype=np.float64)
    known = given[np.isfinite(given)]
    median = float(np.median(np.maximum(known, 0.0))) if len(known) else 0.0
    costs = _known_or(np.full(len(given), median), given.tolist())
    return np.clip(costs, median / UNLIKE, median * UNLIKE) if median > 0.0 else costs


def _above_least(cost_ms: NDArray[np.float64], eligible: NDArray[np.bool_], most_ms: float) -> NDArray[np.float64]:
    """Return costs up to a limit above the least one of those that may serve."""
    least = float(cost_ms[eligible].min()) if eligible.any() else 0.0
    return np.minimum(cost_ms, least + most_ms)


def known_or_mean(values: Iterable[float]) -> NDArray[np.float64]:
    """Return values from 0 up, with the mean of the known ones (0 without any) where one is not a finite number."""
    given = np.array(list(values), dtype=np.float64)
    known = given[np.isfinite(given)]
    mean = float(np.maximum(known, 0.0).mean()) if len(known) else 0.0
    return _known_or(np.full(len(given), mean), given.tolist())


def _known_or(other: NDArray[np.float64], values: Sequence[float]) -> NDArray[np.float64]:
    given = np.array(values, dtype=np.float64)
    return np.where(np.isfinite(given), np.maximum(np.nan_to_num(given), 0.0), other)


def scores_ms(
    costs: Costs,
    *,
    history: NDArray[np.float32],
    hbm: NDArray[np.float32],
    host: NDArray[np.float32],
    ssd: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return minus the expected milliseconds of a request, float32[users, instances].

    Parameters
    ----------
    costs
        By instance.
    history
        float32[users], tokens of each user's history.
    hbm, host, ssd
        float32[users, instances], tokens that a tier holds, scaled by how far that is trusted.
    """
    out = hbm * costs.token_ms
    out += host * (costs.token_ms - costs.host_ms)
    out += ssd * (costs.token_ms - costs.ssd_ms)
    out -= history[:, None] * costs.token_ms
    out -= costs.rows_ms + costs.wait_ms
    return out


def weigh(
    known: Known,
    costs: Costs,
    *,
    home: NDArray[np.int64],
    current: NDArray[np.int64],
    eligible: NDArray[np.bool_],
    settled: NDArray[np.bool_],
    margin_ms: float,
) -> Wishes:
    """Return where each user would go.

    Parameters
    ----------
    known
        Residency; users and instances as numbers, each pair at most once.
    costs
        By instance.
    home
        int64[users], where the slot of a user points; NOBODY for nowhere.
    current
        int64[users], where an override sends it now; NOBODY for none.
    eligible
        bool[instances], who may be given users.
    settled
        bool[users], users that stay where they are as long as that is eligible, because too little is known.
    margin_ms
        What a move must save, and more than that.

    Returns
    -------
    Wishes
        A user that is to be at home has no choices. One whose home is not eligible is compared with an average instance without
        its state.
    """
    users, instances = len(home), len(eligible)
    out = Wishes(
        choices=np.full((users, CHOICES), NOBODY, dtype=np.int64),
        saved_ms=np.zeros((users, CHOICES)),
        kept=(current != NOBODY) & (current != home) & _at(eligible, current),
    )
    if not eligible.any():
        return out
    order = np.argsort(known.user, kind="stable")
    rows = Known._make(column[order] for column in known)
    step = max(1, _CELLS // max(instances, 1))
    for start in range(0, users, step):
        part = slice(start, min(start + step, users))
        first, last = np.searchsorted(rows.user, (part.start, part.stop))
        mine = Known._make(column[first:last] for column in rows)
        mine = mine._replace(user=mine.user - start)
        block = _Block(mine, _of_users(costs, part), home[part], current[part], eligible, settled[part])
        _rank(block, Wishes._make(column[part] for column in out), margin_ms)
    return out


class _Block(NamedTuple):
    known: Known
    costs: Costs
    home: NDArray[np.int64]
    current: NDArray[np.int64]
    eligible: NDArray[np.bool_]
    settled: NDArray[np.bool_]


def _of_users(costs: Costs, part: slice) -> Costs:
    return costs if costs.rows_ms.ndim == 1 else costs._replace(rows_ms=costs.rows_ms[part])


def _at(values: NDArray[np.bool_], places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the value at each place, False for NOBODY."""
    return np.append(values, False)[places]


def _rank(block: _Block, out: Wishes, margin_ms: float) -> None:
    """Fill in the wishes of a block of users."""
    users = np.arange(len(block.home))
    here = np.where(out.kept, block.current, np.where(_at(block.eligible, block.home), block.home, NOBODY))
    score, nowhere = _scores_of(block, here)
    score[:, ~block.eligible] = -np.inf
    at_home = np.where(_at(block.eligible, block.home), score[users, block.home], nowhere)
    at_here = np.where(here != NOBODY, score[users, here], nowhere)
    left = score.copy()
    placed = users[here != NOBODY]
    # Just above the margin: of equals, the place where a user is comes first.
    left[placed, here[placed]] = np.nextafter(left[placed, here[placed]] + np.float32(margin_ms), np.float32(np.inf))
    left[block.settled] = -np.inf
    stays = users[block.settled & out.kept]
    left[stays, here[stays]] = 0.0
    open_, ahead, filled = np.ones(len(users), dtype=np.bool_), np.ones(len(users), dtype=np.bool_), np.zeros_like(users)
    for _ in range(min(CHOICES, len(block.eligible))):
        best = left.argmax(axis=1)
        open_ &= (left[users, best] > -np.inf) & (best != block.home)
        mine = score[users, best]
        left[users, best] = -np.inf
        same = best == here
        gains = np.where(ahead, mine - at_here > margin_ms, mine - at_home > margin_ms)
        taken = users[open_ & (same | gains)]
        out.choices[taken, filled[taken]] = best[taken]
        out.saved_ms[taken, filled[taken]] = (mine - at_home)[taken]
        filled[taken] += 1
        ahead &= ~same


def _scores_of(block: _Block, here: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the scores, and those of an average instance that holds nothing of the user."""
    known, costs, users = block.known, block.costs, len(block.home)
    history = np.zeros(users, dtype=np.float32)
    np.maximum.at(history, known.user, known.hbm + known.host + known.ssd)
    trust = np.where(known.instance == here[known.user], np.float32(1.0), known.confidence)
    tiers = []
    for tokens in (known.hbm, known.host, known.ssd):
        dense = np.zeros((users, len(block.eligible)), dtype=np.float32)
        dense[known.user, known.instance] = tokens * trust
        tiers.append(dense)
    score = scores_ms(costs, history=history, hbm=tiers[0], host=tiers[1], ssd=tiers[2])
    able = block.eligible
    fixed = (costs.rows_ms + costs.wait_ms)[..., able].mean(axis=-1)
    nowhere = np.broadcast_to(-(history * costs.token_ms[able].mean() + fixed), (users,))
    return score, np.asarray(nowhere, dtype=np.float32)


def confidence_at(age_ms: float, *, fresh_ms: float, half_life_ms: float) -> float:
    """Return how far residency of some age is trusted: 1 while it is fresh, then half of it after each half-life."""
    over = age_ms - fresh_ms
    if not over > 0.0:
        return 1.0
    return 0.5 ** min(over / half_life_ms, 1000.0) if half_life_ms > 0.0 and math.isfinite(over) else 0.0
