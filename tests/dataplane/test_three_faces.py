"""One table, three faces: client, picker and gateway send each user to the same instance, whatever stands in the table."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.keys import SLOTS, slot_of, user_key
from contract.table import NOBODY, InstanceState, RoutingTable, TableInstance, pack_slots
from contract.view import SERVING
from dataplane.edge import read_pool_key
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.config import GatewayConfig
from dataplane.picker.chooser import PickLimits, Refused
from dataplane.picker.exchange import Edge
from dataplane.picker.picker import Picker
from grfleet.client import BadUserId, NoInstance, PoolKey, Router
from grfleet.client.keys import hashed

POOL_KEY = b"0123456789abcdef"
USERS = [user_key(POOL_KEY, f"user {n}") for n in range(12)]
NAMES = "abcdef"
WHERE = [
    "http://10.0.0.{n}:8000",
    "10.0.0.{n}",
    "http://10.0.1.{n}",
    "http://[fd00::{n}]:8000",
    "[fd00::1:{n}]:81",
    "[fd00::2:{n}]",
]
STATES = [InstanceState.READY, InstanceState.READY, InstanceState.WARMING, InstanceState.DRAINING]


@st.composite
def tables(draw: st.DrawFn, generation: int = 1) -> RoutingTable:
    """As the routing loop could publish it: only who serves owns slots, and perhaps nobody does."""
    rows = [
        TableInstance(
            name=name,
            uid=f"{draw(st.sampled_from(['old', 'new']))}-{name}",
            address=draw(st.sampled_from(WHERE)).format(n=n + 1),
            weight_percent=draw(st.sampled_from([0, 1, 25, 100])),
            state=draw(st.sampled_from(STATES)),
        )
        for n, name in enumerate(draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)))
    ]
    serving = [at for at, row in enumerate(rows) if row.state in SERVING]
    pattern = draw(st.lists(st.sampled_from([NOBODY, *serving]), min_size=16, max_size=16))
    return RoutingTable(generation=generation, instances=rows, slots=pack_slots(pattern * (SLOTS // 16)))


class Faces:
    """The three, with the same tables and hot users; of the gateway what its HAProxy is to hold."""

    def __init__(self) -> None:
        config = GatewayConfig(pool_key=POOL_KEY, bind="127.0.0.1:1", admin_socket=Path("/no.sock"), directory=Path("/proc/no"))
        self.router = Router()
        self.picker = Picker(Edge(pool_key=POOL_KEY), limits=PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1))
        self.gateway = GatewayAgent(config, monotonic_s=lambda: 0.0)

    def offer(self, table: RoutingTable) -> list[bool]:
        return [self.router.accept(table), self.picker.offer(table), self.gateway.offer(table)]

    def set_users(self, users: dict[str, str]) -> None:
        self.router.overrides.replace(SimpleNamespace(user_key=k, instance_uid=u, until_ms=1e18) for k, u in users.items())
        self.picker.set_users(users)
        self.gateway.set_users(users)

    def of_client(self, key: str, choice: str) -> str | None:
        try:
            return self.router.pick(key, prefer=choice).uid
        except NoInstance:
            return None

    def of_picker(self, key: str, choice: str) -> str | None:
        try:
            return self.picker.chooser.choose(key, echo=choice)[0].uid
        except Refused:
            return None

    def of_gateway(self, key: str, choice: str) -> str | None:
        """By the rules of HAProxy's configuration, up to its own hash: None."""
        want = self.gateway._want
        assert want is not None
        by_id = {server.id: server for server in want.servers}
        named = next((server.uid for server in want.servers if server.name == choice), None)
        found = by_id.get(want.users.get(key) or want.slots.get(slot_of(key), 0))
        return named or (found.uid if found is not None else None)


@settings(max_examples=30)
@given(
    tables(), st.dictionaries(st.sampled_from(USERS), st.sampled_from([f"{age}-{n}" for age in ("old", "new") for n in NAMES]))
)
def test_a_user_goes_to_the_same_instance_through_each_face(table: RoutingTable, hot: dict[str, str]) -> None:
    faces = Faces()
    faces.offer(table)
    faces.set_users(hot)
    for key in USERS:
        for choice in ("", "a", "b", "nobody"):
            client, picker, gateway = (of(key, choice) for of in (faces.of_client, faces.of_picker, faces.of_gateway))
            assert client == picker, choice
            assert gateway in (None, client), choice
    anybody = any(row.state in SERVING for row in table.instances)
    assert (faces.of_client(USERS[0], "") is not None) == anybody, "somebody who serves is better than nobody"


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n", b"\r\n", b" "])
def test_of_one_secret_each_face_makes_the_same_keys(end: bytes, tmp_path: Path) -> None:
    """One in 256 that are made by chance ends with a newline."""
    path = tmp_path / "user-key"
    path.write_bytes(POOL_KEY + end)
    of_gateways = Edge(pool_key=read_pool_key(path)).key_of({"x-user-id": b"somebody"})
    assert hashed(PoolKey("user-key", path.read_bytes()), "somebody") == of_gateways


@given(st.text(st.sampled_from(" \tab,ü\u00a0\u3000"), max_size=6))
def test_of_one_id_each_face_makes_the_same_key(user_id: str) -> None:
    """HTTP takes spaces and tabs off the ends of a header's value, and nothing else."""
    edge = Edge(pool_key=POOL_KEY)
    of_gateways = edge.key_of({"x-user-id": user_id.encode()})
    try:
        assert hashed(PoolKey("user-key", POOL_KEY), user_id) == of_gateways
    except BadUserId:
        assert of_gateways == ""


@settings(max_examples=20)
@given(st.lists(tables(), min_size=2, max_size=4), st.data())
def test_a_table_that_comes_late_changes_nothing_in_any_face(arriving: list[RoutingTable], data: st.DataObject) -> None:
    """Nor what is said of instances that both tables name."""
    faces, last = Faces(), -1
    for table in arriving:
        generation = data.draw(st.integers(0, 3))
        later = RoutingTable(generation=generation, instances=table.instances, slots=table.slots)
        assert faces.offer(later) == [generation > last] * 3
        if generation > last:
            only, last = Faces(), generation
            only.offer(later)
    for key in USERS:
        for choice in ("", *NAMES):
            for now, alone in zip(_addresses(faces, key, choice), _addresses(only, key, choice), strict=True):
                assert now == alone


def _addresses(faces: Faces, key: str, choice: str) -> list[list[str]]:
    client = [pick.address for pick in faces.router.owners(key)]
    try:
        picker = [each.address for each in faces.picker.chooser.choose(key, echo=choice)]
    except Refused:
        picker = []
    want = faces.gateway._want
    assert want is not None
    return [client, picker, [server.address for server in want.servers]]
