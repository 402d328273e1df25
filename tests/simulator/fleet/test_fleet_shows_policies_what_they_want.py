"""What a policy does not want to see costs and changes nothing: fewer rows, no observations, one instance after the other."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fleet_logs import MIB, Scripted, a_fleet, a_log

from policies.allocation.table import mix64
from policies.allocation.types import AllocationIntent, Step
from simulator.fleet.allocation import AgentSplit, UserCurves
from simulator.fleet.config import Level
from simulator.fleet.observe import p99_of
from simulator.fleet.policies import FleetObservation
from simulator.fleet.randomness import mix
from simulator.fleet.run import simulate
from simulator.request_log import RowLaw

WIDE = RowLaw(exponent=0.8, catalog_rows=1_000_000)
ONE_IN = 4


def thinned(seen: FleetObservation) -> FleetObservation:
    """One sampled row in `ONE_IN`, chosen by its key, of an observation with all."""
    kept = seen.row_keys < np.uint64(2**64 // ONE_IN)
    keys, times_ms = seen.row_keys[kept], seen.row_times_ms[kept]
    return replace(seen, row_keys=keys, row_times_ms=times_ms, rows_one_in=seen.rows_one_in * ONE_IN)


class Looking:
    """Lets agents decide, and keeps what they were shown."""

    interval_ms = 1000.0

    def __init__(self) -> None:
        self.agents = AgentSplit(AllocationIntent(step=Step(interval_ms=1000.0)), users=UserCurves())
        self.seen: dict[tuple[int, float], FleetObservation] = {}

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        shown = [self.shown(seen) for seen in observations]
        self.seen |= {(seen.instance, now_ms): seen for seen in shown}
        return self.agents.decide(now_ms, shown)

    def shown(self, seen: FleetObservation) -> FleetObservation:
        return thinned(seen)


class Modest(Looking):
    rows_one_in = ONE_IN
    one_by_one = True

    def shown(self, seen: FleetObservation) -> FleetObservation:
        return seen


def same(one: FleetObservation, other: FleetObservation) -> bool:
    names = FleetObservation.__dataclass_fields__
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("level", [Level.SAMPLED_64, Level.EXACT])
def test_a_policy_that_wants_one_row_in_some_sees_what_is_left_when_all_are_thinned(level: Level) -> None:
    log, fleet = a_log(3000, users=100, laws=(WIDE,), rows_per_token=4), a_fleet(instances=3, emb_percent=90)
    policies = Looking(), Modest()
    alike, modest = (simulate(log, fleet, level=level, split=policy, seed=1) for policy in policies)
    assert len(alike.moves) > 3
    assert (modest.digest, modest.moves) == (alike.digest, alike.moves)
    seen, other = (policy.seen for policy in policies)
    assert seen.keys() == other.keys()
    assert all(same(seen[place], other[place]) for place in seen)
    keys = np.concatenate([one.row_keys for one in seen.values()])
    assert len(keys) > 100
    assert keys.max() < 2**64 // ONE_IN


@pytest.mark.parametrize("one_in", [3, -2])
def test_one_row_in_a_number_that_is_no_power_of_two_cannot_be_shown(one_in: int) -> None:
    policy = Modest()
    policy.rows_one_in = one_in
    with pytest.raises(ValueError, match=f"split: one sampled row in {one_in} "):
        simulate(a_log(100), a_fleet(), split=policy, seed=1)


class APlan:
    interval_ms = 500.0
    steps = (20 * MIB, 60 * MIB, 90 * MIB)

    def __init__(self) -> None:
        self.told = 0

    def decide(self, now_ms: float, observations: Sequence[FleetObservation]) -> list[int | None]:
        raise AssertionError("nothing is observed for a plan")

    def planned(self, now_ms: float, instances: int) -> list[int | None]:
        self.told += 1
        return [self.steps[min(self.told, len(self.steps)) - 1]] * instances


@pytest.mark.parametrize("level", [Level.SAMPLED, Level.EXACT, Level.REDUCED])
def test_a_plan_that_looks_at_nothing_gives_what_it_gave_with_observations(level: Level) -> None:
    log, fleet = a_log(2000), a_fleet(instances=2)
    asked, planned = Scripted(500.0, [20 * MIB, 60 * MIB, 90 * MIB]), APlan()
    results = [simulate(log, fleet, level=level, split=policy, seed=1) for policy in (asked, planned)]
    assert len(results[0].moves) > 3
    assert (results[1].digest, results[1].moves) == (results[0].digest, results[0].moves)


def test_a_percentile_is_that_of_numpy_to_the_last_digit() -> None:
    rng = np.random.default_rng(1)
    for count in [*range(1, 60), 99, 100, 101, 102, 265, 1999, 2000, 2001]:
        values = rng.lognormal(3.0, 1.0, count)
        assert p99_of(values) == float(np.percentile(values, 99.0))


def test_keys_are_spread_alike_by_agents_and_by_the_fleet() -> None:
    keys = np.random.default_rng(2).integers(1 << 62, size=50, dtype=np.uint64)
    assert mix64(keys).tolist() == [int(mix(key)) for key in keys]
