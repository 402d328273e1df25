"""A client's hot users come from a gateway: what it says holds for a time, and is renewed while it says so."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from client_tables import KEY, SECRET, HandClock, table

from contract.errors import ProtocolViolation
from contract.keys import user_key
from contract.residency import MAX_OVERRIDES, OverrideTable, pack_overrides, unpack_overrides
from dataplane.gateway.health import route_of
from dataplane.http.server import serving
from grfleet.client import AsyncClient, Client, GatewayOverrides, Router, keep_overrides

USER = "a" * 32
BASE = "http://gateway.example:9100"


class Gateway:
    """Answers as a gateway's agent does."""

    def __init__(self) -> None:
        self.users: dict[str, str] = {}
        self.revision = 0
        self.asked: list[str] = []
        self.broken: bytes | None = None

    def say(self, **users: str) -> None:
        self.users, self.revision = users, self.revision + 1

    def overrides(self, *, known: str) -> bytes | None:
        self.asked.append(known)
        if known == str(self.revision):
            return None
        return self.broken or msgspec.json.encode(pack_overrides(self.users, for_ms=10_000.0, revision=str(self.revision)))

    def metrics_text(self) -> bytes:
        return b""

    def client(self) -> httpx.AsyncClient:
        def answer(request: httpx.Request) -> httpx.Response:
            body = self.overrides(known=request.url.params.get("known", ""))
            return httpx.Response(204) if body is None else httpx.Response(200, content=body)

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def source(gateway: Gateway, clock: HandClock) -> GatewayOverrides:
    return GatewayOverrides(BASE, http=gateway.client(), clock=clock)


def owner_beside(router: Router, key: str) -> str:
    return router.owners(key, most=2)[1].uid


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def router(clock: HandClock) -> Router:
    router = Router(clock=clock)
    router.accept(table(1))
    return router


async def test_overrides_hold_while_the_gateway_says_so_and_for_their_time_after_it_is_gone(
    router: Router, clock: HandClock
) -> None:
    gateway = Gateway()
    away = owner_beside(router, USER)
    gateway.say(**{USER: away})
    overrides = source(gateway, clock)
    for _ in range(20):
        await overrides.look(router)
        assert router.pick(USER).uid == away
        clock.now_ms += 2000.0
    assert gateway.asked == ["", *["1"] * 19]
    clock.now_ms += 3000.0
    assert router.pick(USER).uid == away
    clock.now_ms += 10_000.0
    assert router.pick(USER) == router.owners(USER, most=1)[0]


async def test_what_the_gateway_withdraws_ends_at_once(router: Router, clock: HandClock) -> None:
    gateway = Gateway()
    gateway.say(**{USER: owner_beside(router, USER)})
    overrides = source(gateway, clock)
    await overrides.look(router)
    gateway.say()
    await overrides.look(router)
    assert len(router.overrides) == 0
    assert router.pick(USER) == router.owners(USER, most=1)[0]


async def test_another_gateway_behind_the_same_name_is_taken_as_it_is(router: Router, clock: HandClock) -> None:
    one, other = Gateway(), Gateway()
    one.say(**{USER: owner_beside(router, USER)})
    other.say(**{"b" * 32: owner_beside(router, "b" * 32)})
    other.revision = 77
    overrides = source(one, clock)
    await overrides.look(router)
    overrides._http = other.client()
    await overrides.look(router)
    assert USER not in router.overrides
    assert "b" * 32 in router.overrides


NOBODY = b'{"instances":[],"keys":"","owners":"","forMs":%s}'


@pytest.mark.parametrize(
    "broken",
    [b"", b"[]", b'{"instances":[],"keys":"AAAA","owners":"","forMs":1}', b"{" * 9]
    + [NOBODY % for_ms for for_ms in (b"-1", b"86400001", b"1e308", b"1e999", b"NaN", b"null", b'"1"')],
)
async def test_an_answer_that_is_no_table_of_overrides_changes_nothing_and_is_told(
    router: Router, clock: HandClock, broken: bytes
) -> None:
    gateway, told = Gateway(), list[str]()
    gateway.say(**{USER: owner_beside(router, USER)})
    overrides = source(gateway, clock)
    await overrides.look(router)
    gateway.revision, gateway.broken = 2, broken or b"nothing"
    pauses = 0

    async def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_overrides(router, overrides, on_problem=told.append, sleep=sleep)
    assert USER in router.overrides
    assert len(told) == 3
    assert all(line.startswith(f"overrides at {BASE}") for line in told)


@pytest.mark.parametrize("face", [AsyncClient, Client])
async def test_both_faces_follow_a_gateway(face: type[AsyncClient] | type[Client], tmp_path: Path) -> None:
    published = tmp_path / "table.json"
    published.write_bytes(msgspec.json.encode(table(1)))
    hashed = user_key(SECRET, "u")
    gateway = Gateway()
    scratch = Router()
    scratch.accept(table(1))
    gateway.say(**{hashed: owner_beside(scratch, hashed)})
    async with serving(route_of(None, gateway), "http://127.0.0.1:0") as url:  # type: ignore[arg-type]  # only overrides are asked
        client = face(str(published), KEY, overrides=url)
        try:
            await client.__aenter__() if isinstance(client, AsyncClient) else client.__enter__()

            def there() -> bool:
                return client.router.generation == 1 and client.pick("u").instance.uid == gateway.users[hashed]

            await eventually(there)
        finally:
            await client.__aexit__() if isinstance(client, AsyncClient) else await asyncio.to_thread(client.__exit__)


async def eventually(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not seen():  # noqa: ASYNC110 - a client has no event for it
            await asyncio.sleep(0.01)


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="overrides: 'gateway:9100'"):
        GatewayOverrides("gateway:9100")


def test_overrides_survive_packing_and_what_is_none_is_refused() -> None:
    users = {f"{number:032x}": f"uid-{number % 7}" for number in range(500)}
    packed = pack_overrides(users, for_ms=5.0)
    assert unpack_overrides(packed) == users
    assert unpack_overrides(pack_overrides({}, for_ms=5.0)) == {}
    for change in ({"keys": packed.keys[4:]}, {"owners": "!"}, {"instances": ["uid-0"]}, {"owners": packed.owners[:-4] + "A"}):
        with pytest.raises(ProtocolViolation):
            unpack_overrides(msgspec.structs.replace(packed, **change))
    many = OverrideTable(instances=["u"], keys="AAAA" * (16 * (MAX_OVERRIDES + 3) // 3), owners="AAAA", for_ms=1.0)
    with pytest.raises(ProtocolViolation):
        unpack_overrides(many)
