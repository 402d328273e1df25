"""Where the loop's measurements come from: the address is checked at start, and an outage is worded the same each time."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, cast

import pytest
from loop_objects import agent_status

from contract.agent import EngineReport, ServingReport
from contract.engine import PreInferCounters
from controllers.agent_book import AgentBook
from controllers.metrics_source.agents import AgentsSource
from controllers.metrics_source.choose import source_for
from controllers.metrics_source.port import MOST, InstanceName, PoolName, SourceState
from controllers.metrics_source.prometheus import PrometheusMetrics, classify, connect_to
from controllers.metrics_source.queries import QUERIES
from controllers.runtime.clock import FakeClock
from controllers.runtime.settings import parse_settings
from policies.measurement import Fresh, Missing, NotANumber

POOL = PoolName(namespace="team", name="pool")
ONE = [InstanceName(name="pool-a", uid="uid-a")]


@pytest.mark.parametrize(
    "url",
    [
        "http://prometheus.monitoring:9090",
        "https://thanos.example.com/select/0",
        "http://[::1]:9090/",
        "http://10.0.0.1",
    ],
)
def test_an_address_of_a_server_is_taken_from_flag_and_variable(url: str) -> None:
    assert parse_settings(["--prometheus-url", url], {}).prometheus_url == url
    assert parse_settings(None, {"GRFLEET_PROMETHEUS_URL": url}).prometheus_url == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("prometheus:9090", "does not begin with http"),
        ("ftp://prometheus", "does not begin with http"),
        ("http://", "names no host"),
        ("http://:9090", "names no host"),
        ("http://prometheus:0", "names no host"),
        ("http://prometheus monitoring", "names no host"),
        ("http://prometheus:ninety", "is no address"),
        ("http://[::1", "is no address"),
        ("http://user:secret@prometheus:9090", "carries a password"),
        ("http://prometheus:9090/?tenant=a", "has a query"),
    ],
)
def test_what_is_no_address_ends_the_start_with_a_word(url: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(["--prometheus-url", url], {})
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"--prometheus-url {why}" in said
    assert "secret" not in said


def test_the_settings_choose_the_source() -> None:
    book, clock = AgentBook(), FakeClock()
    assert isinstance(source_for(parse_settings(None, {}), statuses=book, clock=clock), AgentsSource)
    told = parse_settings(["--prometheus-url", "http://127.0.0.1:1"], {})
    assert isinstance(source_for(told, statuses=book, clock=clock), PrometheusMetrics)


async def test_an_outage_is_worded_the_same_each_time_and_carries_no_query() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    source = PrometheusMetrics(connect_to(f"http://127.0.0.1:{port}"))
    said = {(await source.read(POOL, ONE)).message for _ in range(3)}
    await source.aclose()
    assert len(said) == 1
    assert "no connection" in said.pop()


class SlowServer:
    """A server that answers each query just in time for that query, and far too late for all of them."""

    def __init__(self) -> None:
        self.queries = 0

    def custom_query(self, query: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        self.queries += 1
        time.sleep(0.1)
        return [0, "100"] if query == "time()" else []

    def close(self) -> None:
        return


async def test_a_thread_does_not_go_on_asking_when_nobody_waits_any_longer() -> None:
    server = SlowServer()
    source = PrometheusMetrics(lambda: server, deadline_s=0.15)
    answer = await source.read(POOL, ONE)
    assert answer.state is SourceState.UNREACHABLE
    assert answer.message == "Prometheus did not answer within 0.15 s"
    await asyncio.to_thread(cast(Any, source)._threads.shutdown)
    assert server.queries < len(QUERIES)
    await source.aclose()


async def heard(*counters: PreInferCounters) -> Any:
    book, clock = AgentBook(), FakeClock()
    source = AgentsSource(book, clock=clock)
    answer = None
    for number, counts in enumerate(counters):
        await clock.advance(10.0)
        serving = ServingReport(
            clock_ms=10_000.0 * number, requests=100 * number, queue=0, in_flight=0, live_prefix_bytes=0, pre_infer=counts
        )
        status = agent_status("uid-a", engine=EngineReport(reachable=True, start_id="engine-1"), serving=serving)
        book.note("uid-a", status, now_s=clock.monotonic())
        answer = (await source.read(POOL, ONE)).instances[0]
    return answer


async def test_an_engine_without_pre_inference_has_no_busy_slot_although_it_counts_none() -> None:
    assert (await heard(PreInferCounters(), PreInferCounters())).busy_slots == Fresh(value=0.0)


async def test_an_engine_that_admits_and_does_not_count_its_slots_is_in_doubt() -> None:
    assert (await heard(PreInferCounters(), PreInferCounters(accepted=3))).busy_slots == Missing()


async def test_what_was_measured_of_a_pool_goes_with_it() -> None:
    book, clock = AgentBook(), FakeClock()
    source = AgentsSource(book, clock=clock)
    serving = ServingReport(clock_ms=0.0, requests=0, queue=0, in_flight=0, live_prefix_bytes=0, pre_infer=PreInferCounters())
    book.note("uid-a", agent_status("uid-a", serving=serving), now_s=0.0)
    await source.read(POOL, ONE)
    source.forget(PoolName(namespace="team", name="other"))
    assert len(cast(Any, source)._tracks) == 1
    source.forget(POOL)
    assert cast(Any, source)._tracks == {}


@pytest.mark.parametrize(
    ("value", "worth"),
    [
        (0.0, Fresh(value=0.0)),
        (MOST, Fresh(value=MOST)),
        (-1e-9, NotANumber()),
        (1e19, NotANumber()),
        (float("inf"), NotANumber()),
        (float("nan"), NotANumber()),
        (None, Missing()),
    ],
)
def test_numbers_that_no_engine_can_have_are_none(value: float | None, worth: object) -> None:
    assert classify(value, age_ms=0.0, stale_after_ms=1000.0) == worth
