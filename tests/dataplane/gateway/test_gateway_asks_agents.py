"""How a gateway asks agents: where they are, what it does with answers that are none, and what it tells others."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from gateway_world import free_port, row, table

from contract.agent import PREFIX
from contract.keys import slot_of
from contract.residency import OVERRIDES_PATH, InstanceLoad, OverrideTable, ResidencyReport, UserState, unpack_overrides
from contract.table import RoutingTable, TableInstance, TableLimits
from dataplane.gateway.health import route_of
from dataplane.hot_users.agents import AT_ONCE, Addresses, ResidencyLoop, _Answer
from dataplane.hot_users.flags import GivenLimits
from dataplane.hot_users.metrics import ResidencyMetrics
from dataplane.hot_users.residents import Residents, ResidentsView
from dataplane.http.server import Answer, Handler, Request, serving
from policies.routing.types import Limits, LoadBound

KEY = next(f"{n:032x}" for n in range(99) if slot_of(f"{n:032x}") % 2 == 0)  # its slot is a's


class Gateway:
    """What the loop needs of the gateway's agent."""

    def __init__(self, wanted: RoutingTable | None) -> None:
        self.table = wanted
        self.users: Mapping[str, str] | None = {}
        self.sets = 0

    def down(self) -> frozenset[str]:
        return frozenset()

    def set_users(self, users: Mapping[str, str]) -> None:
        self.users, self.sets = users, self.sets + 1


