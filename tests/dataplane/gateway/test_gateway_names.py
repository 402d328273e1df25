"""Instances known by host names and instances that speak TLS, behind a real HAProxy."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_certificates import certificate, context_of, signer_in
from gateway_world import Gateway, asked, row, table, until

from contract.table import TableInstance
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.main import follow_hosts
from dataplane.gateway.resolve import HostBook, system_lookup
from dataplane.gateway.servers import hosts_of, servers_of


def named(name: str, address: str, *, uid: str = "") -> TableInstance:
    plain = row(name, 81, uid=uid)
    return TableInstance(name=name, uid=plain.uid, address=address, weight_percent=100, state=plain.state)


async def secured(make: Callable[..., Gateway], folder: Path, **subjects: str) -> Gateway:
    """A gateway that trusts one authority, and toys with certificates of it; those of `other-authority` have another's."""
    authority, other = certificate("authority", folder), certificate("other-authority", folder)
    gateway = make(ca_file=authority, check_interval_ms=100)
    gateway.agent._compare_s = 0.1
    for name, subject in subjects.items():
        toy = await gateway.toy(name)
        await toy.kill()
        toy.tls = context_of(certificate(subject, folder, signer_in(other if subject.startswith("foreign") else authority)))
        await toy.start()
    return gateway


async def test_instances_that_speak_tls_are_verified_by_authority_and_name_live_and_from_the_file(
    make: Callable[..., Gateway], tmp_path: Path
) -> None:
    gateway = await secured(make, tmp_path, a="a.test", b="other.test", c="foreign.test", d="d.test")
    plain = await gateway.toy("e")
    toys = gateway.toys
    rows = [
        named("a", f"https://a.test:{toys['a'].port}"),
        named("b", f"https://b.test:{toys['b'].port}"),  # the certificate has another name
        named("c", f"https://127.0.0.1:{toys['c'].port}"),  # from another authority
        named("d", f"https://127.0.0.1:{toys['d'].port}"),
        row("e", plain.port),
    ]
    await gateway.start_haproxy()
    gateway.start_agent()
    gateway.agent.set_addresses({"a.test": "127.0.0.1", "b.test": "127.0.0.1"})
    await gateway.offer(table(1, rows))
    await those_verified_answer(gateway)
    await gateway.kill_haproxy()  # and once more with the servers of the file
    await gateway.start_haproxy()
    await until(lambda: gateway.agent.counts.restarts_seen == 1)
    await those_verified_answer(gateway)


async def those_verified_answer(gateway: Gateway) -> None:
    await until(lambda: {"uid-b", "uid-c"} <= gateway.agent.down())
    answers = [await gateway.ask(f"u{i}") for i in range(60)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.me for answer in answers} == {"a", "d", "e"}


def test_without_authorities_an_instance_that_speaks_tls_is_left_out() -> None:
    assert len(servers_of([named("a", "https://10.0.0.1")])[1]) == 0
    assert servers_of([named("a", "https://10.0.0.1")], tls=True)[1][0].address == "10.0.0.1:443"


async def test_an_instance_known_by_name_is_served_once_it_has_an_address_and_moves_with_it(gateway: Gateway) -> None:
    rows = [named("a", f"http://a.test:{gateway.toys['a'].port}"), *gateway.rows("b")]
    assert gateway.agent.offer(table(1, rows))
    await gateway.settle()
    assert gateway.agent.hosts == {"a.test"}
    assert gateway.agent.hosts is gateway.agent.hosts, "found once a table: it is asked for all the time"
    assert {(await gateway.ask(f"u{i}")).me for i in range(20)} == {"b"}
    gateway.agent.set_addresses({"a.test": "127.0.0.1"})
    await gateway.settle()
    assert {(await gateway.ask(f"u{i}")).me for i in range(20)} == {"a", "b"}
    gateway.agent.set_addresses({"a.test": "127.0.0.2"})
    await gateway.settle()
    assert "127.0.0.2" in await asked(gateway, "show servers state gr_fleet")


def test_names_and_ip_addresses_are_told_apart_and_what_is_neither_is_left_out() -> None:
    rows = [
        named(f"i{n}", address)
        for n, address in enumerate(
            ["http://a.test:1", "10.0.0.1:1", "https://b.test", "http://a_b:1", "http://-x:1", "ftp://c.test", "[::1]:1"]
        )
    ]
    assert hosts_of(rows) == {"a.test", "b.test"}
    _, servers, refused = servers_of(rows, addresses={"a.test": "10.0.0.2", "a_b": "10.0.0.3"})
    assert {s.address for s in servers} == {"10.0.0.2:1", "10.0.0.1:1", "[::1]:1"}
    assert len(refused) == 4


