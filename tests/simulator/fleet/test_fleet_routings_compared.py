"""Routings to compare: each does what its name says, all stay within what routing could know, and the joint score finds most."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fleet_logs import MIB, a_fleet, a_log

from policies.routing.types import Limits, LoadBound
from simulator.fleet.config import FleetConfig
from simulator.fleet.result import FleetResult
from simulator.fleet.routing import Life, RoutingPolicy
from simulator.fleet.routings.choices import BoundedHash, LeastLoaded, RandomRouting, Scored, Terms
from simulator.fleet.routings.gateway import Gateway
from simulator.fleet.routings.overrides import OverrideRouting
from simulator.fleet.routings.work import work_of
from simulator.fleet.run import simulate
from simulator.request_log import RequestLog

LOG, FLEET = a_log(3000, per_second=200.0), a_fleet(pool_bytes=512 * MIB)
Making = Callable[[RequestLog, FleetConfig], Gateway]


def scored(**terms: bool) -> Making:
    return lambda log, fleet: Scored(work_of(fleet, log), terms=Terms(**terms), users=log.users, instances=fleet.instances)


def plain(kind: type[Gateway], **more: Any) -> Making:
    return lambda log, fleet: kind(work_of(fleet, log), users=log.users, instances=fleet.instances, **more)


ALL: dict[str, Making] = {
    "random": plain(RandomRouting, seed=1),
    "least loaded": plain(LeastLoaded),
    "hash": plain(BoundedHash),
    "kv": scored(kv=True),
    "emb": scored(emb=True),
    "load": scored(load=True),
    "joint": scored(kv=True, emb=True, load=True),
    "overrides": plain(OverrideRouting),
}


def served(routing: RoutingPolicy, log: RequestLog = LOG, fleet: FleetConfig = FLEET, **more: Any) -> FleetResult:
    return simulate(log, fleet, routing=routing, seed=1, **more)


def found(result: FleetResult) -> int:
    return int(result.kv_hit_tokens.sum())


@pytest.mark.parametrize("name", ALL)
def test_a_routing_serves_everybody_the_same_way_twice(name: str) -> None:
    first, second = (served(ALL[name](LOG, FLEET)) for _ in range(2))
    assert first.digest == second.digest
    assert np.bincount(first.instance, minlength=4).min() > 0


@pytest.mark.parametrize("name", ALL)
def test_a_routing_follows_who_is_there(name: str) -> None:
    """One joins, one drains, one dies: nobody is sent where routing knows that it must not."""
    lives = [Life(), Life(joins_ms=4000.0), Life(drains_ms=6000.0), Life(dies_ms=8000.0, noticed_ms=500.0)]
    result = served(ALL[name](LOG, FLEET), lives=lives)
    at, instance = LOG.arrival_ms, result.instance
    assert not (instance[at < 4000.0] == 1).any()
    settled = ((at >= 6000.0) & (at < 7900.0)) | (at >= 8500.0)  # what a dying one had in hand goes to whoever serves
    assert not (instance[settled] == 2).any()
    assert not (instance[at >= 8000.0] == 3).any()
    assert (instance[at >= 4000.0] == 1).any()
    assert result.latency_ms.min() > 0.0


def test_routings_that_know_users_find_more_than_those_that_do_not() -> None:
    tokens = {name: found(served(made(LOG, FLEET))) for name, made in ALL.items()}
    for name in ("hash", "kv", "joint", "overrides"):
        assert tokens[name] > 1.2 * max(tokens["random"], tokens["least loaded"]), name


def test_the_bounded_hash_leaves_its_first_choice_only_where_that_is_above_the_bound() -> None:
    calm = served(BoundedHash(work_of(FLEET, LOG), users=LOG.users, instances=4, bound=LoadBound(percent=1000.0, floor=1e6)))
    assert calm.counts["requestsMoved"] == 0
    busy = a_log(3000, per_second=400.0)
    tight = BoundedHash(work_of(FLEET, busy), users=busy.users, instances=4, bound=LoadBound(percent=110.0, floor=0.0))
    assert served(tight, busy).counts["requestsMoved"] > 0


def test_overrides_keep_users_at_their_state_when_a_newcomer_takes_their_slots() -> None:
    """A table of slots alone sends a quarter of the users to an instance that knows none of them."""
    lives = [Life(), Life(), Life(), Life(joins_ms=8000.0)]
    work = work_of(FLEET, LOG)
    free = Limits(bound=LoadBound(percent=1000.0, floor=1e6), margin_ms=0.05)
    slots = served(OverrideRouting(work, users=LOG.users, instances=4, limits=Limits(most=0)), lives=lives)
    both = OverrideRouting(work, users=LOG.users, instances=4, limits=free)
    kept = served(both, lives=lives)
    assert kept.counts["tokensMissedAfterMoves"] < 0.5 * slots.counts["tokensMissedAfterMoves"]
    assert max(len(plan.overrides) for plan in both.plans) > 10
    assert found(kept) > found(slots)


def test_a_gateway_knows_after_each_look_who_holds_what() -> None:
    routing = scored(kv=True)(LOG, FLEET)
    served(routing)
    tokens = routing._tokens  # what it knew in the end
    assert tokens.shape == (2, LOG.users, 4)
    last = {int(user): place for place, user in enumerate(LOG.user)}
    assert np.count_nonzero(tokens[0]) > 10
    assert tokens.max() <= LOG.history_tokens.max()
    assert all(tokens[0, user].max() <= LOG.history_tokens[place] for user, place in last.items())
