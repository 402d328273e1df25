"""Many hot users at once by the protocol of HAProxy's peers: the words of it, and what a real HAProxy makes of them."""

import asyncio
import contextlib
import signal
from collections.abc import Callable

import pytest
from gateway_world import POOL_KEY, Gateway, free_port, table, until
from hypothesis import given
from hypothesis import strategies as st

from contract.keys import user_key
from dataplane.gateway.config import USER_TABLE, peers_of
from dataplane.gateway.held import read_held
from dataplane.gateway.peer_push import decoded, definition, encoded, messages, push_users, updates
from dataplane.gateway.runtime_api import RuntimeApi, RuntimeUnavailable
from dataplane.gateway.servers import server_id
from dataplane.gateway.tables import UserCommands
from dataplane.gateway.writing import PUSH_FROM

KEYS = [user_key(POOL_KEY, f"hot{i}") for i in range(3000)]


async def users_held(gateway: Gateway) -> dict[str, int]:
    api = RuntimeApi(gateway.config.admin_socket)
    try:
        return dict((await read_held(api, gateway.config)).users)
    finally:
        await api.close()


async def test_thousands_of_users_are_set_moved_and_released_and_the_command_line_sees_each_of_them(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    ids = {name: server_id(name, f"uid-{name}") for name in "abc"}
    for owners in ("abc", "bca", "ab"):
        users = {key: f"uid-{owners[n % len(owners)]}" for n, key in enumerate(KEYS[: 1000 * len(owners)])}
        gateway.agent.set_users(users)
        await gateway.settle()
        await gateway.stop_agent()
        await gateway.agent.reconcile()
        assert await users_held(gateway) == {key: ids[uid[-1]] for key, uid in users.items()}
        gateway.start_agent()
    assert (await gateway.ask("hot0")).me == "a"


@pytest.mark.slow
async def test_a_successor_of_a_reload_has_them_although_no_agent_is_there(make: Callable[..., Gateway]) -> None:
    """A HAProxy teaches its successor only when it is ten seconds old: so long it waits itself to be taught."""
    gateway = make()
    await gateway.toy("a")
    gateway.agent.offer(table(1, gateway.rows("a")))
    await gateway.start_haproxy("-W")
    gateway.start_agent()
    gateway.agent.set_users(dict.fromkeys(KEYS, "uid-a"))
    await gateway.settle()
    await gateway.stop_agent()
    before = await users_held(gateway)
    assert len(before) == len(KEYS)
    await asyncio.sleep(11)
    assert gateway.process is not None
    first = await _worker(gateway)
    gateway.process.send_signal(signal.SIGUSR2)
    await until(lambda: _succeeded(gateway, first))
    await until(lambda: _holds(gateway, before))


async def _worker(gateway: Gateway) -> str:
    """The process that answers now; nothing while none does, or while it is stopping."""
    api = RuntimeApi(gateway.config.admin_socket)
    try:
        info = dict(line.split(": ", 1) for line in (await api.ask("show info")).splitlines() if ": " in line)
        return info["Pid"] if info.get("Stopping", "0") == "0" else ""
    except RuntimeUnavailable:
        return ""
    finally:
        await api.close()


async def _succeeded(gateway: Gateway, first: str) -> bool:
    return await _worker(gateway) not in ("", first)


async def _holds(gateway: Gateway, users: dict[str, int]) -> bool:
    try:
        return await users_held(gateway) == users
    except RuntimeUnavailable:
        return False


async def test_a_replica_that_starts_learns_them_from_the_other(make: Callable[..., Gateway]) -> None:
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("left", "right")}
    left, right = (make(name, peers=ports, local_peer=name) for name in ports)
    right.toys["a"] = await left.toy("a")
    await left.start_haproxy()
    left.start_agent()
    await left.offer(table(1, left.rows("a")))
    left.agent.set_users(dict.fromkeys(KEYS, "uid-a"))
    await left.settle()
    await right.start_haproxy()
    await until(lambda: _holds(right, dict.fromkeys(KEYS, server_id("a", "uid-a"))))


