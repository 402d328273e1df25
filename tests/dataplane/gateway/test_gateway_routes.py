"""Where a request goes through a real HAProxy: the owner of its slot, its override, its echoed choice, or the fallback."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_world import POOL_KEY, Caller, Gateway, owner_in, row, table, until

import contract.vectors
from contract.keys import slot_of, user_key
from contract.table import InstanceState
from dataplane.gateway.config import FILLED_KEY, ID_TABLE
from dataplane.gateway.held import read_held
from dataplane.gateway.runtime_api import RuntimeApi
from dataplane.gateway.servers import server_id
from dataplane.picker.exchange import Edge

VECTORS = json.loads((Path(contract.vectors.__file__).parent / "keys.json").read_text())


async def test_a_request_reaches_the_owner_of_its_slot_and_the_answer_names_it(gateway: Gateway) -> None:
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    for user in (f"u-{i}" for i in range(60)):
        answer = await gateway.ask(user)
        assert answer.status == 200
        assert answer.me == answer.instance == owner_in(wanted)(user_key(POOL_KEY, user))


async def test_slots_of_hundreds_of_keys_are_those_of_the_contract(gateway: Gateway) -> None:
    """Each slot names one of many servers on one port, so the answer's header tells which slot HAProxy computed."""
    port = gateway.toys["a"].port
    rows = [row(f"i{n}", port) for n in range(64)]
    await gateway.offer(table(1, rows, owners=[slot % 64 for slot in range(4096)]))
    caller, low = Caller(gateway.port), {}
    for n in range(600):
        key = user_key(POOL_KEY, f"user {n}")
        answer = await caller.get({"x-gr-user-key": key})
        low[key] = int(answer.instance[1:])
    await gateway.offer(table(2, rows, owners=[slot // 64 for slot in range(4096)]))
    for key, lower in low.items():
        answer = await caller.get({"x-gr-user-key": key})
        assert 64 * int(answer.instance[1:]) + lower == slot_of(key)
    caller.close()


@pytest.mark.parametrize("pool_key", sorted({vector["poolKeyHex"] for vector in VECTORS}))
async def test_haproxy_hashes_as_the_shared_vectors_say(make: Callable[..., Gateway], pool_key: str) -> None:
    gateway = make(pool_key=bytes.fromhex(pool_key))
    await gateway.toy("a")
    await gateway.start_haproxy()
    gateway.start_agent()
    await gateway.offer(table(1, gateway.rows("a")))
    checked = 0
    for vector in VECTORS:
        user = vector["userId"]
        if vector["poolKeyHex"] != pool_key or user != user.strip():
            continue  # HTTP takes spaces off both ends of a header
        assert (await gateway.ask(user)).seen["x-gr-user-key"] == vector["userKey"], user
        checked += 1
    assert checked >= 5


async def test_an_override_wins_over_the_slot_and_its_end_gives_the_user_back(gateway: Gateway) -> None:
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    key = user_key(POOL_KEY, "hot")
    home = owner_in(wanted)(key)
    away = next(name for name in "abc" if name != home)
    gateway.agent.set_users({key: f"uid-{away}"})
    await gateway.settle()
    assert (await gateway.ask("hot")).me == away
    gateway.agent.set_users({})
    await gateway.settle()
    assert (await gateway.ask("hot")).me == home


async def test_an_override_whose_instance_is_down_falls_back_to_the_owner_of_the_slot(gateway: Gateway) -> None:
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    key = user_key(POOL_KEY, "hot")
    home = owner_in(wanted)(key)
    away = next(name for name in "abc" if name != home)
    gateway.agent.set_users({key: f"uid-{away}"})
    await gateway.settle()
    await gateway.toys[away].kill()
    for _ in range(20):  # the first few meet the dead one and are tried again elsewhere
        assert (await gateway.ask("hot")).status == 200
    assert (await gateway.ask("hot")).me == home


async def test_a_choice_that_is_echoed_holds_and_an_unknown_one_is_ignored(gateway: Gateway) -> None:
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    home = owner_in(wanted)(user_key(POOL_KEY, "u"))
    away = next(name for name in "abc" if name != home)
    assert (await gateway.ask("u", x_gr_instance=away)).me == away
    assert (await gateway.ask("u", x_gr_instance="nobody")).me == home
    assert (await gateway.ask("u", x_gr_instance="s1 or 1")).me == home


async def test_a_choice_of_a_draining_instance_still_holds_while_it_takes_no_new_users(gateway: Gateway) -> None:
    a, b, c = gateway.rows("a", "b", "c")
    await gateway.offer(table(1, [a, b, c]))
    leaving = row("a", gateway.toys["a"].port, state=InstanceState.DRAINING)
    await gateway.offer(table(2, [leaving, b, c]))
    assert {(await gateway.ask(f"u{i}")).me for i in range(40)} == {"b", "c"}
    assert (await gateway.ask("u1", x_gr_instance="a")).me == "a"


async def test_without_the_id_table_and_with_half_of_it_users_reach_who_the_tables_say(gateway: Gateway) -> None:
    """As after a reload: slots are taught by the old process, ids come with the agent."""
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    key = user_key(POOL_KEY, "hot")
    away = next(name for name in "abc" if name != owner_in(wanted)(key))
    gateway.agent.set_users({key: f"uid-{away}"})
    await gateway.settle()
    await gateway.stop_agent()
    api, ids = gateway.agent._api, [server_id(name, f"uid-{name}") for name in "ab"]
    assert set((await read_held(api, gateway.config)).ids or ()) == {FILLED_KEY, *ids, server_id("c", "uid-c")}
    for kept in ([], ids):
        await api.ask_all([f"clear table {ID_TABLE}", *(f"set table {ID_TABLE} key {i} data.server_id {i}" for i in kept)])
        assert (await gateway.ask("hot")).me == away
        for user in (f"u-{i}" for i in range(20)):
            assert (await gateway.ask(user)).me == owner_in(wanted)(user_key(POOL_KEY, user))
    await api.ask(f"set table {ID_TABLE} key {FILLED_KEY} data.server_id {FILLED_KEY}")
    assert {(await gateway.ask(f"u-{i}")).status for i in range(20)} == {200}, "c has no id: its users go to the hash"
    gateway.start_agent()
    await until(lambda: _filled(gateway, 4))


async def test_a_haproxy_that_an_older_gateway_started_without_an_id_table_is_served_all_else(
    make: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = make()
    for name in "abc":
        await gateway.toy(name)
    gateway.agent.write_files()
    path = gateway.config.directory / "haproxy.cfg"
    text = re.sub(rf"backend {ID_TABLE}\n.*\n|  stick match .*\n| unless {{ .*{ID_TABLE}.*", "", path.read_text())
    assert ID_TABLE not in text
    path.write_text(text)
    with monkeypatch.context() as patched:
        patched.setattr(gateway.agent, "write_files", lambda: None)
        await gateway.start_haproxy()
    gateway.start_agent()
    wanted = table(1, gateway.rows("a", "b", "c"))
    await gateway.offer(wanted)
    for user in (f"u-{i}" for i in range(20)):
        assert (await gateway.ask(user)).me == owner_in(wanted)(user_key(POOL_KEY, user))


async def test_the_id_of_a_server_that_left_is_forgotten(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    await gateway.offer(table(2, gateway.rows("a", "b")))
    await until(lambda: _filled(gateway, 3))
    await gateway.offer(table(3, []))
    await until(lambda: _filled(gateway, 1))


async def test_with_empty_tables_users_stick_to_one_server_by_the_fallback_hash(make: Callable[..., Gateway]) -> None:
    gateway = make()
    for name in "abc":
        await gateway.toy(name)
    gateway.agent.offer(table(1, gateway.rows("a", "b", "c")))  # servers come with the file; no agent runs
    await gateway.start_haproxy()
    first = {user: (await gateway.ask(user)).me for user in (f"u{i}" for i in range(30))}
    assert set(first.values()) == {"a", "b", "c"}
    assert all([(await gateway.ask(user)).me == me for user, me in first.items()])


@pytest.mark.parametrize(
    "user", ["a,b", "a b", "u;x=1", "用户", "Zoë", "x" * 10_000, '"quoted"', "%41", "a, b , c"], ids=lambda user: user[:8]
)
async def test_an_odd_id_is_hashed_whole(gateway: Gateway, user: str) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    answer = await gateway.ask(user)
    assert answer.seen["x-gr-user-key"] == user_key(POOL_KEY, user)
    assert "x-user-id" not in answer.seen


@pytest.mark.parametrize(
    "headers", [{}, {"x-user-id": ""}, {"x-user-id": "   "}, {"x-gr-user-key": "u-1"}, {"x-gr-user-key": "A" * 32}]
)
async def test_a_request_without_a_usable_id_is_served_by_anybody_and_carries_no_key(
    gateway: Gateway, headers: dict[str, str]
) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    answer = await Caller(gateway.port).get(dict(headers))
    assert answer.status == 200
    assert not {"x-gr-user-key", "x-user-id"} & set(answer.seen)


async def test_a_head_longer_than_the_buffer_is_refused_and_nobody_sees_it(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    assert (await gateway.ask("x" * 40_000)).status == 400
    assert sum(toy.served for toy in gateway.toys.values()) == 0


async def test_a_key_that_a_caller_made_itself_is_taken_and_a_raw_id_beside_it_wins(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    key = user_key(POOL_KEY, "u-1")
    assert (await Caller(gateway.port).get({"x-gr-user-key": key})).seen["x-gr-user-key"] == key
    both = await gateway.ask("u-2", x_gr_user_key=key)
    assert both.seen["x-gr-user-key"] == user_key(POOL_KEY, "u-2")


async def test_a_callers_name_of_a_key_goes_on_with_the_callers_key_alone(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    key, named = {"x-gr-user-key": user_key(POOL_KEY, "u-1")}, {"x-gr-key-id": "theirs"}
    caller = Caller(gateway.port)
    assert (await caller.get(key | named)).seen["x-gr-key-id"] == "theirs"
    for headers in (named, {"x-user-id": "u-2"} | named, {"x-user-id": "u-2"} | key | named):
        assert "x-gr-key-id" not in (await caller.get(headers)).seen, headers


async def test_of_two_headers_with_an_id_the_last_one_counts_and_neither_goes_further(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    answer = await Caller(gateway.port).get({"x-user-id": "first\r\nx-user-id: second"})
    assert answer.seen["x-gr-user-key"] == user_key(POOL_KEY, "second")
    assert "x-user-id" not in answer.seen


async def test_headers_that_come_more_than_once_mean_one_user_to_haproxy_and_to_the_picker(gateway: Gateway) -> None:
    """What HAProxy tests has to be what it takes: else anything a caller sent would go on as the key of a user."""
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    made, caller = user_key(POOL_KEY, "of the caller"), Caller(gateway.port)
    ids = [(), ("",), ("u-1", ""), ("", "u-1"), ("u-1", "u-2"), ("", "")]
    keys = [(), (made,), (made, "ann"), ("ann", made), (made, ""), ("ann",), (made.upper(),), (f"{made}0",)]
    for named, hashed in itertools.product(ids, keys):
        sent = [*(("x-user-id", each) for each in named), *(("x-gr-user-key", each) for each in hashed)]
        lines = "".join(f"\r\n{name}: {value}" for name, value in sent)
        seen = (await caller.get({"x-any": f"1{lines}"})).seen
        meant = Edge(pool_key=POOL_KEY).key_of({name: value.encode() for name, value in sent})  # of one name the last
        assert seen.get("x-gr-user-key", "") == meant, sent
        assert "x-user-id" not in seen
    caller.close()


async def test_no_raw_id_stands_in_tables_statistics_or_logs(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b", "c")))
    secret = "somebody@example.org"
    gateway.agent.set_users({user_key(POOL_KEY, secret): "uid-a"})
    await gateway.settle()
    await gateway.ask(secret)
    api = gateway.agent._api
    await gateway.stop_agent()
    shown = await api.ask_all(["show table gr_users", "show table gr_slots", "show stat", "show sess all", "show errors"])
    await api.close()
    assert user_key(POOL_KEY, secret) in shown[0]
    assert not any(secret in text for text in shown)
    assert secret not in (gateway.folder / "haproxy.log").read_text()


async def _filled(gateway: Gateway, count: int) -> bool:
    api = RuntimeApi(gateway.config.admin_socket)
    try:
        return len((await read_held(api, gateway.config)).ids or ()) == count
    finally:
        await api.close()
