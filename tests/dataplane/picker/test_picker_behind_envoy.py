"""The picker behind a real Envoy: where requests go, what instances and callers see, and what happens when somebody is gone."""

import asyncio
import hashlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from multidict import CIMultiDict
from picker_world import MOST_IN_FLIGHT, POOL_KEY, World, owner_in, row

import contract.vectors
from contract.keys import user_key
from contract.table import InstanceState

pytestmark = pytest.mark.asyncio(loop_scope="module")
VECTORS = [
    vector
    for vector in json.loads((Path(contract.vectors.__file__).parent / "keys.json").read_text())
    if bytes.fromhex(vector["poolKeyHex"]) == POOL_KEY and vector["userId"] == vector["userId"].strip()
]
USERS = [f"user-{number}" for number in range(24)]


@pytest.mark.parametrize("port", ["plain", "duplex"])
async def test_a_user_reaches_the_owner_of_its_slot_and_the_answer_names_it(world: World, port: str) -> None:
    for user in USERS:
        answer = await world.ask(user, port=port)
        assert (answer.status, answer.me, answer.instance) == (200, owner_in(world.table, user), owner_in(world.table, user))


async def test_an_instance_sees_the_key_of_the_user_and_never_the_id(world: World) -> None:
    seen = (await world.ask("ann")).said["headers"]
    assert seen["x-gr-user-key"] == user_key(POOL_KEY, "ann")
    assert seen["x-gr-key-id"] == "k1"
    assert "x-user-id" not in seen
    assert not [value for value in seen.values() if "ann" in value]


async def test_the_choice_of_an_answer_may_be_echoed_and_holds_while_the_table_moves_on(world: World) -> None:
    first = await world.ask("ann")
    others = [name for name in "abc" if name != first.me]
    await world.offer([row(first.me, world.toys[first.me].port, state=InstanceState.DRAINING), *world.rows(*others)])
    assert (await world.ask("ann")).me in others
    assert (await world.ask("ann", x_gr_instance=first.instance)).me == first.me
    assert (await world.ask("ann", x_gr_instance="nobody")).me in others
    assert "x-gr-instance" not in (await world.ask("ann", x_gr_instance=others[0])).said["headers"]


async def test_a_drained_instance_gets_nobody_and_the_users_of_the_others_stay(world: World) -> None:
    before = {user: (await world.ask(user)).me for user in USERS}
    await world.offer(world.rows("a", "c"))
    after = {user: (await world.ask(user)).me for user in USERS}
    assert "b" in before.values()
    assert "b" not in after.values()


async def test_an_instance_that_was_killed_costs_no_answer_envoy_goes_down_the_list_that_the_picker_gave(world: World) -> None:
    retried = await world.metric("grfleet_picker_retried_total")
    await world.toys["b"].kill()
    orphans = [user for user in USERS if owner_in(world.table, user) == "b"]
    answers = [await world.ask(user) for user in orphans]
    assert {answer.status for answer in answers} == {200}
    assert {answer.me for answer in answers} <= {"a", "c"}
    assert [answer.instance for answer in answers] == [answer.me for answer in answers]
    assert await world.metric("grfleet_picker_retried_total") > retried


async def test_an_instance_that_dies_with_requests_in_hand_loses_none_that_it_had_not_begun_to_answer(world: World) -> None:
    world.toys["b"].hold.clear()
    orphans = [user for user in USERS if owner_in(world.table, user) == "b"][:MOST_IN_FLIGHT]
    waiting = [asyncio.ensure_future(world.ask(user)) for user in orphans]

    async def in_hand() -> bool:
        return len(world.toys["b"].in_hand) == len(orphans)

    await world.until(in_hand, "b has the requests")
    await world.toys["b"].kill()
    answers = await asyncio.gather(*waiting)
    assert {answer.status for answer in answers} == {200}
    assert {answer.me for answer in answers} <= {"a", "c"}


async def test_only_endpoints_of_the_subset_are_chosen(world: World) -> None:
    assert {(await world.ask(user, port="subset")).me for user in USERS} == {"b"}
    await world.offer(world.rows("a", "c"))
    answer = await world.ask("ann", port="subset")
    assert (answer.status, answer.headers.get("x-gr-instance")) == (503, None)


@pytest.mark.parametrize("port", ["plain", "duplex"])
async def test_without_instances_the_answer_is_503_at_once_and_a_later_table_is_obeyed(world: World, port: str) -> None:
    await world.offer([])
    answer = await world.ask("ann", port=port, data=b"x" * 100_000)
    assert answer.status == 503
    assert b"withdrawn" in answer.body
    await world.offer(world.rows("a"))
    assert (await world.ask("ann", port=port)).me == "a"


