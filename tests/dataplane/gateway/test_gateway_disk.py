"""A disk that is full, read-only or gone: HAProxy follows the table all the same, and its files are written when they can be."""

import asyncio
import contextlib
import errno
import fcntl
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from gateway_world import Gateway, row, table, until

from contract.errors import ProtocolViolation
from contract.sockets import CannotListen
from dataplane.edge import follow_tables
from dataplane.follow import source_of, table_from
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.folder import alone_in
from dataplane.gateway.main import follow_key, log


def _in_the_way(gateway: Gateway) -> Path:
    """Let nothing be written any more, also for a user whom no permission stops."""
    path = gateway.config.directory / ".haproxy.cfg.part"
    path.mkdir(parents=True)
    return path


def _config(gateway: Gateway) -> str:
    return (gateway.config.directory / "haproxy.cfg").read_text()


async def test_a_table_that_cannot_be_written_down_is_followed_and_written_once_the_disk_takes_it(gateway: Gateway) -> None:
    await gateway.offer(table(1, gateway.rows("a", "b")))
    obstacle, source = _in_the_way(gateway), gateway.folder / "table.json"
    source.write_bytes(msgspec.json.encode(table(2, gateway.rows("c"))))
    tables = source_of(str(source), on_problem=print, rng=random.Random(1))
    following = asyncio.create_task(follow_tables(gateway.agent, tables, log=log))
    await until(lambda: gateway.agent.generation == 2)
    await gateway.settle()
    assert {(await gateway.ask(f"user-{i}")).headers["x-gr-instance"] for i in range(10)} == {"c"}
    assert gateway.agent.files.problem
    assert not following.done()
    obstacle.rmdir()
    gateway.agent.files._tried_s = -1e9
    await until(lambda: not gateway.agent.files.problem)
    assert f":{gateway.toys['c'].port} " in _config(gateway)
    following.cancel()


async def test_a_folder_that_was_removed_ends_nothing(make: Callable[..., Gateway]) -> None:
    gateway = make()
    shutil.rmtree(gateway.config.directory)
    assert gateway.agent.offer(table(1, [row("a", 81)]))
    assert gateway.agent.files.problem
    assert gateway.agent.generation == 1


def test_the_disk_is_tried_again_after_a_while_and_not_at_every_round(make: Callable[..., Gateway]) -> None:
    gateway, now_s = make(), [0.0]
    agent = GatewayAgent(gateway.config, monotonic_s=lambda: now_s[0])
    obstacle = _in_the_way(gateway)
    agent.write_files()
    assert agent.files.problem
    assert not agent.files.due
    now_s[0] = 10.0
    assert agent.files.due
    obstacle.rmdir()
    agent.write_files()
    assert not agent.files.due


async def test_a_pool_key_whose_configuration_cannot_be_written_is_tried_until_it_can(
    make: Callable[..., Gateway], tmp_path: Path
) -> None:
    gateway = make()
    gateway.agent.write_files()
    before, obstacle, secret = gateway.agent.config, _in_the_way(gateway), tmp_path / "pool.key"
    secret.write_bytes(b"another key of the pool")
    following = asyncio.create_task(follow_key(gateway.agent, secret, period_s=0.01))
    await asyncio.sleep(0.05)
    assert gateway.agent.config == before
    obstacle.rmdir()
    await until(lambda: gateway.agent.config == replace(before, pool_key=b"another key of the pool"))
    following.cancel()


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"status":' * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000])
async def test_a_document_as_deep_as_a_well_is_refused_and_the_next_one_found(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(ProtocolViolation):
        table_from(raw)
    path, problems = tmp_path / "table.json", []
    path.write_bytes(raw)

    def tell(text: str) -> None:
        problems.append(text)
        path.write_bytes(msgspec.json.encode(table(1, [row("a", 81)])))

    source = source_of(str(path), on_problem=tell, rng=random.Random(1))
    async with asyncio.timeout(10), contextlib.aclosing(source.tables()) as tables:
        assert (await anext(tables)).table.generation == 1
    assert len(problems) == 1


def test_a_folder_is_one_agents_until_it_leaves_and_one_that_cannot_be_locked_is_anybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone_in(tmp_path), pytest.raises(CannotListen, match="another grfleet-gateway"), alone_in(tmp_path):
        pass
    with alone_in(tmp_path):
        pass

    def without(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", without)
    with alone_in(tmp_path), alone_in(tmp_path):
        pass
