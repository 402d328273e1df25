"""docs/client.md: its examples run as they stand, one after the other, and its tables name what there is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from client_tables import SECRET, encoded, table
from documented import ROOT, blocks, labels, read, run
from loopback_servers import ToyInstance, serving
from prometheus_client import generate_latest

import grfleet.client
from contract.table import RoutingTable
from grfleet.client import Metric, PoolKey
from grfleet.client.exclusion import ExclusionLimits
from grfleet.client.hedge import HedgePolicy
from grfleet.client.overrides import DEFAULT_MOST

PAGE = "docs/client.md"


@pytest.fixture
def toy_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ToyInstance]]:
    """Three instances on loopback, their table and a key in files of the working directory."""
    toys, loop, stack = [ToyInstance(name) for name in "abc"], asyncio.new_event_loop(), contextlib.AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def serve() -> list[str]:
        return [await stack.enter_async_context(serving(toy)) for toy in toys]

    addresses = dict(zip("abc", asyncio.run_coroutine_threadsafe(serve(), loop).result(20), strict=True))
    made = table(1, "abc", key_id="user-key")
    rows = [msgspec.structs.replace(row, address=addresses[row.name]) for row in made.instances]
    made = msgspec.structs.replace(made, instances=rows)
    (tmp_path / "table.json").write_bytes(encoded(made))
    (tmp_path / "user-key").write_bytes(SECRET)
    monkeypatch.chdir(tmp_path)
    yield toys
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_examples_run_as_they_stand(toy_fleet: list[ToyInstance], capsys: pytest.CaptureFixture[str]) -> None:
    together: dict[str, object] = {"__name__": "example"}
    for example in blocks(PAGE, "python"):
        exec(compile(example, PAGE, "exec"), together)  # our own page, read from this checkout
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert "x-gr-user-key" in printed[0]
    assert sum(toy.asked for toy in toy_fleet) == 4
    assert sorted(toy.asked for toy in toy_fleet) == [0, 0, 4], "one user, one instance"
    assert b"grfleet_client_requests_total" in _exposition(together)
    assert labels(PAGE) == {"python", "sh"}


def test_the_files_that_the_examples_need_are_made_as_it_says(tmp_path: Path) -> None:
    (session,) = blocks(PAGE, "sh")
    session = session.replace("/tmp/toys", str(tmp_path)).replace(".venv/bin/python", sys.executable)
    run(f"set -eu\n{session}", within={**os.environ, "PYTHONPATH": str(ROOT)})
    made = msgspec.json.decode((tmp_path / "client" / "table.json").read_bytes(), type=RoutingTable)
    assert [each.address for each in made.instances] == [f"http://127.0.0.1:{port}" for port in (9101, 9102, 9103)]
    assert PoolKey("user-key", (tmp_path / "client" / "user-key").read_bytes())


def _exposition(together: dict[str, object]) -> bytes:
    return generate_latest(together["metrics"].registry)  # type: ignore[attr-defined]  # the example's own class


def test_the_page_lists_every_metric_and_every_result_of_it() -> None:
    page = read(PAGE)
    assert set(re.findall(r"^\| `(grfleet_client_\w+)` ", page, re.MULTILINE)) == {metric.value for metric in Metric}


def test_the_numbers_on_the_page_are_the_defaults() -> None:
    page, limits, hedge = read(PAGE), ExclusionLimits(), HedgePolicy()
    assert f"{limits.base_ms / 1000} s, doubled" in page
    assert f"up to {limits.longest_ms / 1000:.0f} s" in page
    assert f"come back over {limits.ramp_ms / 1000:.0f} s" in page
    assert (limits.most_percent, hedge.hoard, hedge.samples) == (50, 10.0, 100)
    assert f"{DEFAULT_MOST:,}".replace(",", " ") in page


def test_all_that_the_package_offers_is_there_and_documented() -> None:
    for name in grfleet.client.__all__:
        assert getattr(grfleet.client, name).__doc__, name
