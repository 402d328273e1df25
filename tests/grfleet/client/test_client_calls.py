"""Requests of the async and the sync client against servers on loopback: retry, hedge, budget, and no raw user id anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from client_tables import KEY, SECRET, Fed, HandClock, table, tombstone
from loopback_servers import (
    HTTP_FAILURES,
    USER,
    Reply,
    Request,
    ScriptedApi,
    ToyInstance,
    event,
    fleet_table,
    learned,
    play,
    published,
    serving,
    two_instances,
)

from contract.keys import user_key
from contract.table import RoutingTable
from grfleet.client import (
    AllFailed,
    AsyncClient,
    Choice,
    Client,
    HedgePolicy,
    InstanceFailed,
    KeptMetrics,
    KubernetesSource,
    Metric,
    NoInstance,
)

ALWAYS = HedgePolicy(budget_percent=100.0, least_delay_ms=20.0, samples=50)


@contextlib.asynccontextmanager
async def async_client(fleet: RoutingTable, **options: Any) -> AsyncIterator[tuple[AsyncClient, Callable[[Choice], Any]]]:
    options = {"failures": HTTP_FAILURES, **options}
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as http, AsyncClient(Fed(fleet), KEY, **options) as client:
        await client.ready(timeout_seconds=10)

        async def send(choice: Choice) -> str:
            return (await http.get(choice.instance.address, headers=choice.headers)).text

        yield client, send


# ---------------------------------------------------------------- asyncio


async def test_a_request_goes_to_the_owner_with_the_hash_of_its_user() -> None:
    async with two_instances() as (a, b, fleet), async_client(fleet) as (client, send):
        assert await client.call(USER, send) == "a"
        assert a.users == [user_key(SECRET, USER)]
        assert await client.call(USER, send, prefer="b") == "b"
        assert b.asked == 1
        assert client.pick(USER).headers == {
            "x-gr-user-key": user_key(SECRET, USER),
            "x-gr-key-id": "pool-key",
            "x-gr-instance": "a",
        }


async def test_a_request_that_fails_is_tried_once_more_on_the_next_owner_and_the_failed_one_is_passed_over() -> None:
    metrics = KeptMetrics()
    async with two_instances() as (a, b, fleet), async_client(fleet, metrics=metrics, clock=HandClock()) as (client, send):
        a.failing = True
        assert await client.call(USER, send) == "b"
        assert await client.call(USER, send) == "b"
        assert (a.asked, b.asked) == (1, 2)
        assert client.status().excluded == ("a",)
    assert metrics.total(Metric.RETRIES) == 1
    assert metrics.total(Metric.EXCLUSIONS) == 1
    assert metrics.total(Metric.REQUESTS, result="answered", pool="a table by hand") == 2


async def test_with_all_instances_down_a_request_fails_after_one_try_each_and_says_who() -> None:
    async with two_instances() as (a, b, fleet), async_client(fleet) as (client, send):
        a.failing = b.failing = True
        with pytest.raises(AllFailed, match="a: RemoteProtocolError; b: RemoteProtocolError") as failed:
            await client.call(USER, send)
        assert [name for name, _ in failed.value.errors] == ["a", "b"]
        assert (a.asked, b.asked) == (1, 1)


async def test_a_request_that_takes_longer_than_most_is_hedged_and_the_first_answer_counts() -> None:
    metrics = KeptMetrics()
    async with two_instances() as (a, b, fleet), async_client(fleet, hedge=ALWAYS, metrics=metrics) as (client, send):
        learned(client)
        a.gate = asyncio.Event()
        assert await client.call(USER, send) == "b"
        assert (a.asked, b.asked, a.finished) == (1, 1, 0)
        await asyncio.sleep(0)
        assert client.status().excluded == (), "slow is not failed"
        a.gate.set()
    assert metrics.total(Metric.HEDGES, result="won") == metrics.total(Metric.HEDGES, result="sent") == 1
    assert client._losers == set()


async def test_a_hedge_that_is_slower_changes_nothing() -> None:
    async with two_instances() as (a, b, fleet), async_client(fleet, hedge=ALWAYS) as (client, send):
        learned(client)
        a.gate, b.gate = asyncio.Event(), asyncio.Event()
        asking = asyncio.create_task(client.call(USER, send))
        async with asyncio.timeout(10):
            while not b.asked:  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.005)
        a.gate.set()
        assert await asking == "a"
        assert (a.asked, b.asked) == (1, 1)


@pytest.mark.parametrize("first_to_fail", ["a", "b"])
async def test_when_one_of_two_tries_fails_the_other_decides(first_to_fail: str) -> None:
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    begun: list[str] = []

    async def send(choice: Choice) -> str:
        name = choice.instance.name
        begun.append(name)
        await gates[name].wait()
        if name == first_to_fail:
            raise InstanceFailed(name)
        return name

    fleet = fleet_table({"a": "http://a", "b": "http://b"}, first="a")
    async with async_client(fleet, hedge=ALWAYS) as (client, _):
        learned(client)
        asking = asyncio.create_task(client.call(USER, send))
        async with asyncio.timeout(10):
            while len(begun) < 2:  # noqa: ASYNC110 - the two tries have no common event
                await asyncio.sleep(0.005)
        gates[first_to_fail].set()
        await asyncio.sleep(0.02)
        assert not asking.done()
        gates["b" if first_to_fail == "a" else "a"].set()
        assert await asking != first_to_fail
        assert begun == ["a", "b"], "no third try, none twice on one instance"


async def test_a_retry_that_is_slow_is_not_hedged_a_third_time() -> None:
    c = ToyInstance("c")
    async with two_instances() as (a, b, fleet), serving(c) as at_c:
        addresses = {row.name: row.address for row in fleet.instances}
        three = table(1, "abc")
        rows = [msgspec.structs.replace(row, address={**addresses, "c": at_c}[row.name]) for row in three.instances]
        async with async_client(msgspec.structs.replace(three, instances=rows), hedge=ALWAYS) as (client, send):
            learned(client)
            toys = {"a": a, "b": b, "c": c}
            first, second, third = (toys[pick.name] for pick in client.router.owners(user_key(SECRET, USER)))
            first.failing, second.gate = True, asyncio.Event()
            asking = asyncio.create_task(client.call(USER, send))
            await asyncio.sleep(0.1)  # five times the delay of a hedge
            second.gate.set()
            assert await asking == second.name
            assert (first.asked, second.asked, third.asked) == (1, 1, 0)


async def test_of_two_tries_that_end_together_an_answer_counts() -> None:
    gate, begun = asyncio.Event(), list[str]()

    async def send(choice: Choice) -> str:
        begun.append(choice.instance.name)
        await gate.wait()
        if choice.instance.name == "a":
            raise LookupError("the caller's own error, or an answer: both at once")
        return choice.instance.name

    async with async_client(fleet_table({"a": "x", "b": "y"}, first="a"), hedge=ALWAYS) as (client, _):
        for _ in range(10):
            learned(client)
            begun.clear()
            gate.clear()
            asking = asyncio.create_task(client.call(USER, send))
            async with asyncio.timeout(10):
                while len(begun) < 2:  # noqa: ASYNC110 - the two tries have no common event
                    await asyncio.sleep(0.005)
            gate.set()
            assert await asking == "b"


async def test_without_budget_or_another_instance_or_enough_answers_nothing_is_hedged() -> None:
    async with two_instances() as (a, b, fleet):
        never = HedgePolicy(budget_percent=0.0)
        one = table(1, "a", address=fleet.instances[0].address)
        for policy, tables, warm in ((never, fleet, True), (None, fleet, True), (ALWAYS, one, True), (ALWAYS, fleet, False)):
            a.gate, asked = asyncio.Event(), a.asked
            async with async_client(tables, hedge=policy) as (client, send):
                if warm:
                    learned(client)
                asking = asyncio.create_task(client.call(USER, send))
                async with asyncio.timeout(10):
                    while a.asked == asked:  # noqa: ASYNC110 - the server has no event
                        await asyncio.sleep(0.005)
                await asyncio.sleep(0.06)
                a.gate.set()
                assert await asking == "a"
        assert b.asked == 0


async def test_an_error_that_is_no_failure_of_an_instance_is_the_caller_s_at_once() -> None:
    async def send(choice: Choice) -> str:
        raise LookupError("no such item")

    metrics = KeptMetrics()
    async with async_client(fleet_table({"a": "x", "b": "y"}, first="a"), metrics=metrics) as (client, _):
        with pytest.raises(LookupError):
            await client.call(USER, send)
        assert client.status().excluded == ()
    assert metrics.total(Metric.REQUESTS, result="rejected") == 1


async def test_a_request_that_is_cancelled_cancels_its_tries() -> None:
    async with two_instances() as (a, b, fleet), async_client(fleet, hedge=ALWAYS) as (client, send):
        learned(client)
        a.gate, b.gate = asyncio.Event(), asyncio.Event()
        asking = asyncio.create_task(client.call(USER, send))
        async with asyncio.timeout(10):
            while not b.asked:  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.005)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(10):
            while client._losers:  # noqa: ASYNC110 - tasks that end by themselves
                await asyncio.sleep(0.005)


async def test_leaving_the_client_ends_the_following_and_closes_the_source() -> None:
    source = Fed(table(1))
    async with AsyncClient(source, KEY) as client:
        await client.ready(timeout_seconds=10)
    assert source.closed
    assert client.pick(USER).instance.generation == 1, "what it knew it still knows"
    async with AsyncClient(Fed(), KEY) as empty:
        with pytest.raises(TimeoutError):
            await empty.ready(timeout_seconds=0.02)
        with pytest.raises(NoInstance, match="no routing table yet"):
            empty.pick(USER)
    async with AsyncClient(Fed(table(1), tombstone(2)), KEY) as client:
        async with asyncio.timeout(10):
            while not client.status().withdrawn:  # noqa: ASYNC110 - the router has no event
                await asyncio.sleep(0.005)
        with pytest.raises(NoInstance, match="withdrawn"):
            await client.call(USER, lambda choice: asyncio.sleep(0, choice))


# ---------------------------------------------------------------- threads


class Loop:
    """An event loop in a thread of its own, for servers that a synchronous client speaks to."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[tuple[ToyInstance, ToyInstance, RoutingTable, Loop]]:
    loop, stack = Loop(), contextlib.AsyncExitStack()
    try:
        a, b, fleet = loop.run(stack.enter_async_context(two_instances()))
        yield a, b, fleet, loop
        loop.run(stack.aclose())
    finally:
        loop.stop()


