"""A real Prometheus server: fresh, empty, NaN, stale, partial and down are six different answers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_api_client.exceptions import PrometheusApiClientException

from controllers.metrics_source.port import InstanceName, PoolMetrics, PoolName, SourceState
from controllers.metrics_source.prometheus import Connection, PrometheusMetrics, classify, connect_to
from controllers.metrics_source.queries import QUERIES, SEEN_AT, Labels, markdown_table, selector_of
from policies.measurement import Fresh, Missing, NotANumber, Stale
from policies.preinference.observed import Rates, pool_sum
from policies.scaling.types import Doubt
from testbed.prometheus import prometheus_server


def names_of(pool: str, count: int = 1) -> list[InstanceName]:
    return [InstanceName(name=f"{pool}-{k}", uid=f"u-{pool}-{k}") for k in range(count)]


def source_at(url: str, *, stale_s: float = 60.0, **more: float) -> PrometheusMetrics:
    return PrometheusMetrics(connect_to(url), window_s=6.0, stale_s=stale_s, timeout_s=3.0, **more)


async def read(source: PrometheusMetrics, pool: str, count: int = 1) -> PoolMetrics:
    return await source.read(PoolName(namespace="shop", name=pool), names_of(pool, count))


async def read_until(
    source: PrometheusMetrics, pool: str, done: Callable[[PoolMetrics], bool], *, count: int = 1, timeout_s: float = 40.0
) -> PoolMetrics:
    """Read until the server has scraped what the test waits for; returns the last answer in any case."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = await read(source, pool, count)
        if done(answer) or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(0.3)


# Against the real server


async def test_a_scraped_pool_is_fresh_and_its_rates_are_those_of_the_engines(site: Any) -> None:
    source = source_at(site.url)
    answer = await read_until(source, "steady", lambda a: a.state is SourceState.FRESH, count=2)
    assert (answer.state, answer.doubt, answer.message) == (SourceState.FRESH, None, "")
    await asyncio.sleep(3.0)  # a few more scrapes for the rates to settle
    load = (await read(source, "steady", 2)).instances[1]
    for name, rate in {"requests": 50.0, "accepted": 4.0, "rejected": 1.0, "used": 3.0, "late": 1.0, "wasted": 0.0}.items():
        value = getattr(load.rates, name)
        assert isinstance(value, Fresh), name
        assert value.value == pytest.approx(rate, rel=0.3, abs=0.01), name
    assert isinstance(load.busy_slots, Fresh)
    assert load.busy_slots.value == pytest.approx(1.0, rel=0.3)
    assert isinstance(load.p99_ms, Fresh)
    assert 10.0 < load.p99_ms.value <= 20.0
    assert isinstance(load.queue, Fresh)
    assert load.queue.value == 2.0
    assert load.queue.age_ms < 30_000.0
    await source.aclose()


async def test_a_pool_that_nobody_scrapes_is_missing(site: Any) -> None:
    answer = await read(source_at(site.url), "nobody", 2)
    assert (answer.state, answer.condition_reason) == (SourceState.MISSING, "Missing")
    assert answer.instances[0].rates == Rates()
    assert pool_sum(answer.instances, lambda i: i.queue) == Missing()


async def test_no_traffic_is_zero_and_fresh_although_its_latency_is_not_a_number(site: Any) -> None:
    answer = await read_until(source_at(site.url), "quiet", lambda a: a.state is SourceState.FRESH)
    load = answer.instances[0]
    assert answer.state is SourceState.FRESH
    assert isinstance(load.rates.requests, Fresh)
    assert load.rates.requests.value == 0.0
    assert load.p99_ms == NotANumber()


async def test_a_value_that_is_not_a_number_is_named_as_that(site: Any) -> None:
    answer = await read_until(source_at(site.url), "nan", lambda a: a.doubt is Doubt.NOT_A_NUMBER)
    assert answer.instances[0].queue == NotANumber()
    assert isinstance(answer.instances[0].rates.requests, Fresh)
    assert (answer.state, answer.condition_reason) == (SourceState.NOT_A_NUMBER, "NotANumber")
    assert "queue of nan-0" in answer.message


