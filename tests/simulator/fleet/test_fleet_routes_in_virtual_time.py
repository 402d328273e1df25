"""Users move when the table changes and leave their state behind; instances come and go; nobody's request is lost."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fleet_logs import MIB, Scripted, a_fleet, a_log, as_rank_requests, core_config
from numpy.typing import NDArray

from policies.routing.table import ChurnBudget
from simulator.core.instance import GRInstanceCore
from simulator.fleet.build import WarmUsers
from simulator.fleet.config import Level
from simulator.fleet.result import FleetResult
from simulator.fleet.routing import Arrivals, Life, Presence, RoutingObservation, TableRouting
from simulator.fleet.run import simulate
from simulator.physics.batching import BatchRules
from simulator.replay import even_slots

SLOTS = 4096


class Routes:
    """A routing policy that does what a function says, and keeps what it saw."""

    def __init__(self, choose: Callable[[float, Arrivals], Any], interval_ms: float = math.inf) -> None:
        self.interval_ms = interval_ms
        self.seen: list[tuple[float, Sequence[RoutingObservation], Arrivals]] = []
        self._choose = choose

    def route(self, now_ms: float, observations: Sequence[RoutingObservation], arrivals: Arrivals) -> NDArray[np.int64]:
        self.seen.append((now_ms, observations, arrivals))
        return np.asarray(self._choose(now_ms, arrivals), dtype=np.int64)


def columns(result: FleetResult) -> list[Any]:
    names = ("instance", "latency_ms", "service_ms", "kv_hit_tokens", "host_hit_tokens", "rows_asked", "rows_missed")
    return [getattr(result, name) for name in names]


@pytest.mark.parametrize("level", [Level.SAMPLED, Level.REDUCED])
@pytest.mark.parametrize("batching", [None, BatchRules(window_ms=5.0)])
def test_a_policy_that_never_moves_anybody_is_the_table_that_stands_still(level: Level, batching: BatchRules | None) -> None:
    log, fleet = a_log(), a_fleet(host_bytes=256 * MIB, batching=batching)
    owners = np.array(even_slots(4))
    warm = WarmUsers(user=np.arange(20, dtype=np.uint32), tokens=np.full(20, 500, dtype=np.int32))
    still = simulate(log, fleet, level=level, seed=1, warm=warm)
    for interval_ms in (math.inf, 500.0):
        routes = Routes(lambda _, arrivals: owners[arrivals.slot], interval_ms)
        routed = simulate(log, fleet, level=level, routing=routes, seed=1, warm=warm)
        for mine, known in zip(columns(routed), columns(still), strict=True):
            np.testing.assert_array_equal(mine, known)
        assert routed.bytes_by_class == still.bytes_by_class
        np.testing.assert_array_equal(routed.windows.kv_used_bytes, still.windows.kv_used_bytes)
        assert set(routed.counts.values()) == {0}


def test_moved_users_find_what_cores_would_have_kept_for_them_and_no_more() -> None:
    """Everybody moves on to the next instance twice, and is back at home at last."""
    log, fleet = a_log(rows_per_token=0), a_fleet(pool_bytes=768 * MIB)
    turn_ms = log.duration_ms / 4
    shift = lambda at: np.asarray([0, 1, 2, 0])[np.minimum(np.asarray(at) // turn_ms, 3).astype(int)]  # noqa: E731

    def owner(at_ms: Any, user: Any) -> Any:
        return (log.user_slots[user].astype(np.int64) + shift(at_ms)) % 4

    routes = Routes(lambda _, arrivals: owner(arrivals.arrival_ms, arrivals.user), turn_ms)
    mine = simulate(log, fleet, level=Level.EXACT, routing=routes, seed=1)
    cores = [GRInstanceCore(core_config(fleet, log.laws[0]), number) for number in range(4)]
    expected = owner(log.arrival_ms, log.user)
    answers = [
        cores[at].rank(request, request.arrival_ms or 0.0) for at, request in zip(expected, as_rank_requests(log), strict=True)
    ]
    np.testing.assert_array_equal(mine.instance, expected)
    np.testing.assert_array_equal(mine.kv_hit_tokens, [answer.kv_tokens_hit for answer in answers])
    np.testing.assert_allclose(mine.latency_ms, [answer.latency_ms for answer in answers], rtol=1e-9)
    before: dict[int, int] = {}
    moved = np.zeros(len(log), dtype=bool)
    for place, user in enumerate(log.user.tolist()):
        moved[place] = before.get(user, mine.instance[place]) != mine.instance[place]
        before[user] = int(mine.instance[place])
    missed = log.history_tokens - mine.kv_hit_tokens
    assert mine.counts["requestsMoved"] == moved.sum() > 0
    assert mine.counts["usersMoved"] == len(np.unique(log.user[moved]))
    assert mine.counts["tokensMissedAfterMoves"] == missed[moved].sum()
    assert mine.counts["requestsMissedAfterMoves"] == (moved & (mine.kv_hit_tokens == 0)).sum()
    assert (moved & (mine.kv_hit_tokens > 0)).sum() > 0, "back at home, some find what they left"


def test_a_drain_empties_one_instance_and_moves_nobody_else() -> None:
    log, fleet = a_log(per_second=200.0), a_fleet()
    lives = [Life(), Life(drains_ms=8000.0), Life(), Life()]
    table = TableRouting(interval_ms=1000.0)
    mine = simulate(log, fleet, level=Level.REDUCED, routing=table, lives=lives, seed=1)
    after = log.arrival_ms >= 8000.0
    assert (mine.instance[~after] == 1).any()
    assert not (mine.instance[after] == 1).any()
    stay = simulate(log, fleet, level=Level.REDUCED, routing=TableRouting(interval_ms=1000.0), seed=1)
    others = stay.instance != 1
    np.testing.assert_array_equal(mine.instance[others], stay.instance[others])
    assert mine.counts["requestsRetried"] == 0
    [(at_ms, plan)] = [(at_ms, plan) for at_ms, plan in table.plans if plan.forced_slots]
    assert (at_ms, plan.moved_slots) == (8000.0, plan.forced_slots)


@pytest.mark.parametrize("batching", [None, BatchRules(window_ms=20.0)])
def test_what_a_dying_instance_had_in_hand_begins_anew_elsewhere(batching: BatchRules | None) -> None:
    log, fleet = a_log(per_second=4000.0), a_fleet(batching=batching)
    dies_ms, noticed_ms = 500.0, 200.0
    lives = [Life(), Life(), Life(dies_ms=dies_ms, noticed_ms=noticed_ms), Life()]
    table = TableRouting(interval_ms=1000.0)
    mine = simulate(log, fleet, level=Level.REDUCED, routing=table, lives=lives, seed=1)
    stay = simulate(log, fleet, level=Level.REDUCED, routing=TableRouting(interval_ms=1000.0), seed=1)
    done_ms = log.arrival_ms + mine.latency_ms
    assert done_ms[mine.instance == 2].max() <= dies_ms
    in_hand = (stay.instance == 2) & (log.arrival_ms < dies_ms) & (log.arrival_ms + stay.latency_ms > dies_ms)
    unnoticed = (stay.instance == 2) & (log.arrival_ms >= dies_ms) & (log.arrival_ms < dies_ms + noticed_ms)
    assert mine.counts["requestsRetried"] == in_hand.sum() + unnoticed.sum()
    assert in_hand.any()
    assert (done_ms[in_hand] > dies_ms).all()
    assert mine.latency_ms.min() > 0.0
    early = log.arrival_ms + stay.latency_ms <= dies_ms
    np.testing.assert_array_equal(mine.latency_ms[early], stay.latency_ms[early])
    [(at_ms, _)] = [(at_ms, plan) for at_ms, plan in table.plans if plan.forced_slots]
    assert at_ms == dies_ms + noticed_ms


def test_a_new_instance_starts_cold_and_gets_its_share_in_steps_under_the_budget() -> None:
    log, fleet = a_log(6000, users=1500, per_second=300.0), a_fleet(pool_bytes=512 * MIB)
    lives = [Life(), Life(), Life(), Life(joins_ms=5000.0)]
    budget = ChurnBudget(max_moved_percent=5.0, window_ms=2000.0)
    table = TableRouting(budget=budget, interval_ms=500.0, warm_ms=10_000.0)
    mine = simulate(log, fleet, level=Level.SAMPLED, routing=table, lives=lives, seed=1)
    new = mine.instance == 3
    assert log.arrival_ms[new].min() >= 5000.0
    first = np.flatnonzero(new)[:20]
    asked, missed = (getattr(mine, name)[first].sum() for name in ("rows_asked", "rows_missed"))
    settled = mine.rows_missed[-500:].sum() / mine.rows_asked[-500:].sum()
    assert missed / asked > 2 * settled, "rows of a new instance come one by one"
    at_ms = np.array([at for at, plan in table.plans])
    slots = np.array([plan.moved_slots for _, plan in table.plans])
    for at in at_ms:
        assert slots[(at_ms > at - 2000.0) & (at_ms <= at)].sum() <= 0.05 * SLOTS + 1
    assert any(plan.deferred_slots for _, plan in table.plans)
    share = [new[(log.arrival_ms >= at) & (log.arrival_ms < at + 2000.0)].mean() for at in (5000.0, 10_000.0, 17_000.0)]
    assert 0.0 < share[0] < share[1] < share[2]
    assert mine.counts["usersMoved"] > 0


def test_balancing_by_request_is_a_routing_policy_too_and_hits_less() -> None:
    log, fleet = a_log(), a_fleet()
    random = np.random.default_rng(5)
    anywhere = simulate(log, fleet, routing=Routes(lambda _, arrivals: random.integers(0, 4, len(arrivals))), seed=1)
    table = simulate(log, fleet, routing=TableRouting(), seed=1)
    assert anywhere.kv_hit_tokens.sum() < 0.8 * table.kv_hit_tokens.sum()
    assert anywhere.counts["requestsMoved"] > 0.5 * len(log)
    assert table.counts["requestsMoved"] == 0

    class LeastLoaded(Routes):
        def route(self, now_ms: float, observations: Sequence[RoutingObservation], arrivals: Arrivals) -> NDArray[np.int64]:
            super().route(now_ms, observations, arrivals)
            idle = min((seen.waiting_ms, seen.instance) for seen in observations)[1]
            return np.full(len(arrivals), idle, dtype=np.int64)

    least = simulate(log, fleet, routing=LeastLoaded(lambda _, arrivals: np.zeros(len(arrivals)), 20.0), seed=1)
    assert np.bincount(least.instance)[:2].min() > 0.2 * len(log), "the first, or the second when that one is busy"


def test_a_policy_is_told_what_the_routing_loop_could_know() -> None:
    log, fleet = a_log(per_second=200.0), a_fleet()
    lives = [Life(), Life(joins_ms=4000.0), Life(dies_ms=9000.0, noticed_ms=500.0), Life(drains_ms=6000.0)]
    routes = Routes(lambda _, arrivals: np.where(arrivals.slot % 2, 0, 2), 1000.0)
    mine = simulate(log, fleet, routing=routes, lives=lives, seed=1)
    presence = {at_ms: [seen.presence for seen in observations] for at_ms, observations, _ in routes.seen}
    ready, absent, draining, gone = Presence.READY, Presence.ABSENT, Presence.DRAINING, Presence.GONE
    assert presence[0.0] == [ready, absent, ready, ready]
    assert presence[4000.0] == [ready, ready, ready, ready]
    assert presence[6000.0] == [ready, ready, ready, draining]
    assert presence[9000.0] == [ready, ready, ready, draining], "nobody has noticed yet"
    assert presence[9500.0] == [ready, ready, gone, draining]
    assert sum(len(arrivals) for _, _, arrivals in routes.seen) == len(log)
    told = sum(seen.kv_tokens_hit for _, observations, _ in routes.seen for seen in observations)
    last_look = routes.seen[-1][0]
    assert told >= mine.kv_hit_tokens[log.arrival_ms < last_look].sum() > 0
    assert max(seen.waiting_ms for _, observations, _ in routes.seen for seen in observations) > 0.0


def test_splits_move_while_users_do() -> None:
    log, fleet = a_log(), a_fleet()
    policy = Scripted(1500.0, [40 * MIB, 120 * MIB, 20 * MIB])
    lives = [Life(), Life(), Life(dies_ms=2500.0), Life(joins_ms=3500.0)]
    run: dict[str, Any] = {"level": Level.SAMPLED, "lives": lives, "seed": 1}
    mine = simulate(log, fleet, split=policy, routing=TableRouting(interval_ms=1000.0), **run)
    assert [[seen.instance for seen in one] for one in policy.seen[:3]] == [[0, 1, 2], [0, 1], [0, 1, 3]]
    assert sum(seen.requests for one in policy.seen for seen in one) <= len(log) + mine.counts["requestsRetried"]
    assert [(move.at_ms, move.instance) for move in mine.moves[:3]] == [(1500.0, 0), (1500.0, 1), (1500.0, 2)]
    again = simulate(log, fleet, split=Scripted(1500.0, policy.wanted), routing=TableRouting(interval_ms=1000.0), **run)
    assert mine.digest == again.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lives": [Life()] * 4}, r"^lives: .*under a table that stands still"),
        ({"routing": TableRouting(), "lives": [Life()] * 3}, r"^lives: 3 of them for 4"),
        ({"routing": TableRouting(), "lives": [Life(dies_ms=5.0 + n) for n in range(4)]}, r"^lives: at 8.0 ms no instance"),
        ({"routing": TableRouting(), "lives": [Life(joins_ms=1.0)] * 4}, r"^lives: at 0.0 ms no instance"),
        ({"routing": Routes(lambda _, arrivals: [4] * len(arrivals))}, r"^routing: .*within 0..3"),
        ({"routing": Routes(lambda _, arrivals: [0])}, r"^routing: "),
        ({"routing": Routes(lambda _, arrivals: [0], 1e-9)}, r"^routing: .*looks"),
    ],
)
def test_what_cannot_be_routed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(a_log(100), a_fleet(), seed=1, **changes)


@pytest.mark.parametrize("life", [{"joins_ms": -1.0}, {"joins_ms": 5.0, "dies_ms": 5.0}, {"noticed_ms": math.nan}])
def test_a_life_that_ends_before_it_begins_is_refused(life: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^lives: "):
        Life(**life)
