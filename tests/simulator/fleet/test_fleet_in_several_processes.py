"""Several processes give the very result of one, tell how far they are, and end together when one of them is lost."""

import multiprocessing
import os
import signal

import pytest
from fleet_logs import MIB, Scripted, a_fleet, a_log

from policies.allocation.types import AllocationIntent, Step
from simulator.fleet.allocation import AgentSplit
from simulator.fleet.config import Level
from simulator.fleet.processes import ProcessLost, in_processes, shared
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate


@pytest.mark.parametrize("level", [Level.SAMPLED, Level.REDUCED])
def test_the_digest_does_not_depend_on_the_number_of_processes(level: Level) -> None:
    log, fleet = a_log(), a_fleet(host_bytes=1 << 28)
    told: list[tuple[int, int]] = []
    alone = simulate(log, fleet, level=level, seed=1)
    for workers in (2, 9):
        many = simulate(log, fleet, level=level, seed=1, workers=workers, progress=lambda *each: told.append(each))
        assert (many.digest, many.doubts) == (alone.digest, alone.doubts)
        assert told[-1] == (len(log), len(log))
    assert not multiprocessing.active_children()


def test_agents_decide_in_several_processes_as_they_do_in_one() -> None:
    log, fleet = a_log(), a_fleet(instances=3, host_bytes=1 << 28)
    intent = AllocationIntent(step=Step(interval_ms=1000.0))
    seen: list[tuple[FleetResult, AgentSplit]] = []
    for workers in (1, 2):
        agents = AgentSplit(intent)
        told: list[tuple[int, int]] = []
        result = simulate(log, fleet, split=agents, seed=1, workers=workers, progress=lambda *each, told=told: told.append(each))
        assert told == sorted(told)
        assert told[-1] == (len(log), len(log))
        seen.append((result, agents))
    (alone, one), (apart, several) = seen
    assert len(alone.moves) > 3
    assert (apart.digest, apart.moves, apart.doubts) == (alone.digest, alone.moves, alone.doubts)
    assert (several.reasons, several.last) == (one.reasons, one.last)
    assert not multiprocessing.active_children()


def test_a_policy_that_looks_at_all_instances_together_stays_in_one_process() -> None:
    policy = Scripted(2000.0, [20 * MIB, 60 * MIB])
    simulate(a_log(), a_fleet(), split=policy, seed=1, workers=4)
    assert {len(one) for one in policy.seen} == {4}


def test_no_process_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^workers: "):
        simulate(a_log(10), a_fleet(), seed=1, workers=0)


def test_each_number_is_worked_on_once_whoever_does_it() -> None:
    done, by = shared(7, dtype="int64"), shared(7, dtype="int64")

    def work(number: int) -> None:
        done[number] += 1
        by[number] = os.getpid()

    in_processes(work, range(7), workers=3)
    assert done.tolist() == [1] * 7
    assert len(set(by.tolist())) == 3


@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_process_that_is_lost_ends_the_others_and_is_told(how: str, capfd: pytest.CaptureFixture[str]) -> None:
    def work(number: int) -> None:
        if number == 0 and how == "raises":
            raise OSError("no space left")
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(ProcessLost, match=r"^process 0 of the simulation ended with code "):
        in_processes(work, range(3), workers=3)
    assert not multiprocessing.active_children()
    assert how != "raises" or "no space left" in capfd.readouterr().err
