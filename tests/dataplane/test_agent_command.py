"""The command line of the agent: what it needs, what it refuses, what it prints."""

import base64
import json
from pathlib import Path

import httpx
import pytest
from dataplane_processes import start

from dataplane.agent.main import main
from dataplane.agent.process import ConfigurationError, read_public_key
from dataplane.logs import JsonFormatter

KEY = bytes(range(32))


@pytest.mark.parametrize("written", [KEY, KEY.hex().encode() + b"\n", base64.b64encode(KEY) + b"\n"])
def test_a_key_is_read_raw_in_hexadecimal_and_in_base64(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "key").write_bytes(written)
    assert read_public_key(str(tmp_path / "key")) == KEY


@pytest.mark.parametrize("written", [b"", b"short", KEY[:31], base64.b64encode(KEY[:30]), b"\xff" * 40])
def test_anything_else_is_no_key(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "key").write_bytes(written)
    with pytest.raises(ConfigurationError, match="--intent-key"):
        read_public_key(str(tmp_path / "key"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--engine", "unix:/nowhere"], "--intent-key"),
        (["--engine", "unix:/nowhere", "--intent-key", "/nowhere/key"], "--intent-key"),
        (["--engine", "ftp://x", "--insecure-unsigned-intents"], "--engine"),
        (["--engine", "unix:/nowhere", "--insecure-unsigned-intents", "--listen", "ftp://x"], "--listen"),
        (["--engine", "unix:/nowhere", "--insecure-unsigned-intents", "--listen", "unix:/nowhere/a.sock"], "--listen"),
        (["--engine", "unix:/n", "--insecure-unsigned-intents", "--engine-token-file", "/nowhere/t"], "--engine-token-file"),
    ],
)
def test_a_flag_that_cannot_work_is_named_and_the_exit_code_is_two(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "nan", "-5", "90000", "soon"])
def test_a_memory_outside_its_bounds_is_refused(seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--engine", "unix:/nowhere", "--insecure-unsigned-intents", "--memory-seconds", seconds])
    assert ended.value.code == 2


async def test_the_agent_starts_without_its_engine_says_where_it_listens_and_is_not_ready(tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    log = tmp_path / "agent.log"
    arguments = ["--engine", f"unix:{tmp_path}/engine.sock", "--insecure-unsigned-intents", "--listen", f"unix:{socket}"]
    first = await start("dataplane.agent.main", arguments, log=log)
    assert first.ready == {"listen": f"unix:{socket}", "pid": first.pid}
    await first.kill()
    assert socket.is_socket(), "kill -9 leaves the socket behind"
    second = await start("dataplane.agent.main", arguments, log=log)
    try:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://agent") as http:
            assert (await http.get("/healthz")).status_code == 200
            ready = await http.get("/agent/v1/readyz")
            assert ready.status_code == 503
            assert ready.json()["reasons"][0].startswith("engine:")
    finally:
        assert await second.terminate() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert any("without a signature" in line["message"] for line in lines)


def test_a_log_line_is_one_json_object_with_its_extras() -> None:
    import logging

    record = logging.LogRecord("grfleet.agent", logging.INFO, __file__, 1, "split %s", ("moved",), None)
    record.embBytes = 7
    body = json.loads(JsonFormatter().format(record))
    assert (body["message"], body["embBytes"], body["level"]) == ("split moved", 7, "info")
