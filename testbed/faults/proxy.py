"""The fault proxy as a test holds it: a thread with an HTTPS server in front of one API server.

A client uses it by means of a kubeconfig that differs from its own by the address only: the certificate is signed by the
control plane's authority and tokens pass through, so that RBAC sees who asks. One proxy for each client tells apart who
wrote what. HTTP/1.1 only; `exec`, `attach` and port forwarding are not carried.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import httpx
from aiohttp import web

from testbed import credentials
from testbed.control_plane import ControlPlane
from testbed.faults.relay import Exchange, Relay
from testbed.faults.rules import Action, Match, Rule

__all__ = ["Exchange", "FaultProxy"]

_MAX_BODY = 1 << 26
_DEADLINE_SECONDS = 10.0
T = TypeVar("T")


class FaultProxy:
    """Use it as a context manager. All methods may be called from any thread but the proxy's own.

    Parameters
    ----------
    plane
        A control plane that runs; it may be restarted meanwhile, its port stays.
    name
        Distinguishes the kubeconfigs of several proxies of one control plane.

    Examples
    --------
    >>> with FaultProxy(plane) as proxy:
    ...     kubeconfig = proxy.kubeconfig(plane.kubeconfig)
    ...     storm = proxy.add(Match(methods=frozenset({"PATCH"}), path="/status"), Answer(status=409), times=20)
    ...     storm.wait_for_hits(20, timeout_seconds=30)
    """

    def __init__(self, plane: ControlPlane, *, name: str = "proxy") -> None:
        self._plane = plane
        self._name = name
        self._rules: tuple[Rule, ...] = ()
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []
        self._injected: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"fault-proxy-{name}", daemon=True)
        self._port = 0

    # -- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._await(self._start())
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._await(self._stop())
        finally:
            self._end_thread()

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig(self, source: Path) -> Path:
        """A copy of a kubeconfig of the control plane that goes through the proxy."""
        value: dict[str, Any] = json.loads(source.read_text())
        for cluster in value["clusters"]:
            cluster["cluster"]["server"] = self.url
        return credentials.write_private(source.with_name(f"{source.name}-{self._name}"), json.dumps(value, indent=2) + "\n")

    def client(self, *, token: str | None = None, timeout_seconds: float = 30, user_agent: str = "") -> httpx.Client:
        """An HTTP client through the proxy, as the administrator or with another token; the caller closes it."""
        headers = {"Authorization": f"Bearer {token or self._plane.admin_token}"}
        return httpx.Client(
            base_url=self.url,
            verify=ssl.create_default_context(cafile=str(self._plane.ca_file)),
            headers=headers | ({"User-Agent": user_agent} if user_agent else {}),
            timeout=timeout_seconds,
            trust_env=False,
        )

    # -- faults ---------------------------------------------------------------------------------------------------

    def add(
        self, match: Match, action: Action, *, skip: int = 0, times: int | None = None, probability: float = 1.0, seed: int = 0
    ) -> Rule:
        """Put a rule in force, after those that are; watches that are open obey it at once. Parameters as `Rule`'s."""
        rule = Rule(match, action, skip=skip, times=times, probability=probability, seed=seed)
        with self._lock:
            self._rules = (*self._rules, rule)
        self._loop.call_soon_threadsafe(self._relay.kick)
        return rule

    def remove(self, *rules: Rule) -> None:
        """Take rules out of force. What a Hold keeps stays kept; a frozen watch stays frozen."""
        with self._lock:
            self._rules = tuple(rule for rule in self._rules if rule not in rules)

    def clear(self) -> None:
        """End all faults."""
        self.remove(*self._rules)

    def release(self, rule: Rule) -> None:
        """Forward what a Hold keeps, and whatever else it will meet."""
        self._loop.call_soon_threadsafe(self._relay.release, rule)

    # -- what happened --------------------------------------------------------------------------------------------

    @property
    def injected(self) -> Counter[str]:
        """How often each kind of action was taken, by its name."""
        with self._lock:
            return Counter(self._injected)

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._relay.streams)

    def exchanges(self) -> list[Exchange]:
        """Everything that is complete, in the order of completion; a watch counts when it begins."""
        with self._lock:
            return list(self._exchanges)

    def pending(self) -> list[Exchange]:
        """Requests under way, watches apart: held, delayed, or waiting for the API server."""
        return list(self._relay.pending)

    def writes(self) -> list[Exchange]:
        """Those that could change something."""
        return [each for each in self.exchanges() if each.is_write]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _note(self, exchange: Exchange) -> None:
        with self._lock:
            self._exchanges.append(exchange)

    def _count(self, name: str) -> None:
        with self._lock:
            self._injected[name] += 1

    async def _start(self) -> None:
        outgoing = ssl.create_default_context(cafile=str(self._plane.ca_file))
        connector = aiohttp.TCPConnector(limit=0, ssl=outgoing)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)
        )
        self._relay = Relay(self._plane.url, self._session, rules=lambda: self._rules, log=self._note, injected=self._count)
        application = web.Application(client_max_size=_MAX_BODY)
        application.router.add_route("*", "/{tail:.*}", self._relay.handle)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1, logger=_quiet_logger()
        )
        await self._runner.setup()
        incoming = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pki = self._plane.directory / "pki"
        incoming.load_cert_chain(pki / "proxy.crt", pki / "proxy.key")
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=incoming).start()
        self._port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=1)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE_SECONDS)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _quiet_logger() -> logging.Logger:
    """A client that goes away in the middle is this server's daily bread."""
    logger = logging.getLogger("testbed.faults.server")
    logger.setLevel(logging.CRITICAL)
    return logger