def send_by_thread(choice: Choice) -> str:
    at = urlsplit(choice.instance.address)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=10)
    try:
        connection.request("GET", "/", headers=choice.headers)
        return connection.getresponse().read().decode()
    except http.client.HTTPException as error:
        raise InstanceFailed from error
    finally:
        connection.close()


Served = tuple[ToyInstance, ToyInstance, RoutingTable, Loop]


def test_threads_are_answered_by_the_owner_and_by_the_next_one_after_a_failure(served: Served) -> None:
    a, b, fleet, _ = served
    with Client(Fed(fleet), KEY) as client:
        client.ready(timeout_seconds=10)
        assert client.following
        assert client.call(USER, send_by_thread) == "a"
        a.failing = True
        assert client.call(USER, send_by_thread) == "b"
        b.failing = True
        with pytest.raises(AllFailed):
            client.call(USER, send_by_thread)
    assert not client.following


def test_a_slow_request_of_a_thread_is_hedged(served: Served) -> None:
    a, b, fleet, loop = served
    metrics = KeptMetrics()
    with Client(Fed(fleet), KEY, hedge=ALWAYS, metrics=metrics) as client:
        client.ready(timeout_seconds=10)
        learned(client)
        a.gate = asyncio.Event()
        assert client.call(USER, send_by_thread) == "b"
        assert (a.asked, b.asked, a.finished) == (1, 1, 0)
        loop.loop.call_soon_threadsafe(a.gate.set)
    assert metrics.total(Metric.HEDGES, result="won") == 1


