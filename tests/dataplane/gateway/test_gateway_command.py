"""`grfleet-gateway` as it is run: from a file or an address, with its own HAProxy or beside one, and what it says of mistakes."""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from dataplane_processes import start
from gateway_toy import Toy
from gateway_world import POOL_KEY, Caller, free_port, owner_in, row, table, until

from contract.keys import user_key
from dataplane.gateway.config import validate
from dataplane.gateway.main import _config, _parser, main
from dataplane.gateway.runtime_api import RuntimeApi, process_of
from testbed.debian import Tree


@pytest.fixture
def pool_key(tmp_path: Path) -> Path:
    path = tmp_path / "pool.key"
    path.write_bytes(POOL_KEY + b"\n")
    return path


async def test_a_newcomer_starts_one_command_and_requests_reach_the_owner_of_their_user(
    haproxy: Tree, short_folder: Path, pool_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", haproxy.environment()["LD_LIBRARY_PATH"])
    toys = [await Toy(name).start() for name in "abc"]
    one = table(1, [row(toy.name, toy.port) for toy in toys])
    published = short_folder / "table.json"
    published.write_bytes(msgspec.json.encode(one))
    arguments = ["--table", str(published), "--pool-key", str(pool_key), "--directory", str(short_folder / "g")]
    arguments += ["--health-bind", "127.0.0.1:0"]
    gateway = await start(
        "dataplane.gateway.main", [*arguments, "--run-haproxy", str(haproxy.program("haproxy"))], log=short_folder / "gateway.log"
    )
    try:
        caller = Caller(int(gateway.ready["bind"].rpartition(":")[2]))
        key = user_key(POOL_KEY, "u-1")
        await _until_answered_by(caller, owner_in(one)(key))
        two = table(2, one.instances, owners=[(slot + 1) % 3 for slot in range(4096)])
        part = short_folder / "part"
        part.write_bytes(msgspec.json.encode(two))
        part.replace(published)
        await _until_answered_by(caller, owner_in(two)(key))
        published.write_text("{")  # half a file changes nothing
        await asyncio.sleep(0.5)
        assert (await caller.get({"x-user-id": "u-1"})).me == owner_in(two)(key)
        async with httpx.AsyncClient(base_url=gateway.ready["health"]) as client:
            assert (await client.get("/readyz")).status_code == 200
            assert "grfleet_gateway_generation 2.0" in (await client.get("/metrics")).text
        assert (short_folder / "g" / "haproxy.cfg").stat().st_mode & 0o077 == 0
        assert (short_folder / "g").stat().st_mode & 0o077 == 0
        caller.close()  # else HAProxy would wait for it a while
    finally:
        assert await gateway.terminate() == 0
        for toy in toys:
            await toy.kill()
    with pytest.raises(OSError):
        await Caller(caller._port).get({})


async def test_a_haproxy_that_a_killed_agent_left_behind_serves_on_and_is_relieved_by_that_of_the_next_one(
    haproxy: Tree, short_folder: Path, pool_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", haproxy.environment()["LD_LIBRARY_PATH"])
    toys = [await Toy(name).start() for name in "ab"]
    published, port = short_folder / "table.json", free_port()
    published.write_bytes(msgspec.json.encode(table(1, [row("a", toys[0].port)])))
    arguments = ["--table", str(published), "--pool-key", str(pool_key), "--directory", str(short_folder / "g")]
    arguments += ["--bind", f"127.0.0.1:{port}", "--run-haproxy", str(haproxy.program("haproxy"))]
    first = await start("dataplane.gateway.main", arguments, log=short_folder / "gateway.log")
    api = RuntimeApi(short_folder / "g" / "haproxy.sock")
    left = await process_of(api)
    code, _, said = await _run(*arguments, "--health-bind", "127.0.0.1:0")
    assert (code, "another grfleet-gateway is at work here" in said) == (2, True)
    assert await process_of(api) == left, "and it has ended nobody's haproxy"
    await first.kill()
    caller = Caller(port)
    assert (await caller.get({"x-user-id": "u-1"})).me == "a"
    caller.close()
    published.write_bytes(msgspec.json.encode(table(2, [row("b", toys[1].port)])))
    await api.close()
    second = await start("dataplane.gateway.main", arguments, log=short_folder / "gateway.log")
    try:
        await until(lambda: not Path(f"/proc/{left}").exists())
        for n in range(20):  # none of them meets the one before
            caller = Caller(port)
            assert (await caller.get({"x-user-id": f"u-{n}"})).me == "b"
            caller.close()
    finally:
        assert await second.terminate() == 0
        for toy in toys:
            await toy.kill()


async def _until_answered_by(caller: Caller, name: str) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError, EOFError):
                answer = await caller.get({"x-user-id": "u-1"})
                if answer.status == 200 and answer.me == name:
                    return
            await asyncio.sleep(0.05)


async def _run(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dataplane.gateway.main", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), err.decode()


async def test_render_only_writes_the_servers_of_the_table_and_ends(short_folder: Path, pool_key: Path) -> None:
    (short_folder / "table.json").write_bytes(msgspec.json.encode(table(1, [row("a", 81)])))
    code, out, _ = await _run(
        *("--table", str(short_folder / "table.json"), "--pool-key", str(pool_key)),
        *("--directory", str(short_folder / "g"), "--render-only"),
    )
    assert code == 0
    assert out.strip() == str(short_folder / "g" / "haproxy.cfg")
    assert "127.0.0.1:81" in (short_folder / "g" / "haproxy.cfg").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pool-key", "/nowhere"], "/nowhere"),
        (["--bind", "here"], "bind"),
        (["--retriable-bytes", "16000"], "retriable bytes: 16000 lies outside 16384..1048576"),
        (["--health-bind", "here"], "--health-bind"),
        (["--table", "kubernetes:x"], "kubernetes:NAMESPACE/NAME"),
        (["--peer", "a"], "NAME=HOST:PORT"),
        (["--run-haproxy", ""], "--run-haproxy '': there is no such program"),
        (["--run-haproxy", "/nowhere/haproxy"], "there is no such program"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(
    short_folder: Path,
    pool_key: Path,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataplane.logs.configure", lambda level: None)  # the log of the tests stays theirs
    defaults = ["--table", "x", "--pool-key", str(pool_key), "--directory", str(short_folder)]
    assert main([*defaults, *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("host", ["", "*", "127.0.0.1", "0.0.0.0", "[::1]", "[::]"])
def test_a_free_port_is_found_for_each_form_of_an_address(host: str, pool_key: Path, short_folder: Path) -> None:
    if ":" in host:
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
    options = ["--table", "x", "--pool-key", str(pool_key), "--directory", str(short_folder), "--bind", f"{host}:0"]
    config = _config(_parser().parse_args(options))
    validate(config)
    given, _, port = config.bind.rpartition(":")
    assert (given, int(port) > 0) == (host, True)