async def test_requests_are_shed_with_429_while_every_instance_is_full(world: World) -> None:
    await world.offer(world.rows("a"))
    world.toys["a"].hold.clear()
    waiting = [asyncio.ensure_future(world.ask(user)) for user in USERS[:MOST_IN_FLIGHT]]

    async def full() -> bool:
        return await world.metric("grfleet_picker_most_in_flight") == MOST_IN_FLIGHT

    await world.until(full, "a is full")
    answer = await world.ask("ann")
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    world.toys["a"].hold.set()
    assert {each.status for each in await asyncio.gather(*waiting)} == {200}
    assert (await world.ask("ann")).status == 200


@pytest.mark.parametrize("port", ["plain", "duplex"])
async def test_bodies_of_several_mebibytes_pass_unchanged_both_ways(world: World, port: str) -> None:
    body = bytes(range(256)) * (5 * 4096)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 70_001):
            yield body[start : start + 70_001]

    said = (await world.ask("ann", port=port, data=pieces())).said
    assert (said["size"], said["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    back = await world.ask("ann", port=port, path="/give-back", data=body)
    assert back.body == body
    assert back.headers["x-me"] == back.instance == owner_in(world.table, "ann")


@pytest.mark.parametrize(
    "user", ["two words", "a, b", "Zoë", "雪だるま☃", "x" * 10_000, "0", "{};--"], ids=lambda user: user[:12]
)
async def test_odd_ids_are_hashed_whole_with_the_vectors_that_all_faces_share(world: World, user: str) -> None:
    answer = await world.ask(user)
    assert answer.said["headers"]["x-gr-user-key"] == user_key(POOL_KEY, user)
    assert answer.me == owner_in(world.table, user)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["userKey"][:8])
async def test_keys_at_the_edge_are_those_of_the_shared_vectors(world: World, vector: dict[str, str]) -> None:
    seen = (await world.ask(vector["userId"])).said["headers"]
    assert seen["x-gr-user-key"] == vector["userKey"]


async def test_a_request_without_a_user_goes_anywhere_and_hands_no_key_on(world: World) -> None:
    for headers in ({}, {"x_user_id": ""}, {"x_gr_user_key": "not a key"}, {"x_gr_user_key": "A" * 32}):
        answer = await world.ask(None, **headers)
        assert answer.status == 200
        assert not {"x-gr-user-key", "x-user-id"} & set(answer.said["headers"])
    assert len({(await world.ask(None)).me for _ in range(60)}) == 3


async def test_a_key_that_its_caller_has_made_is_taken_as_it_is(world: World) -> None:
    answer = await world.ask(None, x_gr_user_key=user_key(POOL_KEY, "ann"))
    assert answer.me == owner_in(world.table, "ann")
    assert answer.said["headers"]["x-gr-user-key"] == user_key(POOL_KEY, "ann")


async def test_of_two_ids_the_last_counts(world: World) -> None:
    headers = CIMultiDict([("x-user-id", "eve"), ("x-user-id", "ann")])
    async with world.session.get(f"http://127.0.0.1:{world.ports['plain']}/", headers=headers) as got:
        assert (await got.json())["headers"]["x-gr-user-key"] == user_key(POOL_KEY, "ann")


async def test_a_caller_cannot_name_the_endpoint_itself(world: World) -> None:
    others = f"127.0.0.1:{world.toys[next(n for n in 'abc' if n != owner_in(world.table, 'ann'))].port}"
    assert (await world.ask("ann", x_gateway_destination_endpoint=others)).me == owner_in(world.table, "ann")
    await world.kill_picker()
    got = {(await world.ask(None, x_gateway_destination_endpoint=others)).me for _ in range(30)}
    assert len(got) > 1


async def test_with_the_picker_killed_envoy_goes_on_by_its_own_hash_and_hands_no_raw_id_on(world: World) -> None:
    await world.kill_picker()
    answers = [await world.ask(user) for user in USERS]
    assert {answer.status for answer in answers} == {200}
    assert not [answer for answer in answers if "x-user-id" in answer.said["headers"]]
    keyed = [[(await world.ask(None, x_gr_user_key=user_key(POOL_KEY, user))).me for _ in range(2)] for user in USERS]
    assert all(first == second for first, second in keyed)
    await world.start_picker()
    assert (await world.ask("ann")).instance == owner_in(world.table, "ann")


async def test_a_picker_that_hangs_is_waited_for_no_longer_than_the_message_timeout(world: World) -> None:
    assert world.picker is not None
    world.picker.send_signal(signal.SIGSTOP)
    try:
        answers = await asyncio.gather(*(world.ask(user, port="hasty") for user in USERS[:6]))
        assert {answer.status for answer in answers} == {200}
    finally:
        world.picker.send_signal(signal.SIGCONT)
    await world.until(world.picker_is_asked, "Envoy asks the picker")
    assert (await world.ask("ann")).instance == owner_in(world.table, "ann")


async def test_where_the_gateway_fails_closed_a_killed_picker_means_500(world: World) -> None:
    await world.kill_picker()
    assert (await world.ask("ann", port="closed")).status in (500, 503)


@pytest.mark.parametrize("port", ["plain", "duplex"])
async def test_a_picker_that_is_killed_under_a_request_lets_it_pass_or_ends_it_where_it_held_the_body_and_hangs_none(
    world: World, port: str
) -> None:
    killed = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first" * 10_000
        await asyncio.sleep(0)
        await killed.wait()
        yield b"second" * 10_000

    request = asyncio.ensure_future(world.ask("ann", port=port, data=pieces()))

    async def open_request() -> bool:
        return await world.metric("grfleet_picker_open_requests") >= 1

    await world.until(open_request, "the picker has the request")
    await world.kill_picker()
    killed.set()
    answer = await asyncio.wait_for(request, 10)
    if port == "plain":  # the body never went through the picker
        assert (answer.status, answer.said["size"]) == (200, 110_000)
    else:  # what the picker held of the body is gone, so the request cannot go on
        assert answer.status >= 500


async def test_the_picker_goes_on_for_as_long_as_its_table_cannot_be_read(world: World) -> None:
    for broken in (b"", b"{", b'{"generation": 99999}'):
        (world.folder / "table.part").write_bytes(broken)
        (world.folder / "table.part").replace(world.folder / "table.json")
        assert (await world.ask("ann")).me == owner_in(world.table, "ann")
    (world.folder / "table.json").unlink()
    assert (await world.ask("ann")).me == owner_in(world.table, "ann")


async def test_generations_never_go_back(world: World) -> None:
    current = world.generation
    world.generation = 0
    world.write_table(world.rows("a"))
    stale = await world.metric("grfleet_picker_tables_total", verdict="stale")

    async def refused() -> bool:
        return await world.metric("grfleet_picker_tables_total", verdict="stale") > stale

    await world.until(refused, "the older table was seen")
    assert await world.metric("grfleet_picker_generation") == current
    world.generation = current


async def test_the_health_service_of_grpc_says_alive_and_ready(world: World) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{world.ports['picker']}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_nothing_stays_in_flight_when_requests_are_over_or_given_up(world: World) -> None:
    world.toys["a"].hold.clear()
    user = next(user for user in USERS if owner_in(world.table, user) == "a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.ask(user), 0.3)
    world.toys["a"].hold.set()

    async def at_rest() -> bool:
        return await world.metric("grfleet_picker_most_in_flight") == 0 == await world.metric("grfleet_picker_open_requests")

    await world.until(at_rest, "nothing in flight")


async def test_under_load_nothing_is_lost_or_misled_while_instances_drain_die_and_come_back(world: World) -> None:
    allowed = [{user: {owner_in(world.table, user)} for user in USERS}]
    wrong: list[str] = []
    failed: list[int] = []
    ended = asyncio.Event()

    sent: list[str] = []

    async def call(users: list[str]) -> None:
        while not ended.is_set():
            user = users[len(sent) % len(users)]
            before = allowed[0][user]
            answer = await world.ask(user)
            sent.append(user)
            if answer.status != 200:
                failed.append(answer.status)
            elif answer.me != answer.instance or answer.me not in before | allowed[0][user]:
                wrong.append(f"{answer.me} answered, {answer.instance} is named")
            await asyncio.sleep(0.001)

    async def publish(*names: str) -> None:
        allowed[0] = {user: set("abc") for user in USERS}
        await world.offer(world.rows(*names))
        allowed[0] = {user: {owner_in(world.table, user)} for user in USERS}

    calls = [asyncio.ensure_future(call(USERS[start::4])) for start in range(4)]
    await publish("a", "c")
    await publish("a", "b", "c")
    allowed[0] = {user: set("abc") for user in USERS}
    await world.toys["c"].kill()
    await asyncio.sleep(0.1)
    await publish("a", "b")

    async def enough() -> bool:
        return len(sent) >= 60

    await world.until(enough, "sixty requests")
    ended.set()
    await asyncio.gather(*calls)
    assert (failed, wrong) == ([], [])
