"""Measurements from a Prometheus server: the queries of `queries.py`, all at one explicit time, in a thread with a deadline.

The time of evaluation is the server's own now, so a clock of ours that is wrong shifts nothing. Every failure has a state of its
own: a server that cannot be asked, series that never were, series that have ended, and values that are not numbers.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import Timeout
from urllib3.util.retry import Retry

from controllers.metrics_source.bounded_http import BoundedSession, Redirected, Unbounded
from controllers.metrics_source.port import InstanceName, PoolMetrics, PoolName, believable, summarise, unreachable
from controllers.metrics_source.queries import QUERIES, SEEN_AT, Labels, selector_of
from policies.measurement import Measurement, Missing, Stale, measured
from policies.preinference.observed import InstanceLoad, Rates

WINDOW_SECONDS = 60.0
STALE_SECONDS = 60.0
TIMEOUT_SECONDS = 5.0
DEADLINE_SECONDS = 10.0
_THREADS = 2
_STATUS_CODE = re.compile(r"HTTP Status Code \d{3}")

Values = Mapping[str, float]


class Connection(Protocol):
    """The one call of prometheus-api-client that is made."""

    def custom_query(self, query: str, params: dict[str, Any] | None = None, timeout: float | None = None) -> Any: ...

    def close(self) -> None: ...


class BadAnswer(Exception):
    """The server answered something that is not an instant vector; the message names the query."""


class TooLate(Exception):
    """Nobody waits for the answer any longer."""


def connect_to(url: str, *, headers: Mapping[str, str] | None = None, verify: bool = True) -> Callable[[], Connection]:
    """Return what opens a connection without retries: the next round is the retry.

    Parameters
    ----------
    headers
        Sent with each query, for example Authorization.
    """

    def connect() -> Connection:
        session = BoundedSession()
        session.verify = verify
        made: Connection = PrometheusConnect(
            url=url.rstrip("/"), headers=dict(headers or {}), session=session, retry=Retry(total=0)
        )
        return made

    return connect


class PrometheusMetrics:
    """`MetricsSource` over a Prometheus server, or anything with its query API.

    Parameters
    ----------
    connect
        Opens a connection; each of the few threads has its own (`connect_to`).
    window_s
        Rates reach back this far; it should hold at least four scrapes.
    stale_s
        An instance whose last scrape is older is stale.
    timeout_s, deadline_s
        Limit of one query, given to the server too, and of all queries of one answer.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        labels: Labels | None = None,
        window_s: float = WINDOW_SECONDS,
        stale_s: float = STALE_SECONDS,
        timeout_s: float = TIMEOUT_SECONDS,
        deadline_s: float = DEADLINE_SECONDS,
    ) -> None:
        self._connect = connect
        self._labels = labels or Labels()
        self._window_s = window_s
        self._stale_s = stale_s
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="prometheus")
        # What waits for a thread is bounded too: a server that hangs must not collect work.
        self._turns = asyncio.Semaphore(_THREADS)
        self._local = threading.local()
        self._opened: list[Connection] = []

    async def read(self, pool: PoolName, instances: Sequence[InstanceName]) -> PoolMetrics:
        """Ask all queries for a pool; a failure of one is a failure of the answer, since decisions need all of them."""
        try:
            async with asyncio.timeout(self._deadline_s), self._turns:
                end_s = time.monotonic() + self._deadline_s
                asked = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, pool, end_s)
                now_s, results = await asked
        except (TimeoutError, TooLate):
            return self._unreachable(instances, f"Prometheus did not answer within {self._deadline_s:g} s")
        except (OSError, PrometheusApiClientException, BadAnswer) as error:  # requests' errors are OSErrors
            return self._unreachable(instances, f"Prometheus: {_words(error)}")
        return summarise([self._load(instance, results, now_s=now_s) for instance in instances], window_s=self._window_s)

    def forget(self, pool: PoolName) -> None:
        """Nothing is remembered."""

    async def aclose(self) -> None:
        """Close the connections; a thread that still waits for the server ends by its own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for connection in self._opened:
            connection.close()

    def _unreachable(self, instances: Sequence[InstanceName], why: str) -> PoolMetrics:
        return unreachable(instances, why, window_s=self._window_s)

    # In a thread

    def _ask(self, pool: PoolName, end_s: float) -> tuple[float, dict[str, Values]]:
        connection = self._connection()
        now_s = self._server_time(connection)
        selector = selector_of({self._labels.namespace: pool.namespace, self._labels.pool: pool.name})
        results: dict[str, Values] = {}
        for query in QUERIES:
            if time.monotonic() > end_s:  # a thread that goes on for nobody would hold up others, and the end of the process
                raise TooLate
            text = query.text(selector, self._labels, window_s=self._window_s)
            rows = self._query(connection, text, time=f"{now_s:.3f}")
            results[query.name] = _by_instance(rows, self._labels.instance, query.name)
        return now_s, results

    def _connection(self) -> Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = self._connect()
            self._opened.append(self._local.connection)
        connection: Connection = self._local.connection
        return connection

    def _server_time(self, connection: Connection) -> float:
        rows = self._query(connection, "time()")
        try:
            return float(rows[0])  # a scalar: [time, value]
        except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise BadAnswer("time() gave no time") from error

    def _query(self, connection: Connection, text: str, **params: str) -> Any:
        # Thanos answers in part unless told not to; others ignore the parameter.
        params |= {"timeout": f"{self._timeout_s:g}s", "partial_response": "false"}
        try:
            return connection.custom_query(text, params=dict(params), timeout=self._timeout_s)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadAnswer(f"the answer is not that of a Prometheus server ({type(error).__name__})") from error

    # Pure

    def _load(self, instance: InstanceName, results: Mapping[str, Values], *, now_s: float) -> InstanceLoad:
        seen_at = results[SEEN_AT].get(instance.name)
        age_ms = None if seen_at is None else 1000.0 * (now_s - seen_at)

        def of(name: str) -> Measurement:
            return classify(results[name].get(instance.name), age_ms=age_ms, stale_after_ms=1000.0 * self._stale_s)

        return InstanceLoad(
            name=instance.name,
            ready=instance.ready,
            rates=Rates(**{name: of(name) for name in Rates.__struct_fields__}),
            busy_slots=of("busySlots"),
            live_prefix_bytes=of("livePrefixBytes"),
            queue=of("queue"),
            p99_ms=of("p99"),
        )


def classify(value: float | None, *, age_ms: float | None, stale_after_ms: float) -> Measurement:
    """Return what one value of one instance is worth.

    Parameters
    ----------
    value
        None where the query gave no series for the instance.
    age_ms
        Age of its last scrape; None if none is known.

    Returns
    -------
    Measurement
        Stale also for a value that is gone when the last scrape is too old: its series have ended.
    """
    if age_ms is None:
        return Missing()
    if age_ms > stale_after_ms:
        return Stale(age_ms=age_ms)
    return measured(believable(value), age_ms=age_ms, stale_after_ms=stale_after_ms)


def _words(error: Exception) -> str:
    """What went wrong, in words that are the same each time: the library's carry the query and its time."""
    if isinstance(error, Timeout):
        return "no answer in time"
    if isinstance(error, NoConnection):
        return "no connection; check --prometheus-url and the network policy"
    if isinstance(error, PrometheusApiClientException):
        code = _STATUS_CODE.match(str(error))  # what follows is the body, which may be anything and another each time
        return code.group() if code is not None else "the query was refused"
    if isinstance(error, BadAnswer | Unbounded | Redirected):
        return str(error)[:200]
    return type(error).__name__


def _by_instance(rows: Any, label: str, query: str) -> dict[str, float]:
    """Values of an instant vector by the label of the instance."""
    try:
        return {row["metric"][label]: float(row["value"][1]) for row in rows if label in row["metric"]}
    except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise BadAnswer(f"query {query} gave no instant vector") from error
