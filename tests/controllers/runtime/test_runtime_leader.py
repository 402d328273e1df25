"""Leader election: never two at once, whatever is cut, frozen or killed; takeover in the stated times."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_fakes import FakeKube, FakeServer

from controllers.runtime import leader
from controllers.runtime.clock import FakeClock, settle
from controllers.runtime.errors import NotLeader
from controllers.runtime.leader import LeaderElector
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import LEASES, Key

LEASE = Key("ns", "grfleet-operator")


class SlippedClock:
    """The common clock, but with the wall time of a machine that is set wrong."""

    def __init__(self, clock: FakeClock, slip_seconds: float) -> None:
        self._clock = clock
        self._slip = slip_seconds

    def monotonic(self) -> float:
        return self._clock.monotonic() + 1000 * self._slip

    def now(self):  # type: ignore[no-untyped-def] # the wall clock of another machine
        from datetime import timedelta

        return self._clock.now() + timedelta(seconds=self._slip)

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


@dataclass
class Replica:
    """One contender and what its leading work did."""

    elector: LeaderElector
    kube: FakeKube
    metrics: Metrics
    spans: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def lead(self) -> None:
        """Work that only notes when it starts and ends."""
        self.spans.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            self.spans.append("ended")

    def start(self) -> None:
        """Contend in the background."""
        self.task = asyncio.create_task(self.elector.run(self.lead))

    async def stop(self) -> None:
        """End the background task."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


def replica(server: FakeServer, clock: FakeClock, name: str, *, slip_seconds: float = 0.0) -> Replica:
    kube, metrics = FakeKube(server), Metrics()
    seen = SlippedClock(clock, slip_seconds) if slip_seconds else clock
    elector = LeaderElector(kube, LEASE, name, clock=seen, rng=random.Random(name), metrics=metrics)  # type: ignore[arg-type] # the four verbs it needs
    return Replica(elector, kube, metrics)


async def test_the_first_contender_leads_at_once_and_the_metric_says_so() -> None:
    server, clock = FakeServer(), FakeClock()
    a = replica(server, clock, "a")
    a.start()
    await clock.advance(0.1)
    assert a.elector.is_leader()
    assert a.metrics.registry.get_sample_value("leader_election_master_status", {"name": LEASE.name}) == 1
    assert a.spans == ["began"]
    await a.stop()
    assert a.spans == ["began", "ended"]


async def test_a_release_hands_over_within_a_second() -> None:
    server, clock = FakeServer(), FakeClock()
    a, b = replica(server, clock, "a"), replica(server, clock, "b")
    a.start()
    await clock.advance(1)
    b.start()
    await clock.advance(5)
    assert not b.elector.is_leader()
    await a.stop()
    await a.elector.release()
    assert not a.elector.is_leader()
    await clock.advance(1)
    assert b.elector.is_leader()
    await b.stop()


async def test_after_a_kill_the_follower_waits_for_the_lease_to_run_out() -> None:
    server, clock = FakeServer(), FakeClock()
    a, b = replica(server, clock, "a"), replica(server, clock, "b")
    a.start()
    b_started = clock.advance(1)
    await b_started
    b.start()
    await clock.advance(5)
    await a.stop()  # killed: nothing is released
    await clock.advance(12)
    assert not b.elector.is_leader()
    await clock.advance(4)
    assert b.elector.is_leader()
    await b.stop()


@pytest.mark.parametrize("mode", ["refused", "hangs", "applied but answer lost"])
async def test_a_leader_that_cannot_renew_stops_its_work_before_anybody_takes_over(mode: str) -> None:
    server, clock = FakeServer(), FakeClock()
    a, b = replica(server, clock, "a"), replica(server, clock, "b")
    a.start()
    await clock.advance(1)
    b.start()
    await clock.advance(5)
    a.kube.mode = mode
    ended_at = took_over_at = None
    for _ in range(400):
        await clock.advance(0.1)
        if ended_at is None and a.spans[-1] == "ended":
            ended_at = clock.monotonic()
        if took_over_at is None and b.elector.is_leader():
            took_over_at = clock.monotonic()
        assert not (a.elector.is_leader() and b.elector.is_leader())
    assert ended_at is not None
    assert ended_at <= 6 + 10 + 0.2
    if mode != "applied but answer lost":
        assert took_over_at is not None
        assert took_over_at - ended_at > 3
    with pytest.raises(NotLeader):
        a.elector.check()
    await a.stop()
    await b.stop()


