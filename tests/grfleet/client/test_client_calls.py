"""Requests of the async and the sync client against servers on loopback: retry, hedge, budget, and no raw user id anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from client_tables import KEY, SECRET, Fed, HandClock, table, tombstone
from hypothesis import given
from hypothesis import strategies as st
from loopback_servers import ToyInstance, serving

from contract.keys import SLOTS, slot_of, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from grfleet.client import (
    AllFailed,
    AsyncClient,
    BadUserId,
    Choice,
    Client,
    ClientError,
    HedgePolicy,
    InstanceFailed,
    KeptMetrics,
    KeyMismatch,
    Metric,
    NoInstance,
    PoolKey,
)
from grfleet.client.face import FAILURES, Try
from grfleet.client.hedge import HedgeBudget, Latencies

USER = "Ada Lovelace/42"
ALWAYS = HedgePolicy(budget_percent=100.0, least_delay_ms=20.0, samples=50)
HTTP_FAILURES = (*FAILURES, httpx.TransportError)


def fleet_table(addresses: dict[str, str], *, first: str) -> RoutingTable:
    """A table in which the user of these tests belongs to `first`, and the other one is the next owner."""
    names = sorted(addresses)
    owner, other = names.index(first), names.index(next(name for name in names if name != first))
    instances = [
        TableInstance(name=n, uid=f"uid-{n}", address=addresses[n], weight_percent=100, state=InstanceState.READY) for n in names
    ]
    slots = [owner] * SLOTS
    slots[(slot_of(user_key(SECRET, USER)) + 1) % SLOTS] = other
    return RoutingTable(generation=1, instances=instances, slots=pack_slots(slots))


@contextlib.asynccontextmanager
async def two_instances() -> AsyncIterator[tuple[ToyInstance, ToyInstance, RoutingTable]]:
    a, b = ToyInstance("a"), ToyInstance("b")
    async with serving(a) as at_a, serving(b) as at_b:
        yield a, b, fleet_table({"a": at_a, "b": at_b}, first="a")


@contextlib.asynccontextmanager
async def async_client(fleet: RoutingTable, **options: Any) -> AsyncIterator[tuple[AsyncClient, Callable[[Choice], Any]]]:
    options = {"failures": HTTP_FAILURES, **options}
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as http, AsyncClient(Fed(fleet), KEY, **options) as client:
        await client.ready(timeout_seconds=10)

        async def send(choice: Choice) -> str:
            return (await http.get(choice.instance.address, headers=choice.headers)).text

        yield client, send


def learned(client: AsyncClient | Client, latency_ms: float = 1.0) -> None:
    """As after many quick answers, with a full purse."""
    for _ in range(100):
        client._latencies.add(latency_ms)
        client._budget.request()


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
    async with two_instances() as (a, b, fleet), async_client(fleet, metrics=metrics) as (client, send):
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
        client.call(USER, send_by_thread, prefer="b")
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

    with Client(Fed(table(1, "ab")), KEY, hedge=ALWAYS, hedge_threads=1) as client:
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


def test_a_thread_waits_for_the_first_table_only_as_long_as_it_wants() -> None:
    source = Fed()
    with Client(source, KEY) as client, pytest.raises(TimeoutError):
        client.ready(timeout_seconds=0.02)
    assert source.closed


# ---------------------------------------------------------------- hedges by number


@given(st.floats(0.0, 100.0), st.floats(1.0, 50.0), st.lists(st.booleans(), max_size=300))
def test_hedges_are_at_no_moment_more_than_their_share_of_the_requests(percent: float, hoard: float, wanted: list[bool]) -> None:
    budget, taken = HedgeBudget(percent=percent, hoard=hoard), 0
    for requests, wants in enumerate(wanted, start=1):
        budget.request()
        taken += wants and budget.take()
        assert taken <= requests * percent / 100.0 + 1e-6


def test_quiet_hours_save_up_only_a_hoard_of_hedges() -> None:
    budget = HedgeBudget(percent=10.0, hoard=10.0)
    for _ in range(10_000):
        budget.request()
    assert sum(budget.take() for _ in range(100)) == 10


@given(st.lists(st.floats(0.0, 1e6), min_size=50, max_size=50))
def test_the_p99_is_that_of_the_answers_seen(latencies: list[float]) -> None:
    seen = Latencies()
    for latency in latencies[:-1]:
        seen.add(latency)
    assert seen.p99_ms(samples=50) is None
    seen.add(latencies[-1])
    assert seen.p99_ms(samples=50) == sorted(latencies)[49]


async def test_the_delay_of_a_hedge_is_a_share_of_the_p99_and_tries_given_up_count_too() -> None:
    clock = HandClock()
    client = AsyncClient(Fed(), KEY, hedge=HedgePolicy(delay_percent=150.0, samples=50), clock=clock)
    assert client.hedge_delay_ms() is None
    learned(client, latency_ms=40.0)
    assert client.hedge_delay_ms() == pytest.approx(60.0)
    client.router.accept(table(1))
    choice = client.pick(USER)
    slow, quick = Try(choice, clock.now_ms, hedge=False), Try(choice, clock.now_ms + 90.0, hedge=True)
    clock.now_ms += 100.0
    for _ in range(50):
        client.won(quick, others=[slow])
    assert client.hedge_delay_ms() == pytest.approx(150.0)


@pytest.mark.parametrize("wrong", [{"budget_percent": 101.0}, {"delay_percent": 0.0}, {"samples": 0}, {"hoard": 0.5}])
def test_a_hedge_policy_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="hedge"):
        HedgePolicy(**wrong)


# ---------------------------------------------------------------- keys and ids


async def test_the_key_that_the_table_names_is_used_and_another_one_is_told_or_refused() -> None:
    old, new = PoolKey("old", b"o" * 16), PoolKey("new", b"n" * 16)
    metrics = KeptMetrics()
    client = AsyncClient(Fed(), [old, new], metrics=metrics, strict_key=True)
    for generation, held in ((1, old), (2, new)):
        client.router.accept(table(generation, key_id=held.key_id))
        choice = client.pick(USER)
        assert (choice.user_key, choice.key_id) == (user_key(held.secret, USER), held.key_id)
        assert client.key_fits
    client.router.accept(table(3, key_id="foreign"))
    assert not client.key_fits
    assert metrics.total(Metric.KEY_MISMATCHES) == 1
    with pytest.raises(KeyMismatch, match="'foreign'"):
        client.pick(USER)
    assert client.pick_any().headers.keys() == {"x-gr-instance"}
    lenient = AsyncClient(Fed(), [old, new])
    lenient.router.accept(table(3, key_id="foreign"))
    assert lenient.pick(USER).key_id == "old", "served, though it will miss"


@pytest.mark.parametrize("wrong", ["", "lone \ud800 surrogate"])
def test_an_id_that_cannot_be_hashed_is_refused_without_being_repeated(wrong: str) -> None:
    client = AsyncClient(Fed(), KEY)
    client.router.accept(table(1))
    with pytest.raises(BadUserId) as refused:
        client.pick(wrong)
    error: BaseException | None = refused.value
    while error is not None:
        assert "surrogate" not in repr(error)
        assert not isinstance(error, UnicodeEncodeError), "it holds the whole id"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("odd", [" ", "a b", "ü☃", "x" * 10_000, "a\nb", "\x00"])
def test_odd_ids_are_users_like_others(odd: str) -> None:
    client = AsyncClient(Fed(), KEY)
    client.router.accept(table(1))
    assert client.pick(odd).user_key == user_key(SECRET, odd)


def test_keys_are_checked_and_do_not_show() -> None:
    assert "0123456789abcdef" not in repr(KEY)
    with pytest.raises(ValueError, match="16 bytes") as short:
        PoolKey("short", b"seven77")
    assert "seven77" not in str(short.value)
    for wrong in ([], [KEY, KEY]):
        with pytest.raises(ValueError, match="keys"):
            AsyncClient(Fed(), wrong)


async def test_no_raw_user_id_gets_into_answers_errors_metrics_logs_or_the_client_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret_user, problems, shown = "raw-user-4711", list[str](), list[str]()

    class Shown(KeptMetrics):
        def count(self, name: str, value: int = 1, **labels: str) -> None:
            shown.append(f"{name} {labels}")

    async with two_instances() as (a, b, fleet):
        client = AsyncClient(Fed(fleet), KEY, failures=HTTP_FAILURES, metrics=Shown(), on_problem=problems.append)
        async with client, httpx.AsyncClient(trust_env=False) as http:
            await client.ready(timeout_seconds=10)

            async def send(choice: Choice) -> str:
                return (await http.get(choice.instance.address, headers=choice.headers)).text

            await client.call(secret_user, send)
            a.failing = b.failing = True
            with pytest.raises(ClientError) as failed:
                await client.call(secret_user, send)
            client.router.overrides.put(client.pick(secret_user).user_key, "uid-b", until_ms=1e18)
            shown += [
                repr(client.pick(secret_user)),
                repr(client.status()),
                repr(vars(client)),
                repr(client.router.overrides.held.uids),
            ]
            shown += ["".join(traceback.format_exception(failed.value)), *a.users, *b.users, *problems, caplog.text]
    assert not [each for each in shown if secret_user in each]
