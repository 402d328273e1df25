"""What an agent tells of its engine's users: several readers, each at its own pace, know what the engine holds."""

import msgspec
import pytest
from dataplane_fakes import FakeClock
from dataplane_world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from residents_of_engine import UP, Engine, Reader, user

from contract import engine
from contract.agent import PREFIX
from contract.residency import InstanceLoad, ResidencyReport, UserState, decode_report
from dataplane.agent.residency import KEPT, Bound, ResidencyShelf
from dataplane.agent.server import route_of

USERS = 8


steps = st.one_of(
    *[st.tuples(st.just("rank"), st.integers(0, USERS - 1))] * 6,
    *[st.tuples(st.just("read"), st.integers(0, 1))] * 4,
    st.tuples(st.just("evict"), st.integers(0, USERS - 1)),
    st.tuples(st.just("bound"), st.integers(0, 200)),
    st.tuples(st.just("unbound"), st.just(0)),
    st.tuples(st.just("empty"), st.just(0)),
    st.tuples(st.just("engine restarts"), st.just(0)),
    st.tuples(st.just("agent restarts"), st.just(0)),
    st.tuples(st.just("silence"), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=20, max_size=50))
async def test_readers_know_what_the_engine_holds_whoever_restarts(log: list[tuple[str, int]]) -> None:
    source, clock, readers = Engine(), FakeClock(), (Reader(), Reader())
    shelf = ResidencyShelf(source, monotonic_s=clock)
    for what, who in log:
        clock.advance(2.0)
        match what:
            case "rank":
                source.rank(who)
            case "read":
                await readers[who].read(shelf)
            case "evict":
                source.core.evict([user(who)])
            case "bound":
                shelf.bound_to(Bound(who, 200, 1))
            case "unbound":
                shelf.bound_to(None)
            case "empty":
                source.core.invalidate(engine.InvalidateRequest(everything=True))
            case "engine restarts":
                source.restart()
            case "agent restarts":
                shelf = ResidencyShelf(source, monotonic_s=clock)
            case _:
                source.silent = True
                await readers[0].read(shelf)
                source.silent = False
    shelf.bound_to(None)
    source.rank(0)
    source.now += 1e6
    source.core.advance(source.now)
    clock.advance(2.0)
    for reader in readers:
        await reader.read(shelf)
        assert reader.tokens == source.held()


async def test_the_engine_is_read_when_somebody_asks_and_once_a_second_at_most() -> None:
    source, clock = Engine(), FakeClock()
    shelf = ResidencyShelf(source, monotonic_s=clock)
    assert source.calls == 0
    for _ in range(5):
        await shelf.report(0, uid="uid-1", load=UP)
    assert source.calls == 1
    clock.advance(1.0)
    await shelf.report(0, uid="uid-1", load=UP)
    assert source.calls == 2


async def test_a_silent_engine_is_told_as_not_reachable_and_its_users_grow_old() -> None:
    source, clock = Engine(), FakeClock()
    shelf = ResidencyShelf(source, monotonic_s=clock)
    source.rank(1)
    before = await shelf.report(0, uid="uid-1", load=UP)
    source.silent = True
    clock.advance(5.0)
    after = await shelf.report(0, uid="uid-1", load=UP)
    assert before is not None
    assert after is not None
    assert (before.load, after.load) == (UP, InstanceLoad(reachable=False))
    assert after.users[0].age_ms == before.users[0].age_ms + 5000.0


async def test_an_engine_that_does_not_tell_is_no_report() -> None:
    class Mute(Engine):
        async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
            return None

    assert await ResidencyShelf(Mute(), monotonic_s=FakeClock()).report(0, uid="uid-1", load=UP) is None


async def test_the_shelf_is_bounded_and_forgets_the_oldest() -> None:
    class Busy(Engine):
        async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
            first = cursor + 1
            users = [UserState(key=user(n), tokens_hbm=1) for n in reversed(range(first, first + 2000))]
            return ResidencyReport(start_id="s", generation=0, since=cursor, cursor=cursor + 2000, users=users)

    clock = FakeClock()
    shelf = ResidencyShelf(Busy(), monotonic_s=clock)
    first = await shelf.report(0, uid="", load=UP)
    for _ in range(3):
        clock.advance(1.0)
        last = await shelf.report(0, uid="", load=UP)
    assert first is not None
    assert last is not None
    assert len(last.users) == KEPT
    assert last.users[0].key == user(8_000)
    assert (await shelf.report(first.cursor, uid="", load=UP)).since == 0


async def test_an_engine_that_exaggerates_is_handed_on_as_something_that_can_be_read() -> None:
    class Boaster(Engine):
        async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
            users = [UserState(key=user(1), tokens_hbm=1 << 62, age_ms=1.7e308), UserState(key=user(2), tokens_ssd=1)] * 9
            return ResidencyReport(start_id="s", generation=1 << 62, since=0, cursor=1 << 62, users=users)

    report = await ResidencyShelf(Boaster(), monotonic_s=FakeClock()).report(0, uid="uid-1", load=UP)
    assert report is not None
    assert decode_report(msgspec.json.encode(report)).users == report.users
    assert [state.key for state in report.users] == [user(1), user(2)]


async def test_the_agent_tells_of_its_load_beside_the_users(world: World) -> None:
    world.static(50)
    await world.rounds(3)
    source = Engine()
    source.rank(3)
    world.engine.residency = source.residency
    report = await world.agent.residency(0)
    assert report is not None
    assert (report.uid, report.start_id) == ("uid-a", "start-1")
    assert [state.key for state in report.users] == [user(3)]
    assert report.load is not None
    assert report.load.reachable
    assert report.load.in_flight == world.engine.in_flight
    assert report.load.service_ms > 0.0


@pytest.mark.parametrize(("query", "status"), [("", 404), ("cursor=5", 404), ("cursor=-1", 400), ("cursor=x", 400)])
async def test_a_cursor_is_a_whole_number_and_no_report_is_404(world: World, query: str, status: int) -> None:
    from dataplane.http.server import Handler, Request

    handler = route_of(world.agent)("GET", f"{PREFIX}/residency")
    assert isinstance(handler, Handler)
    assert (await handler.answer(Request("GET", f"{PREFIX}/residency", query, b""))).status == status