async def test_series_that_have_ended_are_stale_and_not_missing(site: Any) -> None:
    source = source_at(site.url, stale_s=2.5)
    before = await read_until(source_at(site.url), "ends", lambda a: a.state is SourceState.FRESH)
    await asyncio.sleep(max(0.0, site.engines["ends-0"].born + 8.0 - time.monotonic()))  # the query looks back in steps of 5 s
    site.engines["ends-0"].broken = True
    after = await read_until(source, "ends", lambda a: a.state is SourceState.STALE)
    assert before.state is SourceState.FRESH
    assert (after.state, after.condition_reason) == (SourceState.STALE, "Stale")
    assert isinstance(after.instances[0].queue, Stale)
    assert after.instances[0].queue.age_ms > 2500.0


async def test_one_broken_instance_of_two_is_partial(site: Any) -> None:
    await read_until(source_at(site.url), "half", lambda a: a.state is SourceState.FRESH, count=2)
    await asyncio.sleep(max(0.0, site.engines["half-1"].born + 8.0 - time.monotonic()))
    site.engines["half-1"].broken = True
    answer = await read_until(source_at(site.url, stale_s=3.0), "half", lambda a: a.doubt is Doubt.STALE, count=2)
    assert answer.state is SourceState.PARTIAL
    assert isinstance(answer.instances[0].queue, Fresh)
    assert isinstance(answer.instances[1].queue, Stale)
    assert answer.message.startswith("1 of 2 ready instances are in doubt")


async def test_a_restarted_engine_gives_no_negative_rate(site: Any) -> None:
    source = source_at(site.url)
    await read_until(source, "restarts", lambda a: a.state is SourceState.FRESH)
    site.engines["restarts-0"].born = time.monotonic()
    for _ in range(10):
        rate = (await read(source, "restarts")).instances[0].rates.requests
        assert not isinstance(rate, Fresh) or rate.value >= 0.0
        await asyncio.sleep(0.3)


async def test_a_server_that_goes_down_leaves_no_old_answer_behind(prometheus_program: Path, tmp_path: Path) -> None:
    with prometheus_server(prometheus_program, tmp_path, targets=[]) as url:
        source = source_at(url)
        up = await read(source, "steady")
    down = await read(source, "steady")
    assert (up.state, down.state) == (SourceState.MISSING, SourceState.UNREACHABLE)
    await source.aclose()


# A server that is down, slow or something else


@contextmanager
def silent_server() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_server_that_is_down_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    answer = await read(source_at(url), "steady", 2)
    assert (answer.state, answer.doubt, answer.condition_reason) == (
        SourceState.UNREACHABLE,
        Doubt.MISSING,
        "SourceUnreachable",
    )
    assert [load.name for load in answer.instances] == ["steady-0", "steady-1"]
    assert answer.instances[0].queue == Missing()


async def test_a_server_that_never_answers_costs_the_deadline_and_no_more_threads() -> None:
    with silent_server() as url:
        source = PrometheusMetrics(connect_to(url), timeout_s=1.0, deadline_s=0.2)
        answers = await asyncio.gather(*(read(source, "steady") for _ in range(6)))
        assert {answer.state for answer in answers} == {SourceState.UNREACHABLE}
        assert "0.2 s" in answers[0].message
        await source.aclose()