def test_a_hedged_try_that_fails_is_tried_once_more_by_the_caller(served: Served) -> None:
    a, b, fleet, _ = served
    with Client(Fed(fleet), KEY, hedge=ALWAYS) as client:
        client.ready(timeout_seconds=10)
        learned(client, latency_ms=5_000.0)
        a.failing = True
        assert client.call(USER, send_by_thread) == "b"
        assert (a.asked, b.asked) == (1, 1)


def test_with_no_thread_free_requests_go_on_unhedged() -> None:
    let_go, entered = threading.Event(), threading.Semaphore(0)

    def send(choice: Choice) -> str:
        entered.release()
        assert let_go.wait(20)
        return choice.instance.name

    metrics = KeptMetrics()
    with Client(Fed(table(1, "ab")), KEY, hedge=ALWAYS, hedge_threads=1, metrics=metrics) as client:
        client.ready(timeout_seconds=10)
        learned(client)
        answers: list[str] = []
        threads = [threading.Thread(target=lambda: answers.append(client.call(USER, send))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert entered.acquire(timeout=20)
        time.sleep(0.05)  # past the hedge's delay of the one in the pool
        assert not entered.acquire(blocking=False)
        let_go.set()
        for thread in threads:
            thread.join()
    assert len(set(answers)) == 1
    assert (metrics.total(Metric.HEDGES, result="denied"), metrics.total(Metric.HEDGES, result="sent")) == (1, 0)


def test_a_synchronous_client_follows_a_watch_and_a_url(served: Served) -> None:
    *_, loop = served
    first, second = table(1), table(2)
    api = ScriptedApi([published(first, version=1)], watches=[play(event("MODIFIED", published(second, version=2)))])
    stack = contextlib.AsyncExitStack()

    async def web(request: Request, reply: Reply) -> None:
        await reply.whole(json.dumps(published(second, version=2)).encode())

    at_api, at_web = (loop.run(stack.enter_async_context(serving(each))) for each in (api, web))
    http_client = httpx.AsyncClient(base_url=at_api, trust_env=False)
    for source in (KubernetesSource(http_client, namespace="shop", name="feed", owned=True), f"{at_web}/table"):
        with Client(source, KEY) as client:
            end_s = time.monotonic() + 20
            while client.router.generation < 2 and time.monotonic() < end_s:
                time.sleep(0.01)
            assert client.pick(USER).instance.generation == 2
            assert client.status().contact_age_ms is not None
    assert http_client.is_closed
    loop.run(stack.aclose())


def test_a_thread_waits_for_the_first_table_only_as_long_as_it_wants() -> None:
    source = Fed()
    with Client(source, KEY) as client, pytest.raises(TimeoutError):
        client.ready(timeout_seconds=0.02)
    assert source.closed
