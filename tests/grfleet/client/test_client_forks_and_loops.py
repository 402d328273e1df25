"""Clients in the child of a fork, and in event loops that ended: nothing waits for who is not there, and picks go on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from client_tables import KEY, Fed, table

from grfleet.client import AsyncClient, Client, HedgePolicy, Router

EAGER = HedgePolicy(budget_percent=100.0, least_delay_ms=0.001, samples=50)


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether it comes to a good end in the child of a fork, and within some seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_client_that_was_entered_before_a_fork_goes_on_in_the_child_by_the_last_table() -> None:
    with Client(Fed(table(1)), KEY, hedge=EAGER, hedge_threads=8) as client:
        client.ready(timeout_seconds=20)
        for _ in range(60):  # from then on it hedges
            client.call("user", lambda choice: choice.instance.name)
        everybody = threading.Barrier(8)
        for done in [client._pool.submit(everybody.wait, 20) for _ in range(8)]:
            done.result()  # the threads of the pool are idle now, and not in the child

        def work() -> bool:
            answers = {client.call("user", lambda choice: (time.sleep(0.01), choice.instance.name)[1]) for _ in range(3)}
            return not client.following and client.pick("user").instance.name in "abc" and answers <= set("abc")

        assert in_a_child(work)
        assert client.following
        assert client.call("user", lambda choice: choice.instance.name)


def test_locks_that_threads_of_the_parent_hold_are_open_in_the_child() -> None:
    router = Router()
    with Client(Fed(table(1)), KEY, hedge=EAGER) as client:
        client.ready(timeout_seconds=20)
        for each in (router, client.router):
            each.accept(table(2))
        held = [client._latencies._lock, client._budget._lock]
        for each in (router, client.router):
            held += [each._lock, each._exclusions._lock, each.overrides._lock]
        for lock in held:
            lock.acquire()
        try:

            def work() -> bool:
                for each in (router, client.router):
                    uid = each.pick("0" * 32).uid
                    each.overrides.put("0" * 32, uid, until_ms=float("inf"))
                    each.failed(uid)
                    each.succeeded(uid)
                    each.accept(table(3))
                client.call("user", lambda choice: choice.instance.name)
                client._budget.take()
                return all(each.generation == 3 for each in (router, client.router))

            assert in_a_child(work)
        finally:
            for lock in held:
                lock.release()


def test_an_async_client_says_whether_its_loop_follows_and_picks_go_on_after_the_loop() -> None:
    client = AsyncClient(Fed(table(1)), KEY)
    assert not client.following

    async def entered() -> None:
        await client.__aenter__()
        await client.ready(timeout_seconds=20)
        assert client.following

    asyncio.run(entered())  # ends with the client still entered: its task is cancelled
    assert not client.following
    assert client.pick("user").instance.name

    async def again() -> str:
        return await client.call("user", send)

    async def send(choice: object) -> str:
        return "answered"

    assert asyncio.run(again()) == "answered"


@pytest.mark.parametrize("left", [True, False])
def test_a_client_is_entered_once_and_says_so_rather_than_follow_nothing(left: bool) -> None:
    async def twice() -> None:
        client = AsyncClient(Fed(table(1)), KEY)
        await client.__aenter__()
        if left:
            await client.__aexit__()
        with pytest.raises(RuntimeError, match="once"):
            await client.__aenter__()
        if not left:
            await client.__aexit__()

    asyncio.run(twice())
    client = Client(Fed(table(1)), KEY)
    with client:
        pass
    with pytest.raises(RuntimeError, match="once"), client:
        pass