class Agent:
    """One agent's answer to GET /residency."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cursor = 1
        self.states: list[UserState] = []
        self.asked: list[str] = []
        self.answer: Callable[[], Answer] | None = None

    def route(self, method: str, path: str) -> Handler | Answer:
        async def answer(request: Request) -> Answer:
            self.asked.append(request.query)
            if self.answer is not None:
                return self.answer()
            since = int(request.query.removeprefix("cursor="))
            load = InstanceLoad(reachable=True, queue=0, in_flight=1, service_ms=1.0, ms_per_token=0.02)
            report = ResidencyReport(
                uid=f"uid-{self.name}",
                start_id="s",
                generation=0,
                since=since,
                cursor=self.cursor,
                users=self.states if since < self.cursor else [],
                load=load,
            )
            return Answer(200, msgspec.json.encode(report))

        return Handler(answer) if path == f"{PREFIX}/residency" else Answer(404, b"{}")


class World:
    def __init__(self, gateway: Gateway, agents: dict[str, Agent], loop: ResidencyLoop) -> None:
        self.gateway, self.agents, self.loop = gateway, agents, loop
        self.now_s = self.look_s = 0.0

    def clock(self) -> float:
        """Seconds; each look takes `look_s`."""
        self.now_s += self.look_s
        return self.now_s

    async def round(self, *, seconds: float = 2.0, ask: bool = True) -> None:
        self.now_s += seconds
        await self.loop.round(ask=ask)


@contextlib.asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    agents = {name: Agent(name) for name in "ab"}
    gateway = Gateway(table(1, [row(name, 9000) for name in "ab"]))
    async with contextlib.AsyncExitStack() as stack:
        urls = {n: await stack.enter_async_context(serving(a.route, "http://127.0.0.1:0")) for n, a in agents.items()}
        (folder / "agents.json").write_text(json.dumps(urls))
        made: World
        loop = ResidencyLoop(
            gateway,
            Residents(),
            Addresses(str(folder / "agents.json")),
            monotonic_s=lambda: made.clock(),
            rng=random.Random(1),
            limits_under=GivenLimits(room=100).with_table,
        )
        made = World(gateway, agents, loop)
        stack.push_async_callback(loop.aclose)
        yield made


async def test_reports_become_users_of_the_gateway_and_only_changes_are_set(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.agents["b"].states = [UserState(key=KEY, tokens_hbm=3000)]
        await here.round()
        assert here.gateway.users == {KEY: "uid-b"}
        for _ in range(3):
            await here.round()
        assert here.gateway.sets == 1
        assert here.agents["b"].asked == ["cursor=0", *["cursor=1"] * 3]


@pytest.mark.parametrize(
    "answer",
    [
        lambda: Answer(200, b""),
        lambda: Answer(200, b"[]"),
        lambda: Answer(200, b'{"startId":"s","generation":0,"since":0,"cursor":1,"users":[{"key":"raw id"}]}'),
        lambda: Answer(200, b" " * (1 << 20) + b"{}"),
        lambda: Answer(200, b'{"a":' * 100_000),
        lambda: Answer(404, b"{}"),
        lambda: Answer(500, b"{}"),
    ],
)
async def test_an_answer_that_is_no_report_changes_nothing_and_is_counted(tmp_path: Path, answer: Callable[[], Answer]) -> None:
    async with world(tmp_path) as here:
        here.agents["b"].states = [UserState(key=KEY, tokens_hbm=3000)]
        await here.round()
        here.agents["b"].answer = answer
        await here.round()
        assert here.gateway.users == {KEY: "uid-b"}
        assert here.loop.view().reports["missing"] == 1


async def test_agents_that_hang_keep_none_of_the_others_waiting_and_no_more_are_asked_at_once_than_may_be(tmp_path: Path) -> None:
    """One in each thirty-two, as when a node is gone: one after the other their time-outs would make everybody silent."""
    async with world(tmp_path) as here:
        names = [f"i{n}" for n in range(5 * AT_ONCE)]
        hanging = {f"uid-{name}" for name in names[::AT_ONCE]}
        here.gateway.table = table(1, [row(name, 9000) for name in names])
        asked, told, now, most, everybody_else = list[str](), list[str](), 0, 0, asyncio.Event()
        running = asyncio.get_running_loop()

        async def ask(row: TableInstance) -> _Answer:
            nonlocal now, most
            asked.append(row.uid)
            now += 1
            most = max(most, now)
            if row.uid in hanging:
                await everybody_else.wait()
            await asyncio.sleep(0)
            now -= 1
            return _Answer(row.uid, None)

        def hear(answers: Sequence[_Answer]) -> None:
            assert 0 < len(answers) <= 2 * AT_ONCE
            told.extend(answer.uid for answer in answers)
            if len(told) > len(names) - len(hanging) - AT_ONCE // 2:  # so few may be taken in with those that hang
                running.call_soon_threadsafe(everybody_else.set)

        here.loop._ask, here.loop._hear = ask, hear  # type: ignore[method-assign]  # no time-outs in a test
        async with asyncio.timeout(10):
            await here.round()
        assert sorted(asked) == sorted(told) == sorted(f"uid-{name}" for name in names)
        assert most == AT_ONCE


async def test_whoever_is_asked_when_the_gateway_ends_is_left(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        begun, left = asyncio.Event(), list[str]()

        async def ask(row: TableInstance) -> _Answer:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.append(row.uid)
            raise AssertionError

        here.loop._ask = ask  # type: ignore[method-assign]  # an agent that hangs
        running = asyncio.create_task(here.round())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sorted(left) == ["uid-a", "uid-b"]


async def test_nothing_is_set_before_it_is_known_what_haproxy_holds(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.gateway.users = None
        await here.round()
        assert (here.gateway.users, here.agents["a"].asked) == (None, [])
        here.gateway.users = {KEY: "uid-b"}
        await here.round()
        assert here.gateway.users == {KEY: "uid-b"}
        assert here.gateway.sets == 0


async def test_a_new_table_is_weighed_without_asking_anybody(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.agents["a"].states = [UserState(key=KEY, tokens_hbm=3000)]
        await here.round()
        assert here.gateway.users == {}
        asked = len(here.agents["a"].asked)
        rows = [row(name, 9000) for name in "ab"]
        here.gateway.table = table(2, rows, owners=[(slot + 1) % 2 for slot in range(4096)])
        await here.round(ask=False)
        assert here.gateway.users == {KEY: "uid-a"}  # it stays with its state
        assert len(here.agents["a"].asked) == asked


async def test_requests_that_a_face_saw_are_taken_in_with_the_next_round(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.agents["a"].states = [UserState(key=KEY, tokens_hbm=1000)]
        here.gateway.users = {KEY: "uid-b"}
        here.now_s += 2.0
        await here.loop.round(ask=False)
        here.loop.routed(KEY, "uid-b")
        await here.round(seconds=1.0)
        assert here.gateway.users == {KEY: "uid-b"}  # what a has is old news: the request just went to b
        await here.round(seconds=3.0)
        assert here.gateway.users == {}


async def test_a_tombstone_withdraws_everything(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.agents["b"].states = [UserState(key=KEY, tokens_hbm=3000)]
        await here.round()
        here.gateway.table = table(2, [], owners=[0xFFFF] * 4096)
        await here.round()
        assert here.gateway.users == {}


async def test_clients_are_told_what_differs_from_what_they_have(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        handler = route_of(None, here.loop)("GET", OVERRIDES_PATH)  # type: ignore[arg-type]  # only overrides are asked
        assert isinstance(handler, Handler)
        assert (await handler.answer(Request("GET", OVERRIDES_PATH, "", b""))).status == 204  # nothing is known yet
        here.agents["b"].states = [UserState(key=KEY, tokens_hbm=3000)]
        await here.round()
        first = await handler.answer(Request("GET", OVERRIDES_PATH, "", b""))
        told = msgspec.json.decode(first.body, type=OverrideTable)
        assert (unpack_overrides(told), told.for_ms) == ({KEY: "uid-b"}, 300_000.0)
        known = f"known={told.revision}"
        assert (await handler.answer(Request("GET", OVERRIDES_PATH, known, b""))).status == 204
        here.agents["b"].states, here.agents["b"].cursor = [UserState(key=KEY)], 2
        await here.round()
        then = await handler.answer(Request("GET", OVERRIDES_PATH, known, b""))
        assert unpack_overrides(msgspec.json.decode(then.body, type=OverrideTable)) == {}


async def test_limits_of_a_new_table_are_obeyed_in_its_first_round_and_told_to_clients(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.agents["b"].states = [UserState(key=KEY, tokens_hbm=3000)]
        await here.round()
        handler = route_of(None, here.loop)("GET", OVERRIDES_PATH)  # type: ignore[arg-type]  # only overrides are asked
        assert isinstance(handler, Handler)

        async def told_under(limits: TableLimits, generation: int, known: str) -> OverrideTable:
            wanted = table(generation, [row(name, 9000) for name in "ab"])
            here.gateway.table = msgspec.structs.replace(wanted, limits=limits)
            await here.round(ask=False)
            return msgspec.json.decode(
                (await handler.answer(Request("GET", OVERRIDES_PATH, known, b""))).body, type=OverrideTable
            )

        shorter = await told_under(TableLimits(hot_user_seconds=5), 2, "")
        assert (unpack_overrides(shorter), shorter.for_ms) == ({KEY: "uid-b"}, 5000.0)
        off = await told_under(TableLimits(hot_users_max=0), 3, f"known={shorter.revision}")
        assert (unpack_overrides(off), here.gateway.users) == ({}, {})


def test_a_flag_wins_over_the_table_and_what_nobody_says_is_as_usual() -> None:
    said = TableLimits(hot_users_max=1_000_000, hot_user_seconds=60, bounded_load_percent=150, bounded_load_floor=2)
    by_table = GivenLimits(room=131_072).with_table(said)
    assert (by_table.most, by_table.ttl_ms) == (131_072, 60_000.0)
    assert by_table.bound == LoadBound(percent=150, floor=2)
    by_flags = GivenLimits(most=0, ttl_s=5, percent=300, floor=0, room=131_072).with_table(said)
    assert (by_flags.most, by_flags.ttl_ms, by_flags.bound) == (0, 5000.0, LoadBound(percent=300, floor=0))
    assert GivenLimits(room=131_072).with_table(TableLimits()) == Limits()


@pytest.mark.parametrize(
    ("pattern", "address", "url"),
    [
        ("http://{host}:9001", "http://10.0.0.7:9000", "http://10.0.0.7:9001"),
        ("http://{host}:9001", "10.0.0.7:9000", "http://10.0.0.7:9001"),
        ("http://{host}:9001", "http://[fd00::7]:9000", "http://[fd00::7]:9001"),
        ("http://{name}.agents:81", "http://10.0.0.7:9000", "http://a.agents:81"),
        ("http://{host}:9001", "", None),
        ("http://{host}:9001", "http://[bad", None),
        ("http://{host}:9001", "//[::1", None),
    ],
)
def test_an_agent_is_found_by_the_pattern(pattern: str, address: str, url: str | None) -> None:
    instance = TableInstance(name="a", uid="u", address=address, weight_percent=100, state=row("a", 1).state)
    assert Addresses(pattern).of(instance) == url


@pytest.mark.parametrize(
    "text", ["http://{pod}:9001", "{host}:9001", "http://{}:9001", "ftp://{host}", "http://{host.x}", "http://{host!r}"]
)
def test_a_pattern_that_cannot_work_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=r"agents|use http"):
        Addresses(text)


def test_a_file_of_addresses_may_come_late_and_change(tmp_path: Path) -> None:
    addresses, path = Addresses(str(tmp_path / "agents.json")), tmp_path / "agents.json"
    assert addresses.of(row("a", 1)) is None
    path.write_text('{"a": "http://10.0.0.1:9001"}')
    assert addresses.of(row("a", 1)) == "http://10.0.0.1:9001"
    path.write_text("[]")
    assert addresses.of(row("a", 1)) == "http://10.0.0.1:9001"


async def test_an_agent_that_nobody_answers_for_is_missing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        (tmp_path / "agents.json").write_text(json.dumps({"a": f"http://127.0.0.1:{free_port()}", "b": "nonsense"}))
        await here.round()
        assert here.loop.view().reports == {"missing": 2}


async def test_the_time_that_a_round_computed_is_shown(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.look_s = 0.25
        await here.round()
        assert here.loop.round_s >= 0.5, "reports are taken in, and users weighed"
        assert f"grfleet_gateway_residency_round_seconds {here.loop.round_s:g}\n" in here.loop.metrics_text().decode()


def test_the_metrics_show_ages_and_counts() -> None:
    view = ResidentsView(overrides=3, users_known=9, moved=4, silent=1, age_s={"a": 1.5, "b": 7.0}, reports={"fenced": 2})
    text = ResidencyMetrics().text(view).decode()
    for line in (
        "grfleet_gateway_overrides 3",
        "grfleet_gateway_oldest_report_seconds 7",
        "grfleet_gateway_silent_instances 1",
        'grfleet_gateway_reports_total{result="fenced"} 2',
    ):
        assert line in text
    assert "grfleet_gateway_oldest_report_seconds +Inf" in ResidencyMetrics().text(ResidentsView()).decode()
