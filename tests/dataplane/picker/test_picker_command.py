"""The command: what it refuses, what it follows, and how it ends."""

import asyncio
import json
import random
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from contract.keys import SLOTS, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from dataplane.picker import main as command
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge
from dataplane.picker.picker import Picker

OLD, NEW = b"0123456789abcdef", b"fedcba9876543210"


@pytest.fixture
def needed(tmp_path: Path) -> list[str]:
    (tmp_path / "key").write_bytes(OLD + b"\n")
    row = TableInstance(name="a", uid="ua", address="10.0.0.1:80", weight_percent=100, state=InstanceState.READY)
    table = RoutingTable(generation=1, instances=[row], slots=pack_slots([0] * SLOTS))
    (tmp_path / "table.json").write_bytes(msgspec.json.encode(table))
    return ["--table", str(tmp_path / "table.json"), "--pool-key", str(tmp_path / "key"), "--bind", "127.0.0.1:0"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--id-header", "x-gr-user-key"], "id header"),
        (["--id-header", "two words"], "id header"),
        (["--id-header", "Transfer-Encoding"], "id header"),
        (["--key-id", "a b"], "key id"),
        (["--bounded-load-percent", "50"], "bounded load"),
        (["--endpoints", "0"], "endpoints"),
        (["--max-in-flight", "-1"], "max in flight"),
        (["--tls-key", "/nowhere"], "tls"),
        (["--table", "kubernetes:half"], "NAMESPACE/NAME"),
        (["--pool-key", "/nowhere"], "/nowhere"),
        (["--bind", "127.0.0.1:99999"], "port"),
        (["--health-bind", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start_in_one_line(
    needed: list[str], flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*needed, *flags]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("grfleet-picker: ")
    assert said in error


def test_a_short_key_is_refused(needed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_bytes(b"short")
    assert command.main(needed) == 2
    assert "at least 16 bytes" in capsys.readouterr().err


def test_the_process_says_where_it_listens_and_ends_well_at_a_signal(needed: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dataplane.picker.main", *needed], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["ready"]
        assert ready["port"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


async def test_another_pool_key_in_the_file_is_taken_over_and_one_that_is_none_changes_nothing(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(OLD)
    picker = Picker(Edge(pool_key=OLD), limits=PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1))
    service = command.Service(bind="", pool_key=key)
    task = asyncio.create_task(command.follow_secrets(picker, service, period_s=0.005))

    async def hashes_like(secret: bytes) -> None:
        async with asyncio.timeout(5):
            while picker._edge.key_of({"x-user-id": b"ann"}) != user_key(secret, "ann"):  # noqa: ASYNC110  # no signal for it
                await asyncio.sleep(0.005)

    await asyncio.sleep(0.02)
    key.unlink()
    await asyncio.sleep(0.02)
    key.write_bytes(b"short")
    await asyncio.sleep(0.02)
    assert not task.done()
    await hashes_like(OLD)
    key.write_bytes(NEW)
    await hashes_like(NEW)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Context:
    """Of a TLS context what is needed: half of a pair is none."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load_cert_chain(self, certificate: Path, key: Path) -> None:
        if certificate.read_text() != key.read_text():
            raise ssl.SSLError("key values mismatch")
        self.loaded.append(certificate.read_text())


async def test_another_certificate_in_its_files_is_taken_over_once_its_key_is_there_too(tmp_path: Path) -> None:
    files, context = (tmp_path / "tls.crt", tmp_path / "tls.key"), Context()
    for file in files:
        file.write_text("old")
    picker = Picker(Edge(pool_key=OLD), limits=PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1))
    service = command.Service(bind="", tls=context, tls_files=files)  # type: ignore[arg-type]  # see above
    task = asyncio.create_task(command.follow_secrets(picker, service, period_s=0.002))
    files[0].write_text("new")
    await asyncio.sleep(0.02)
    assert not task.done()
    files[1].write_text("new")
    async with asyncio.timeout(5):
        while context.loaded[-1:] != ["new"]:  # noqa: ASYNC110  # no signal for it
            await asyncio.sleep(0.002)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
