"""Tables that are none, and rows that are no instance: gateway, picker and client judge them alike and keep what they had."""

import ipaddress
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.keys import SLOTS
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from dataplane.addresses import ip_of, is_ip
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.config import GatewayConfig
from dataplane.gateway.servers import servers_of
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge
from dataplane.picker.fleet import address_of
from dataplane.picker.picker import Picker
from grfleet.client import Router

KEY = b"0123456789abcdef"
OFFERS = ("gateway", "picker", "client")


def row(name: str, uid: str, address: str = "http://10.0.0.1:80") -> TableInstance:
    return TableInstance(name=name, uid=uid, address=address, weight_percent=100, state=InstanceState.READY)


def table(generation: int, rows: list[TableInstance], slots: str | None = None) -> RoutingTable:
    return RoutingTable(generation=generation, instances=rows, slots=slots if slots is not None else pack_slots([0] * SLOTS))


SOUND = pack_slots([0] * SLOTS)
BROKEN = {
    "one name": table(2, [row("a", "1"), row("a", "2")]),
    "one name three hundred times": table(2, [row("a", str(n)) for n in range(300)]),
    "one uid": table(2, [row("a", "1"), row("b", "1")]),
    "short slots": table(2, [row("a", "1")], SOUND[:-8]),
    "long slots": table(2, [row("a", "1")], SOUND + "AAAA"),
    "slots that are no base64": table(2, [row("a", "1")], "!" + SOUND[1:]),
    "slots that are not ASCII": table(2, [row("a", "1")], "ü" + SOUND[1:]),
    "no slots": table(2, [row("a", "1")], ""),
    "an index past the end": table(2, [row("a", "1")], pack_slots([1, *[0] * (SLOTS - 1)])),
}


@pytest.fixture(params=OFFERS)
def offer(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[RoutingTable], bool]:
    if request.param == "gateway":
        config = GatewayConfig(pool_key=KEY, bind="127.0.0.1:1", admin_socket=tmp_path / "a.sock", directory=tmp_path)
        return GatewayAgent(config, monotonic_s=lambda: 0.0).offer
    if request.param == "picker":
        return Picker(Edge(pool_key=KEY), limits=PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1)).offer
    return Router().accept


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_table_is_refused_by_every_face_and_the_next_one_is_taken(
    offer: Callable[[RoutingTable], bool], broken: RoutingTable
) -> None:
    assert offer(table(1, [row("a", "1")]))
    with pytest.raises(ProtocolViolation):
        offer(broken)
    assert offer(table(2, [row("a", "1")]))


@given(st.ip_addresses())
def test_an_address_is_handed_on_as_the_system_writes_it(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    shown = f"[{ip}]" if ip.version == 6 else str(ip)
    if ip.version == 6 and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    assert ip_of(str(ip)) == socket.inet_ntop(family, ip.packed)
    spelled = f"[{ip_of(str(ip))}]:81" if ip.version == 6 else f"{ip}:81"
    odd = row("a", "1", f"http://{shown}:81")
    assert [each.address for each in servers_of([odd])[1]] == [address_of(odd)] == [spelled]


@pytest.mark.parametrize("host", ["10.0.0.1", "[::ffff:10.0.0.1]", "[::ffff:a00:1]", "[0:0:0:0:0:ffff:0a00:0001]"])
def test_spellings_of_one_address_are_one(host: str) -> None:
    odd = row("a", "1", f"http://{host}:81")
    assert [address_of(odd)] == [each.address for each in servers_of([odd])[1]] == ["10.0.0.1:81"]


@pytest.mark.parametrize(
    "address",
    [
        "http://[fe80::1%eth0]:80",
        "http://[fe80::1%1]",
        "http://10.0.0.1:0",
        "http://10.0.0.1:70000",
        "10.0.0.1:-1",
        "a_b:1",
        "http://[::1",
        "http://[10.0.0.1]:1",
        "http://10.0.0.1:1/path",
        "http://u@10.0.0.1:1",
        "ftp://10.0.0.1:1",
        "",
        "//",
        ":80",
        "http://1.2.3:80",
        "http://256.0.0.1:80",
        "http://10.0.0.1:80 backup",
        "http://10.0.0.1:\u0668\u0660",
        "a" * 256,
    ],
)
def test_a_row_that_no_proxy_could_hold_is_left_out_of_both_and_the_others_stay(address: str) -> None:
    good, odd = row("a", "1"), row("b", "2", address)
    _, servers, refused = servers_of([odd, good])
    assert [each.name for each in servers] == ["a"]
    assert [each.name for each in refused] == ["b"]
    with pytest.raises(ValueError, match=r"."):
        address_of(odd)


def test_a_zone_makes_an_address_no_name() -> None:
    assert is_ip("fe80::1%eth0")
    assert not is_ip("fe80.test")