async def test_a_leader_frozen_for_long_is_no_leader_when_it_wakes() -> None:
    server, clock = FakeServer(), FakeClock()
    a, b = replica(server, clock, "a"), replica(server, clock, "b")
    assert await a.elector.step()  # only its own steps move it: between them the process is frozen
    b.start()
    await clock.advance(25)
    assert b.elector.is_leader()
    with pytest.raises(NotLeader):
        a.elector.check()
    assert not await a.elector.step()
    assert b.elector.is_leader()
    await b.stop()


async def test_wrong_wall_clocks_do_not_matter() -> None:
    server, clock = FakeServer(), FakeClock()
    a, b = replica(server, clock, "a", slip_seconds=-3600), replica(server, clock, "b", slip_seconds=7200)
    a.start()
    await clock.advance(1)
    b.start()
    await clock.advance(60)
    assert a.elector.is_leader()
    assert not b.elector.is_leader()
    await a.stop()
    await b.stop()


async def test_work_that_fails_gives_the_lease_back_and_ends_the_election() -> None:
    server, clock = FakeServer(), FakeClock()
    a = replica(server, clock, "a")

    async def broken() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await a.elector.run(broken)
    assert server.objects[(LEASES, LEASE)]["spec"]["holderIdentity"] == ""


async def test_transitions_count_changes_of_holder_and_times_have_six_digits() -> None:
    server, clock = FakeServer(), FakeClock()
    a, b = replica(server, clock, "a"), replica(server, clock, "b")
    await a.elector.step()
    await a.elector.step()
    await a.elector.release()
    await b.elector.step()
    spec = server.objects[(LEASES, LEASE)]["spec"]
    assert spec["leaseTransitions"] == 1
    assert spec["renewTime"].endswith(".000000Z")


FAULT = st.tuples(
    st.integers(0, 2), st.sampled_from(["up", "refused", "hangs", "applied but answer lost", "kill"]), st.floats(0.1, 20)
)


@settings(max_examples=25, deadline=None)
@given(faults=st.lists(FAULT, max_size=12))
def test_three_replicas_under_any_faults_never_lead_two_at_once_and_one_leads_in_the_end(
    faults: list[tuple[int, str, float]],
) -> None:
    async def play() -> None:
        server, clock = FakeServer(), FakeClock()
        replicas = [replica(server, clock, name) for name in "abc"]
        for each in replicas:
            each.start()

        async def pass_time(seconds: float) -> None:
            for _ in range(int(seconds / 0.5) + 1):
                await clock.advance(0.5)
                leaders = [each for each in replicas if each.elector.is_leader()]
                working = [each for each in replicas if each.spans.count("began") > each.spans.count("ended")]
                assert len(leaders) <= 1
                assert len(working) <= 1

        for number, what, seconds in faults:
            if what == "kill":
                await replicas[number].stop()
                replicas[number] = replica(server, clock, f"{number}-{clock.monotonic()}")
                replicas[number].start()
            else:
                replicas[number].kube.mode = what
                if what == "up":
                    replicas[number].kube.released.set()
            await pass_time(seconds)
        for each in replicas:
            each.kube.mode = "up"
            each.kube.released.set()
        await pass_time(25)
        await settle()
        assert sum(each.elector.is_leader() for each in replicas) == 1
        for each in replicas:
            await each.stop()

    asyncio.run(play())


async def test_work_that_ends_slowly_is_waited_for_before_the_next_term() -> None:
    """A process that wakes from a freeze on a busy machine needs more than a moment to end what it was doing."""
    server, clock = FakeServer(), FakeClock()
    a = replica(server, clock, "a")
    terms: list[str] = []

    async def slow() -> None:
        terms.append("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(1.2)  # real time: the elector's patience is with the machine, not with its clock
            terms.append("ended")
            raise

    a.task = asyncio.create_task(a.elector.run(slow))
    await clock.advance(0.1)
    a.kube.mode = "refused"
    await clock.advance(20)
    assert not a.elector.is_leader()
    a.kube.mode = "up"
    for _ in range(40):
        await asyncio.sleep(0.05)
        await clock.advance(1)
    assert terms[:3] == ["began", "ended", "began"]
    assert not a.task.done()
    await a.stop()


async def test_work_that_never_ends_ends_the_process_instead_of_a_second_leader_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "WORK_ENDS_SECONDS", 0.05)
    server, clock = FakeServer(), FakeClock()
    a = replica(server, clock, "a")
    free = asyncio.Event()

    async def stubborn() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    a.task = asyncio.create_task(a.elector.run(stubborn))
    await clock.advance(0.1)
    a.kube.mode = "refused"
    await clock.advance(20)
    with pytest.raises(RuntimeError, match="goes on"):
        await asyncio.wait_for(a.task, timeout=10)
    free.set()