class Canned:
    """A connection that answers each query from a function."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any], float | None]] = []

    def custom_query(self, query: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        self.asked.append((query, params or {}, timeout))
        return self.answer(query)

    def close(self) -> None:
        return


def canned(answer: Callable[[str], Any]) -> tuple[PrometheusMetrics, Canned]:
    connection = Canned(answer)

    def connect() -> Connection:
        return connection

    return PrometheusMetrics(connect), connection


@pytest.mark.parametrize(
    "garbage",
    [None, {}, "text", [{"metric": {"pod": "a"}}], [{"metric": {"pod": "a"}, "value": [0, "x"]}], [{"value": [0, "1"]}]],
)
async def test_an_answer_that_is_no_vector_is_a_failure_and_not_a_crash(garbage: Any) -> None:
    source, _ = canned(lambda query: [1000.0, "1000"] if query == "time()" else garbage)
    answer = await read(source, "a")
    assert answer.state in (SourceState.UNREACHABLE, SourceState.MISSING)
    assert answer.doubt is Doubt.MISSING


@pytest.mark.parametrize(
    "error",
    [
        PrometheusApiClientException("HTTP Status Code 503"),
        ConnectionResetError("reset"),
        ValueError("no JSON"),
        KeyError("data"),
    ],
)
async def test_any_failure_of_the_client_is_unreachable(error: Exception) -> None:
    def fail(query: str) -> Any:
        raise error

    source, _ = canned(fail)
    assert (await read(source, "a")).state is SourceState.UNREACHABLE


async def test_every_query_has_one_explicit_time_of_the_server_and_a_timeout() -> None:
    source, connection = canned(lambda query: [5000.25, "5000.25"] if query == "time()" else [])
    await read(source, "a")
    (_, first, _), *rest = connection.asked
    assert "time" not in first
    assert len(rest) == len(QUERIES)
    assert {params["time"] for _, params, _ in rest} == {"5000.250"}
    assert all(timeout == 5.0 and params["timeout"] == "5s" for _, params, timeout in rest)
    assert all(params["partial_response"] == "false" for _, params, _ in rest)
    assert all('namespace="shop",grfleet_dev_pool="a"' in query for query, _, _ in rest)
    assert not any("$" in query for query, _, _ in rest)


async def test_the_labels_can_be_named_otherwise() -> None:
    connection = Canned(lambda query: [1.0, "1"] if query == "time()" else [])
    labels = Labels(namespace="ns", pool="fleet", instance="engine")
    await read(PrometheusMetrics(lambda: connection, labels=labels), "a")
    assert 'max by (engine) (gr_queue{ns="shop",fleet="a"})' in [query for query, _, _ in connection.asked]


def test_values_cannot_leave_their_quotes() -> None:
    assert selector_of({"pool": 'a"} or vector(1) or x{y="\\'}) == 'pool="a\\"} or vector(1) or x{y=\\"\\\\"'


def test_the_table_for_the_documentation_has_a_row_for_each_query() -> None:
    assert markdown_table().count("\n") == len(QUERIES) + 2
    assert all(line.count("|") == 5 for line in markdown_table().splitlines())


def test_names_of_queries_are_unique_and_complete() -> None:
    names = [query.name for query in QUERIES]
    assert len(set(names)) == len(names)
    assert set(Rates.__struct_fields__) | {SEEN_AT, "busySlots", "livePrefixBytes", "queue", "p99"} == set(names)


@pytest.mark.parametrize(
    ("value", "age_ms", "expected"),
    [
        (1.0, 10.0, Fresh(value=1.0, age_ms=10.0)),
        (1.0, -10.0, Fresh(value=1.0, age_ms=0.0)),
        (float("nan"), 10.0, NotANumber()),
        (float("inf"), 10.0, NotANumber()),
        (None, 10.0, Missing()),
        (1.0, None, Missing()),
        (1.0, 101.0, Stale(age_ms=101.0)),
        (None, 101.0, Stale(age_ms=101.0)),
        (float("nan"), 101.0, Stale(age_ms=101.0)),
        (1.0, float("nan"), NotANumber()),
    ],
)
def test_one_value_is_worth_what_its_last_scrape_is(value: float | None, age_ms: float | None, expected: object) -> None:
    assert classify(value, age_ms=age_ms, stale_after_ms=100.0) == expected
