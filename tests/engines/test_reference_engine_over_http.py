"""The socket around the instance model: addresses, tokens, clocks, bad input, metrics."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_process import EngineProcess, ManualClock, in_process, small_config

from contract import engine
from contract.engine_client import EngineClient
from contract.errors import ProtocolViolation
from engines.reference.main import main
from simulator.core.instance import GRInstanceCore


def rank(number: int, **changes: object) -> engine.RankRequest:
    base: dict[str, object] = {
        "request_id": f"r{number}",
        "user_key": f"{number:032x}",
        "model_version": "1",
        "history_tokens": 1000,
        "candidates": 100,
    }
    return engine.RankRequest(**(base | changes))


def core() -> GRInstanceCore:
    return GRInstanceCore(small_config(), seed=1, start_id="process-1")


async def test_a_unix_socket_is_readable_by_its_owner_only_and_gone_afterwards(
    tmp_path: Path, new_engine: Callable[..., EngineProcess]
) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as left_behind_by_a_crash:
        left_behind_by_a_crash.bind(str(path))
    process = new_engine("--listen", f"unix:{path}", "--hbm-bytes", str(64 << 20), "--emb-percent", "25")
    ready = await process.start()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert ready["emulation"] is True
    async with EngineClient(ready["listen"]) as client:
        described = await client.describe()
        assert (described.emulation, described.start_id, described.pool_bytes) == (True, ready["startId"], 64 << 20)
        assert (await client.observe()).split.limits.emb_bytes == 16 << 20
    assert await process.stop() == (0, "")
    assert not path.exists()


async def test_port_zero_prints_the_port_that_was_chosen(tmp_path: Path, new_engine: Callable[..., EngineProcess]) -> None:
    (tmp_path / "token").write_text("let me in\n")
    process = new_engine("--listen", "http://127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    ready = await process.start()
    assert not ready["listen"].endswith(":0")
    async with EngineClient(ready["listen"], token="let me in") as client:
        assert (await client.ready()).ready
    async with EngineClient(ready["listen"]) as stranger:
        with pytest.raises(ProtocolViolation, match="401"):
            await stranger.describe()
    assert await process.stop() == (0, "")


async def test_callers_of_the_pool_rank_at_an_address_of_their_own_where_nothing_can_be_set(
    tmp_path: Path, new_engine: Callable[..., EngineProcess]
) -> None:
    process = new_engine("--listen", f"unix:{tmp_path}/engine.sock", "--serve", "http://127.0.0.1:0")
    ready = await process.start()
    async with EngineClient(ready["serve"]) as caller, EngineClient(ready["listen"]) as agent:
        assert (await caller.ready()).ready
        assert (await caller.rank(rank(1))).kv_tokens_hit == 0
        assert (await agent.observe()).counters.requests == 1
        split = engine.SplitRequest(
            start_id=ready["startId"], revision=1, emb_bytes=1 << 20, kv_bytes=1 << 20, refill_bytes_per_second=1
        )
        for forbidden in (caller.observe(), caller.put_split(split), caller.drain()):
            with pytest.raises(ProtocolViolation, match="404"):
                await forbidden
        assert (await agent.observe()).split.revision == 0
    assert await process.stop() == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "ftp://127.0.0.1:1"], "--listen"),
        (["--listen", "http://0.0.0.0:0"], "--token-file"),
        (["--listen", "unix:/nowhere/at/all.sock"], "--listen"),
        (["--listen", "http://127.0.0.1:0", "--serve", "unix:/tmp/x.sock"], "--serve"),
        (["--listen", "http://127.0.0.1:0", "--emb-percent", "101"], "embPercent"),
        (["--listen", "http://127.0.0.1:0", "--p99-ms", "0"], "p99Ms"),
        (["--listen", "http://127.0.0.1:0", "--config", "/no/such/file.json"], "file.json"),
    ],
)
def test_a_wrong_option_ends_with_status_two_and_names_itself(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_a_configuration_file_with_an_unknown_field_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "engine.json"
    path.write_text('{"service": {"layers": 4, "flops": 1}}')
    with pytest.raises(SystemExit):
        main(["--listen", "http://127.0.0.1:0", "--config", str(path)])
    assert "flops" in capsys.readouterr().err


async def test_a_stamp_ahead_pulls_the_clock_forward_and_it_never_goes_back() -> None:
    wall = ManualClock()
    async with in_process(core(), wall=wall) as url, EngineClient(url) as client:
        await client.rank(rank(1, arrival_ms=5000.0))
        assert (await client.observe()).clock_ms == 5000.0
        await client.rank(rank(2, arrival_ms=10.0))
        wall.seconds = 1.0
        assert (await client.observe()).clock_ms == 5000.0
        wall.seconds = 7.0
        assert (await client.observe()).clock_ms == 7000.0


async def test_stamped_requests_queue_by_their_stamps_whatever_the_wall_says() -> None:
    wall = ManualClock()
    async with in_process(core(), wall=wall) as url, EngineClient(url) as client:
        first = await client.rank(rank(1, arrival_ms=100.0))
        wall.seconds = 0.105
        second = await client.rank(rank(2, arrival_ms=101.0))
        assert second.queue_ms == pytest.approx(first.service_ms - 1.0)
        metrics = await client._http.get(f"{url}/metrics")
        assert "gr_event_lag_ms 4.0" in metrics.text


async def test_the_wall_is_the_arrival_of_requests_without_a_stamp() -> None:
    wall = ManualClock()
    async with in_process(core(), wall=wall) as url, EngineClient(url) as client:
        await client.rank(rank(1))
        wall.seconds = 60.0
        assert (await client.rank(rank(2))).queue_ms == 0.0


async def test_an_engine_that_was_idle_for_hours_serves_what_comes() -> None:
    wall = ManualClock()
    async with in_process(core(), wall=wall) as url, EngineClient(url) as client:
        wall.seconds = 8000.0
        assert (await client.rank(rank(1))).queue_ms == 0.0
        wall.seconds = 16_000.0
        assert (await client.rank(rank(2, arrival_ms=16_001_000.0))).queue_ms == 0.0


async def test_too_large_a_request_is_refused_by_field_and_counts_nothing() -> None:
    async with in_process(core()) as url, EngineClient(url) as client:
        with pytest.raises(ProtocolViolation, match=r"400.*historyTokens"):
            await client.rank(rank(1, history_tokens=1 << 24, rows_per_token=1024))
        with pytest.raises(ProtocolViolation, match=r"400.*arrivalMs"):
            await client.rank(rank(1, arrival_ms=1e200))
        assert (await client.observe()).counters.requests == 0


async def test_draining_is_told_by_ready_with_503() -> None:
    async with in_process(core()) as url, EngineClient(url) as client:
        assert (await client.drain()).draining
        answer = await client.ready()
        assert (answer.ready, answer.reasons) == (False, ["draining"])
        assert not (await client.drain(draining=False)).draining
        assert (await client.ready()).ready


@pytest.mark.parametrize(
    ("body", "status", "draining"), [(b"{}", 200, True), (b'{"draining": 1}', 400, False), (b"no", 400, False)]
)
async def test_a_drain_without_the_word_is_a_drain_and_an_unreadable_one_changes_nothing(
    body: bytes, status: int, draining: bool
) -> None:
    async with in_process(core()) as url, EngineClient(url) as client:
        assert (await client._http.post("/drain", content=body)).status_code == status
        assert (await client.observe()).draining is draining


async def test_metrics_are_prometheus_text_without_labels_of_users() -> None:
    async with in_process(core()) as url, EngineClient(url) as client:
        for number in range(3):
            await client.rank(rank(number))
        response = await client._http.get(f"{url}/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "gr_requests_total 3.0" in response.text
    assert 'gr_latency_ms_bucket{le="100"}' in response.text
    assert "gr_split_revision 0.0" in response.text
    assert "0000000" not in response.text.replace("0.0", "")


async def test_two_engines_with_one_seed_answer_alike() -> None:
    answers = []
    for start_id in ("one", "two"):
        instance = GRInstanceCore(small_config(), seed=7, start_id=start_id)
        instance.warm()
        async with in_process(instance, wall=ManualClock()) as url, EngineClient(url) as client:
            answers.append([await client.rank(rank(number % 5, arrival_ms=40.0 * number)) for number in range(30)])
    assert answers[0] == answers[1]
