"""Following the table: whatever an API server, a web server or a file does, the router ends on the newest and never goes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from client_following import KEY, Following, following, watching
from client_tables import HandClock, table, tombstone
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_servers import Reply, Request, ScriptedApi, event, play, published, serving

from contract.backoff import Backoff
from contract.table_sources.kubernetes_api import RELIST_MS, ServiceAccountAuth
from contract.table_sources.sources import sighting_in
from grfleet.client import (
    KubernetesSource,
    Metric,
    NoInstance,
    Router,
    Sighting,
    keep_current,
)

# ---------------------------------------------------------------- the Kubernetes API


async def test_a_watch_that_ends_cleanly_is_resumed_from_its_last_version_without_a_list() -> None:
    api = ScriptedApi([published(table(1), version=7)], version=9)
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "30"}})
    api.watches = [play(event("MODIFIED", published(table(2), version=12)), then="end"), play(bookmark, then="end")]
    async with watching(api) as state:
        await state.until(2)
        async with asyncio.timeout(20):
            while len(api.watched_from) < 3:  # noqa: ASYNC110 - the script has no event
                await asyncio.sleep(0.005)
    assert api.watched_from == ["9", "12", "30"]
    assert api.lists == 1
    assert state.problems == []


async def test_after_a_cut_watch_the_object_is_listed_anew_and_what_was_missed_is_found() -> None:
    api = ScriptedApi([published(table(1), version=1)])

    async def cut_and_change(request: Request, reply: Reply) -> None:
        await reply.begin()
        api.objects, api.version = [published(table(4), version=40)], 40  # the event of it is lost
        await reply.send(b'{"type": "MODI')
        reply.cut()

    api.watches = [cut_and_change]
    async with watching(api) as state:
        await state.until(4)
    assert api.lists == 2
    assert any("keeping generation 1" in problem for problem in state.problems)


@pytest.mark.parametrize("how", ["event", "status"])
async def test_410_gone_is_answered_by_a_list(how: str) -> None:
    api = ScriptedApi([published(table(1), version=1)])

    async def gone(request: Request, reply: Reply) -> None:
        api.objects, api.version = [published(table(3), version=30)], 30
        if how == "event":
            await reply.begin()
            await reply.send(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}))
        else:
            await reply.whole(b"{}", status=410)

    api.watches = [gone]
    async with watching(api) as state:
        await state.until(3)
        assert api.lists == 2


async def test_an_api_server_that_always_says_410_is_asked_less_and_less() -> None:
    async def gone(request: Request, reply: Reply) -> None:
        await reply.whole(b"{}", status=410)

    api = ScriptedApi([published(table(1), version=1)], watches=[gone] * 10)
    async with watching(api) as state, asyncio.timeout(20):
        while len(state.pauses) < 10:  # noqa: ASYNC110 - the script has no event
            await asyncio.sleep(0.005)
    assert state.pauses[9] > 4.0 > 0.5 > state.pauses[0]


GARBAGE = [
    b"\x00\xff\xfe not json\n",
    b"[]\n",
    b'"text"\n',
    b'{"type": 3, "object": {}}\n',
    b'{"type": "MODIFIED"}\n',
    b'{"type": "MODIFIED", "object": {"metadata": {"name": 5}, "status": []}}\n',
    b"[" * 50_000 + b"\n",
    event("MODIFIED", {"metadata": {"name": "feed"}, "status": {"generation": "four"}}),
    event("MODIFIED", {"metadata": {"name": "feed"}, "status": {"generation": 9, "instances": [], "slots": "AAAA"}}),
    event("MODIFIED", {"metadata": {"name": "feed"}, "status": {"generation": 9}}),
    event("MODIFIED", {"metadata": {"name": "feed"}, "status": {"generation": -3, "instances": [], "slots": ""}}),
    event("MODIFIED", {"metadata": {"name": "feed"}, "status": None}),
    event("SOMETHING", {"metadata": {"name": "feed"}}),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_in_a_watch_changes_nothing_and_the_next_table_is_taken(garbage: bytes) -> None:
    api = ScriptedApi([published(table(1), version=1)])

    async def broken(request: Request, reply: Reply) -> None:
        await reply.begin()
        await reply.send(garbage)
        api.objects = [published(table(2), version=2)]
        await reply.send(event("MODIFIED", api.objects[0]))
        await asyncio.Event().wait()

    api.watches = [broken]
    async with watching(api) as state:
        await state.until(2)
        assert state.router.pick(KEY).generation == 2


@settings(max_examples=25)
@given(st.binary(max_size=200))
def test_no_document_but_a_table_is_taken_for_one(body: bytes) -> None:
    assert sighting_in(body).table is None


@pytest.mark.parametrize("body", [b"", b"{", b'{"items": 3}', b'{"metadata": {}, "items": []}', b"null", b"x" * 5_000_000])
async def test_a_list_that_is_garbage_or_endless_is_taken_up_again(body: bytes) -> None:
    api = ScriptedApi([published(table(1), version=1)])

    async def once(reply: Reply) -> bool:
        api.before_list = None
        await reply.whole(body)
        return False

    api.before_list = once
    async with watching(api) as state:
        await state.until(1)
    assert len(state.problems) == 1


async def test_a_generation_that_goes_backwards_is_refused_and_counted() -> None:
    backwards = [event("MODIFIED", published(table(g), version=10 + g)) for g in (3, 2, 1, 5, 4)]
    api = ScriptedApi([published(table(2), version=1)], watches=[play(*backwards)])
    async with watching(api) as state:
        await state.until(5)
        async with asyncio.timeout(20):
            while state.metrics.total(Metric.TABLES, result="stale") < 3:  # noqa: ASYNC110 - the metric has no event
                await asyncio.sleep(0.005)
        assert state.router.generation == 5
    assert state.metrics.total(Metric.TABLES, result="taken") == 3


async def test_of_two_tables_that_a_server_sends_only_the_one_asked_for_counts() -> None:
    others = [
        published(table(90), version=1, name="other"),
        published(table(91), version=1, namespace="elsewhere"),
    ]
    lines = [event("MODIFIED", each) for each in others] + [event("MODIFIED", published(table(2), version=2))]
    api = ScriptedApi([others[0], published(table(1), version=1), others[1]], watches=[play(*lines)])
    async with watching(api) as state:
        await state.until(2)
        assert state.metrics.total(Metric.TABLES, result="taken") == 2


async def test_a_deleted_object_leaves_its_last_table_and_the_one_made_anew_is_followed_from_one() -> None:
    lines = [event("DELETED", published(table(9), version=3)), event("ADDED", published(table(1), version=4, uid="object-2"))]
    api = ScriptedApi([published(table(9), version=1)], watches=[play(lines[0])])
    async with watching(api) as state:
        await state.told("was deleted")
        assert state.router.pick(KEY).generation == 9
    api = ScriptedApi([published(table(9), version=1)], watches=[play(*lines)])
    async with watching(api) as state:
        await state.until(1)
        assert state.router.pick(KEY).generation == 1


async def test_a_table_that_is_missing_from_a_list_stays_in_use() -> None:
    api = ScriptedApi([published(table(9), version=1)], watches=[play(event("ERROR", {"code": 410}))])

    async def missing(reply: Reply) -> bool:
        if api.lists == 2:
            api.objects = []
        return True

    api.before_list = missing
    async with watching(api) as state:
        await state.told("no such object")
        assert state.router.pick(KEY).generation == 9


async def test_a_tombstone_empties_the_router() -> None:
    api = ScriptedApi([published(table(9), version=1)], watches=[play(event("MODIFIED", published(tombstone(10), version=2)))])
    async with watching(api) as state:
        await state.until(10)
        with pytest.raises(NoInstance, match="withdrawn"):
            state.router.pick(KEY)


async def test_an_object_that_has_no_status_yet_is_waited_for() -> None:
    api = ScriptedApi([published(None, version=1)], watches=[play(event("MODIFIED", published(table(1), version=2)))])
    async with watching(api) as state:
        await state.until(1)
    assert state.problems == []


async def test_a_server_that_sends_byte_by_byte_is_understood() -> None:
    line = event("MODIFIED", published(table(2), version=2))
    pieces = [line[at : at + 997] for at in range(0, len(line), 997)]
    api = ScriptedApi([published(table(1), version=1)], watches=[play(*pieces)])
    async with watching(api) as state:
        await state.until(2)


async def test_while_a_server_does_not_answer_picks_go_on_and_the_age_grows() -> None:
    async def silent(request: Request, reply: Reply) -> None:
        await asyncio.Event().wait()

    clock = HandClock()
    router = Router(clock=clock)
    router.accept(table(1))
    router.heard()
    async with serving(silent) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=0.05) as http:
        problems = list[str]()
        source = KubernetesSource(http, namespace="shop", name="feed")
        task = asyncio.create_task(keep_current(router, source, on_problem=problems.append))
        async with asyncio.timeout(20):
            while not problems:
                assert router.pick(KEY).generation == 1
                await asyncio.sleep(0.01)
        task.cancel()
    clock.now_ms += 86_400_000.0
    assert "ReadTimeout" in problems[0]
    assert router.status().contact_age_ms == 86_400_000.0


async def test_the_object_is_listed_from_time_to_time_however_well_the_watch_goes() -> None:
    clock = HandClock()
    api = ScriptedApi([published(table(1), version=1)])

    async def later(request: Request, reply: Reply) -> None:
        await reply.begin()
        clock.now_ms += RELIST_MS + 1.0

    api.watches = [later]
    async with watching(api, clock=clock) as state, asyncio.timeout(20):
        await state.until(1)
        while api.lists < 2:  # noqa: ASYNC110 - the script has no event
            await asyncio.sleep(0.005)


async def test_what_is_told_of_a_refusal_names_the_right_that_is_missing_and_no_credential() -> None:
    async def forbidden(request: Request, reply: Reply) -> None:
        await reply.whole(b"{}", status=403)

    async with watching(forbidden) as state:
        await state.told("403")
    assert "list and watch grroutingtables" in state.problems[0]


async def test_a_listener_and_a_hook_that_raise_end_nothing() -> None:
    class Broken:
        def count(self, name: str, value: int = 1, **labels: str) -> None:
            raise RuntimeError("hook")

        observe = count

    async def refuse(reply: Reply) -> bool:
        api.before_list = None
        await reply.whole(b"", status=500)
        return False

    def complain(message: str) -> None:
        raise RuntimeError(message)

    api = ScriptedApi([published(table(1), version=1)], before_list=refuse)
    state = Following()
    async with serving(api) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        source = KubernetesSource(http, namespace="shop", name="feed")
        task = asyncio.create_task(keep_current(state.router, source, on_problem=complain, metrics=Broken()))
        await state.until(1)
        assert not task.done()
        task.cancel()


class Raising:
    """A source with a fault of its own, then one that works."""

    label = "a source"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def sightings(self) -> AsyncIterator[Sighting]:  # type: ignore[override]  # an async generator
        if self.errors:
            raise self.errors.pop(0)
        yield Sighting(table=table(1))
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        pass


async def test_nothing_that_a_source_raises_ends_the_following() -> None:
    errors = [KeyError("x"), httpx.StreamConsumed(), RecursionError(), OSError(), TimeoutError(), MemoryError()]
    async with following(Raising(*errors)) as state:  # type: ignore[arg-type]  # a plain attribute for the label
        await state.until(1)
    assert len(state.problems) == len(errors)


def test_pauses_double_are_bounded_and_are_spread() -> None:
    pauses = [Backoff(random.Random(seed)) for seed in range(50)]
    rounds = [[backoff.pause_s() for backoff in pauses] for _ in range(12)]
    for number, drawn in enumerate(rounds):
        bound = min(10.0, 0.2 * 2**number)
        assert all(bound / 2 <= pause <= bound for pause in drawn)
        assert max(drawn) - min(drawn) > bound / 4
    pauses[0].reset()
    assert pauses[0].pause_s() <= 0.2


def test_the_token_of_a_pod_is_read_anew_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    auth = ServiceAccountAuth(token)
    for value in ("first", "second"):
        token.write_text(value + "\n")
        request = next(auth.auth_flow(httpx.Request("GET", "http://x")))
        assert request.headers["authorization"] == f"Bearer {value}"


# ---------------------------------------------------------------- any order of mishaps


class Mishaps:
    """An API server without a network: generations follow each other, and each watch goes wrong in its own way."""

    def __init__(self, plan: list[tuple[str, int]]) -> None:
        self.plan, self.newest, self.version = list(plan), 1, 1

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.params.get("watch") != "true":
            return httpx.Response(
                200,
                json={
                    "metadata": {"resourceVersion": str(self.version)},
                    "items": [published(table(self.newest, "ab"), version=self.version)],
                },
            )
        if not self.plan:
            return httpx.Response(410)
        how, step = self.plan.pop(0)
        old, self.newest, self.version = self.newest, self.newest + step, self.version + step
        lines = [event("MODIFIED", published(table(g, "ab"), version=g)) for g in range(old + 1, self.newest + 1)]
        if how == "refused":
            return httpx.Response(503)
        if how == "gone":
            return httpx.Response(200, content=event("ERROR", {"code": 410}))
        if how == "lost":
            lines = [*lines[:-1], b"}{\n"]
        if how == "backwards":
            lines = lines[::-1]
        if how == "doubled":
            lines = [line for line in lines for _ in "12"]
        if how == "half":
            lines = [*lines[:-1], *(line[:-40] for line in lines[-1:])]
        return httpx.Response(200, content=b"".join(lines))


HOW = ["whole", "refused", "gone", "lost", "backwards", "doubled", "half"]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(HOW), st.integers(0, 3)), max_size=6))
def test_after_any_mishaps_the_newest_table_is_in_use_and_none_was_taken_twice_or_back(plan: list[tuple[str, int]]) -> None:
    taken: list[int] = []

    class Noting(Router):
        def accept(self, table: Any, *, incarnation: str = "") -> bool:
            was = super().accept(table, incarnation=incarnation)
            if was:
                taken.append(table.generation)
            return was

    async def follow_it() -> None:
        server, router = Mishaps(plan), Noting()
        async with httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://api") as http:
            source = KubernetesSource(http, namespace="shop", name="feed", rng=random.Random(1))
            task = asyncio.create_task(keep_current(router, source, sleep=lambda _: asyncio.sleep(0)))
            async with asyncio.timeout(20):
                while server.plan or router.generation < server.newest:  # noqa: ASYNC110 - the router has no event
                    await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert router.generation == server.newest

    asyncio.run(follow_it())
    assert taken == sorted(set(taken))