def test_an_instance_that_goes_over_to_tls_or_another_name_is_another_server() -> None:
    addresses = {"a.test": "10.0.0.1", "b.test": "10.0.0.1"}
    ways = ["http://10.0.0.1", "https://10.0.0.1", "https://a.test", "https://b.test"]
    ids = {servers_of([named("a", way)], addresses=addresses, tls=True)[1][0].id for way in ways}
    assert len(ids) == 4


class Names:
    """A name server of the test."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}

    async def __call__(self, host: str) -> Sequence[str]:
        if host not in self.known:
            raise OSError("no such name")
        return self.known[host]


async def test_a_name_server_that_is_away_or_shuffles_its_answers_moves_nobody() -> None:
    names, problems = Names(), list[str]()
    book = HostBook(names, on_problem=problems.append)
    assert await book.refresh({"a"}) == {}
    assert await book.refresh({"a"}) == {}
    assert len(problems) == 1, "said once, not at every look"
    names.known["a"] = ["10.0.0.2", "10.0.0.1"]
    assert await book.refresh({"a"}) == {"a": "10.0.0.1"}
    random.Random(1).shuffle(names.known["a"])
    names.known["a"].append("10.0.0.0")
    assert await book.refresh({"a"}) == {"a": "10.0.0.1"}
    del names.known["a"]
    assert await book.refresh({"a"}) == {"a": "10.0.0.1"}
    names.known["a"] = ["10.0.0.9"]
    assert await book.refresh({"a"}) == {"a": "10.0.0.9"}
    assert await book.refresh({"b"}) == {}


async def test_names_that_nobody_answers_for_keep_the_others_from_being_found_no_longer_than_a_round() -> None:
    """As many as there are look-ups at once, and first by the alphabet: a name server that is away lets each wait to the end."""
    turns, names = asyncio.Semaphore(8), {*(f"a{n}" for n in range(8)), "b", "c"}

    async def lookup(host: str) -> Sequence[str]:
        async with turns:
            if host.startswith("a"):
                await asyncio.Event().wait()
            return ["10.0.0.1"]

    book = HostBook(lookup, on_problem=lambda _: None, timeout_s=0.02)
    found = [await book.refresh(names) for _ in range(2)]
    assert found[-1] == {"b": "10.0.0.1", "c": "10.0.0.1"}


async def test_an_address_with_a_zone_is_none_and_of_those_beside_it_one_is_taken() -> None:
    names = Names()
    book = HostBook(names, on_problem=print)
    names.known["a"] = ["fe80::1%eth0"]
    assert await book.refresh({"a"}) == {}
    names.known["a"] = ["fe80::1%eth0", "fe90::1"]
    assert await book.refresh({"a"}) == {"a": "fe90::1"}
    names.known["a"] = ["fe80::1%eth0"]
    assert await book.refresh({"a"}) == {"a": "fe90::1"}


async def test_a_name_server_that_keeps_everybody_waiting_keeps_no_table_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def waits(*_: object, **__: object) -> list[object]:
        answered.wait()
        return [(0, 0, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", waits)
    looking = [asyncio.create_task(system_lookup(f"h{n}.test")) for n in range(100)]
    try:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "read") == "read"
        assert not any(task.done() for task in looking)
    finally:
        answered.set()
    assert await asyncio.gather(*looking) == [["10.0.0.1"]] * 100


async def test_names_that_come_with_a_table_are_looked_up_at_once_and_again_after_a_while(make: Callable[..., Gateway]) -> None:
    gateway, names = make(), Names()
    names.known = {"a.test": ["10.0.0.1"], "b.test": ["10.0.0.2"]}
    following = asyncio.create_task(follow_hosts(gateway.agent, HostBook(names, on_problem=print), period_s=0.0))

    def written(address: str) -> bool:
        path = gateway.config.directory / "haproxy.cfg"
        return path.exists() and f" {address} id " in path.read_text()

    gateway.agent.offer(table(1, [named("a", "http://a.test:1")]))
    await until(lambda: written("10.0.0.1:1"))
    gateway.agent.offer(table(2, [named("a", "http://a.test:1"), named("b", "http://b.test:1")]))
    await until(lambda: written("10.0.0.2:1"))
    names.known["a.test"] = ["10.0.0.9"]
    await until(lambda: written("10.0.0.9:1"))
    following.cancel()


@pytest.mark.parametrize("changes", [{"ca_file": Path("/tmp/a b")}])
def test_a_path_of_authorities_that_is_more_than_a_word_is_refused(
    make: Callable[..., Gateway], changes: dict[str, object]
) -> None:
    from dataplane.edge import ConfigError

    gateway = make()
    with pytest.raises(ConfigError):
        GatewayAgent(replace(gateway.config, **changes), monotonic_s=lambda: 0.0).write_files()  # type: ignore[arg-type]  # the test's own
