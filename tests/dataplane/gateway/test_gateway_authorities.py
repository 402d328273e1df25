"""Authorities that verify instances and agents: taken from `--ca-file`, followed when it changes, refused when there are none."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from gateway_certificates import certificate, context_of, signer_in
from gateway_world import Gateway, row, table, until

from contract.residency import InstanceLoad, ResidencyReport
from contract.table import RoutingTable, TableInstance
from dataplane.edge import ConfigError, trusting
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.config import mark_of
from dataplane.gateway.main import follow_authorities
from dataplane.hot_users.agents import Addresses, ResidencyLoop
from dataplane.hot_users.residents import Residents


def secure_row(name: str, port: int) -> TableInstance:
    plain = row(name, port)
    return TableInstance(name=name, uid=plain.uid, address=f"https://127.0.0.1:{port}", weight_percent=100, state=plain.state)


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\n", b"\xff\xfe"])
def test_a_file_without_a_certificate_is_refused_with_a_word(content: bytes) -> None:
    with pytest.raises(ConfigError, match="ca file"):
        trusting(content)


async def test_other_authorities_in_the_file_reach_haproxy_and_half_a_certificate_changes_nothing(
    make: Callable[..., Gateway], tmp_path: Path
) -> None:
    first, second = (certificate(name, tmp_path) for name in ("first", "second"))
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(first.read_bytes())
    gateway = make(ca_file=ca_file, authorities=ca_file.read_bytes(), check_interval_ms=100)
    gateway.config = replace(gateway.config, master_socket=gateway.config.directory / "m.sock")
    gateway.agent = GatewayAgent(gateway.config, monotonic_s=time.monotonic)
    secure, plain = [await gateway.toy(name) for name in "ab"]
    await secure.kill()
    secure.tls = context_of(certificate("a.test", tmp_path, signer_in(second)))
    await secure.start()
    gateway.agent.offer(table(1, [secure_row("a", secure.port), row("b", plain.port)]))
    await gateway.start_haproxy("-W", "-db", "-S", f"{gateway.config.master_socket},mode,600")
    gateway.start_agent()
    await gateway.settle()
    following = asyncio.create_task(follow_authorities(gateway.agent, None, ca_file, period_s=0.01))
    await until(lambda: gateway.agent.down() == {"uid-a"})
    assert {(await gateway.ask(f"u{i}")).me for i in range(20)} == {"b"}
    ca_file.write_bytes(b"half of a certificate")
    await asyncio.sleep(0.05)
    assert not following.done()
    assert gateway.agent.config.authorities == first.read_bytes()
    ca_file.write_bytes(first.read_bytes() + second.read_bytes())
    await until(lambda: gateway.agent.counts.restarts_seen == 1)

    async def both_answer() -> bool:  # a counts as up until it is checked, and a busy machine checks it late
        return {(await gateway.ask(f"u{i}")).me for i in range(20)} == {"a", "b"}

    await until(both_answer)
    following.cancel()


def test_only_where_there_are_authorities_do_they_count_in_the_mark_of_a_configuration(make: Callable[..., Gateway]) -> None:
    config = make().config
    marks = {mark_of(replace(config, authorities=each)) for each in (b"one", b"other", b"")}
    assert len(marks) == 3
    assert mark_of(config) in marks


class Face:
    """A gateway with one instance, as far as the loop needs it."""

    def __init__(self, wanted: RoutingTable) -> None:
        self.table, self.users = wanted, dict[str, str]()

    def down(self) -> frozenset[str]:
        return frozenset()

    def set_users(self, users: object) -> None:
        raise AssertionError("nobody is hot")


@contextlib.asynccontextmanager
async def agent(certificate: Path) -> AsyncIterator[str]:
    """An agent that speaks https and knows nobody; gives its URL."""
    load = InstanceLoad(reachable=True, queue=0, in_flight=0, service_ms=1.0, ms_per_token=0.02)
    report = ResidencyReport(uid="uid-a", start_id="s", generation=0, since=0, cursor=1, users=[], load=load)
    body = msgspec.json.encode(report)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context_of(certificate))
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])  # as in a gateway, as in a picker
def test_agents_are_verified_by_the_authorities_of_the_file_and_by_others_once_it_has_others(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    run(verified(tmp_path))


async def verified(tmp_path: Path) -> None:
    ours, others = (certificate(name, tmp_path) for name in ("ours", "others"))
    async with agent(certificate("agent.test", tmp_path, signer_in(ours))) as url:
        (tmp_path / "agents.json").write_text(json.dumps({"a": url}))
        loop = ResidencyLoop(
            Face(table(1, [row("a", 9000)])),
            Residents(),
            Addresses(str(tmp_path / "agents.json")),
            monotonic_s=time.monotonic,
            rng=random.Random(1),
        )

        async def missing() -> int:
            """Agents that did not tell in one more round."""
            before = loop.view().reports.get("missing", 0)
            await loop.round()
            return loop.view().reports.get("missing", 0) - before

        assert await missing() == 1, "nobody on this machine trusts the test's authority"
        for authority, lost in ((others, 1), (ours, 0), (others, 1)):
            loop.trust(authority.read_bytes())
            assert await missing() == lost, authority.name
        with pytest.raises(ConfigError):
            loop.trust(b"")
        await loop.aclose()
