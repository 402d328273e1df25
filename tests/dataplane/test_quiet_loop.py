"""Waiting for bytes on a socket without a turn of the loop: heard, late, cancelled, and what everybody else does meanwhile."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from both_loops import FAR_S, Counting, on_both_loops

from dataplane.agent.alarm import Alarm
from dataplane.quiet_loop import forget, readable

Scenario = Callable[[socket.socket, socket.socket], Coroutine[Any, Any, None]]


def connected(scenario: Scenario) -> Callable[[type[asyncio.AbstractEventLoop]], None]:
    """A test that runs a scenario with two ends of a connection on both loops."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            await scenario(ours, theirs)
            forget(ours)

    return on_both_loops(run)


async def _in_time(ours: socket.socket, theirs: socket.socket) -> None:
    for part in (b"a", b"b"):
        asyncio.get_running_loop().call_later(0.001, theirs.send, part)
        assert await readable(ours, within_s=FAR_S) is True
        assert ours.recv(9) == part
    theirs.send(b"already there")
    assert await readable(ours, within_s=FAR_S) is True


async def _too_late(ours: socket.socket, theirs: socket.socket) -> None:
    assert [await readable(ours, within_s=within_s) for within_s in (0.001, 0.0, -1.0)] == [False] * 3
    theirs.send(b"late")
    assert await readable(ours, within_s=FAR_S) is True


async def _at_the_end(ours: socket.socket, theirs: socket.socket) -> None:
    asyncio.get_running_loop().call_later(0.001, theirs.shutdown, socket.SHUT_RDWR)
    assert await readable(ours, within_s=FAR_S) is True
    assert ours.recv(9) == b""


async def _cancelled(ours: socket.socket, theirs: socket.socket) -> None:
    for heard_first in (False, True):
        task = asyncio.create_task(readable(ours, within_s=FAR_S))
        await asyncio.sleep(0)
        if heard_first:
            theirs.send(b"x")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await readable(ours, within_s=FAR_S) is True


async def _beside_a_sleeper(ours: socket.socket, theirs: socket.socket) -> None:
    """One task sleeps, one listens, one has an ordinary socket: each wakes for its own reason."""
    loop, more = asyncio.get_running_loop(), socket.socketpair()
    with more[0], more[1]:
        more[0].setblocking(False)
        listening = asyncio.create_task(readable(ours, within_s=FAR_S))
        ordinary = asyncio.create_task(loop.sock_recv(more[0], 9))
        alarm = Alarm()
        assert [await alarm.sleep(0.001) for _ in range(3)] == [False] * 3
        assert not listening.done()
        theirs.send(b"x")
        more[1].send(b"y")
        assert list(await asyncio.gather(listening, ordinary)) == [True, b"y"]
    assert ours.recv(9) == b"x"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(readable(ours, within_s=FAR_S), 0.005)


async def _nobody_listens(ours: socket.socket, theirs: socket.socket) -> None:
    """What comes while nobody listens makes nobody busy, and is there for the next one who does."""
    assert await readable(ours, within_s=0.001) is False
    theirs.send(b"x")
    loop = asyncio.get_running_loop()
    before = getattr(loop, "turns", 0)
    for _ in range(3):
        await asyncio.sleep(0.01)
    assert getattr(loop, "turns", 0) - before < 20
    assert await readable(ours, within_s=FAR_S) is True


async def _closed_and_another(ours: socket.socket, theirs: socket.socket) -> None:
    """A socket that takes the number of a closed one is its own."""
    for _ in range(3):
        one, other = socket.socketpair()
        one.setblocking(False)
        assert await readable(one, within_s=0.001) is False
        other.send(b"x")
        assert await readable(one, within_s=FAR_S) is True
        forget(one)
        forget(one)
        one.close()
        other.close()


test_bytes_are_heard_when_they_come_and_when_they_are_there_already = connected(_in_time)
test_a_wait_ends_in_time_and_what_comes_later_is_not_lost = connected(_too_late)
test_the_end_of_a_connection_is_heard = connected(_at_the_end)
test_a_cancelled_wait_ends_its_task_also_when_it_has_just_been_heard = connected(_cancelled)
test_who_sleeps_who_listens_and_who_has_an_ordinary_socket_wake_each_for_their_reason = connected(_beside_a_sleeper)
test_what_comes_while_nobody_listens_makes_nobody_busy = connected(_nobody_listens)
test_a_closed_socket_leaves_its_number_to_the_next = connected(_closed_and_another)


def test_on_the_quiet_loop_questions_and_answers_need_no_turn() -> None:
    async def scenario() -> int:
        loop, alarm, (ours, theirs) = asyncio.get_running_loop(), Alarm(), socket.socketpair()
        assert isinstance(loop, Counting)
        with ours, theirs:
            before = loop.turns
            for _ in range(50):
                await alarm.sleep(0.0005)
                theirs.send(b"x")
                assert await readable(ours, within_s=FAR_S)
                assert ours.recv(1) == b"x"
                assert not await readable(ours, within_s=0.0005)
            forget(ours)
        return loop.turns - before

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(scenario()) < 10