async def test_a_haproxy_that_does_not_know_the_agent_as_a_peer_gets_them_one_by_one(make: Callable[..., Gateway]) -> None:
    gateway = make()
    await gateway.toy("a")
    gateway.agent.offer(table(1, gateway.rows("a")))
    path = gateway.config.directory / "haproxy.cfg"
    lines = [line for line in path.read_text().splitlines() if "peer grfleet-agent" not in line]
    path.write_text("\n".join(lines) + "\n")
    gateway.agent.write_files = lambda: None  # type: ignore[method-assign]  # the file of an older version stays
    await gateway.start_haproxy()
    with pytest.raises(RuntimeUnavailable):
        await push_users(
            peers_of(gateway.config)["local"], [(KEYS[0], 1)], table=USER_TABLE, local_peer=gateway.config.local_peer
        )
    gateway.agent.set_users(dict.fromkeys(KEYS[:500], "uid-a"))
    assert await gateway.agent.reconcile()
    assert len(await users_held(gateway)) == 500


@pytest.mark.parametrize("says", [b"", b"504\n", b"200\n", b"200\n" + b"\xff" * 100, b"200\n\x0a\x80\xff\xff\xff\xff\xff\x7f"])
async def test_one_that_hangs_up_or_talks_nonsense_is_given_up(says: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        writer.close()

    port = free_port()
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        with pytest.raises(RuntimeUnavailable):
            await push_users(f"127.0.0.1:{port}", [(KEYS[0], 1)], table=USER_TABLE, local_peer="local", timeout_s=2.0)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", ":{}", "*:{}"])
async def test_one_that_listens_everywhere_is_called_here(address: str) -> None:
    called = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        writer.close()

    port = free_port()
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        with pytest.raises(RuntimeUnavailable):
            await push_users(address.format(port), [(KEYS[0], 1)], table=USER_TABLE, local_peer="local")
    assert called.is_set()


@pytest.mark.parametrize("how_many", [PUSH_FROM - 56, 4 * PUSH_FROM], ids=["by commands", "pushed"])
async def test_all_hot_users_may_change_at_once_however_many_there_may_be(make: Callable[..., Gateway], how_many: int) -> None:
    """A table without room drops what is pushed without a word, and the agent would not know for a minute."""
    gateway = make(max_users=how_many)
    await gateway.toy("a")
    await gateway.start_haproxy()
    gateway.start_agent()
    await gateway.offer(table(1, gateway.rows("a")))
    for first in range(3):
        users = {f"{first:x}{n:031x}": "uid-a" for n in range(how_many)}
        gateway.agent.set_users(users)
        await gateway.settle()
        assert users.keys() <= (await users_held(gateway)).keys()


async def test_one_that_never_confirms_is_given_up_in_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"200\n\x00\x00\x00\x04")
        await reader.read()
        writer.close()

    port = free_port()
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        with pytest.raises(RuntimeUnavailable, match="Timeout"):
            await push_users(f"127.0.0.1:{port}", [(KEYS[0], 1)], table=USER_TABLE, local_peer="local", timeout_s=0.1)


@given(st.integers(0, 2**32))
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    assert decoded(encoded(number) + b"\x00", 0) == (number, len(encoded(number)))


@pytest.mark.parametrize(
    ("number", "length"), [(239, 1), (240, 2), (2287, 2), (2288, 3), (264_431, 3), (264_432, 4), (33_818_864, 5)]
)
def test_numbers_are_as_long_as_the_protocol_says(number: int, length: int) -> None:
    assert len(encoded(number)) == length


@given(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=20), st.integers(1, 50))
def test_messages_are_found_again_however_they_arrive(owners: list[int], piece: int) -> None:
    sent = [definition(USER_TABLE), *updates([(KEYS[n], owner) for n, owner in enumerate(owners)])]
    stream, buffer, found = b"".join(sent), bytearray(), []
    for start in range(0, len(stream), piece):
        buffer += stream[start : start + piece]
        found += list(messages(buffer))
    assert not buffer
    assert [number for _, number, _ in found] == [130, 128, *[129] * (len(owners) - 1)]
    values = [decoded(data, 33 + 4 * (number == 128))[0] for _, number, data in found[1:]]
    assert values == owners


@given(st.binary(max_size=300))
def test_noise_is_a_value_error_or_nothing(noise: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(messages(bytearray(noise)))


def test_a_key_that_is_none_is_never_sent() -> None:
    with pytest.raises(ValueError):
        list(updates([(KEYS[0], 1), ("short", 1)]))


def test_commands_of_users_are_made_when_they_are_read() -> None:
    commands = UserCommands([("a", 1), ("b", 2), ("c", 3)])
    assert list(commands) == [f"set table {USER_TABLE} key {key} data.gpt0 {n}" for key, n in (("a", 1), ("b", 2), ("c", 3))]
    assert commands[-1].endswith("3")
    assert [*commands[1:]] == [*commands][1:]
