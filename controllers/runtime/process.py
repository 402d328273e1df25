"""The operator as a process: settings, logging, the watch library around the runtime, and the exit code.

The embedded form owns the event loop: the runtime's tasks start before the watch library and outlive it. ``kopf run``
gets the same handlers through :func:`register_for_kopf_run`; there the library owns the loop and starts the runtime.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

import kopf
import uvloop

from controllers.loops import all_loops
from controllers.runtime.clock import SystemClock
from controllers.runtime.depth import allow_deep_objects
from controllers.runtime.errors import ReconcileError, Terminal
from controllers.runtime.logs import configure_logging
from controllers.runtime.loop import Loop
from controllers.runtime.resources import ResourceType
from controllers.runtime.runtime import PreflightFailed, Runtime
from controllers.runtime.settings import parse_settings
from crds.types import GROUP

_logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_PREFLIGHT = 3
CLOSING_SECONDS = 2.0
YOUNG_OBJECTS = 10_000
"""So many containers may be new before the collector looks for cycles among them."""


class EndlessBackoff:
    """Seconds between attempts of the watch library: doubling to a cap, for ever, so an outage is never fatal.

    Iterable many times over, because the library iterates it anew for each request.
    """

    def __init__(self, *, base_seconds: float = 0.5, cap_seconds: float = 5.0) -> None:
        self._base = base_seconds
        self._cap = cap_seconds

    def __iter__(self) -> Iterator[float]:
        pause = self._base
        while True:
            yield pause
            pause = min(self._cap, pause * 2)


class NothingKept(kopf.DiffBaseStorage):
    """Tells the watch library that there is nothing to compare: we use no diff handlers, and it would copy each object
    three times per event to prepare for them."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        """An empty essence."""
        return {}

    def fetch(self, *, body: Any) -> Any:
        """Nothing was stored."""
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Store nothing."""


def main(arguments: Sequence[str] | None = None, *, loops: Callable[[], list[Loop]] = all_loops) -> int:
    """Run the operator until SIGTERM or SIGINT.

    Parameters
    ----------
    arguments
        Command line; None means the process's own.
    loops
        Makes the control loops.

    Returns
    -------
    int
        0 after a signal, 3 if kinds or permissions are missing, 1 for any other end.
    """
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
    configure_logging(level=settings.log_level)
    allow_deep_objects()
    _collect_rarely()
    runtime = Runtime(settings, loops(), clock=SystemClock(), rng=random.Random())
    try:
        run_with_an_end(_run(runtime))
    except PreflightFailed as error:
        for problem in error.problems:
            _logger.error("%s", problem)
        return EXIT_PREFLIGHT
    except ReconcileError as error:
        _logger.error("%s", error)
        return EXIT_FAILED
    except asyncio.CancelledError:
        return 0  # a signal before the watch library took them over
    except Exception:
        _logger.exception("the operator ends because a part of it failed")
        return EXIT_FAILED
    return 0


def _collect_rarely() -> None:
    """Spare the garbage collector what never becomes garbage: the modules, and objects that live as long as those they describe.

    With the defaults it walks through all of them every few hundred allocations, a twelfth of the CPU of a start.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def run_with_an_end(work: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` that closes within CLOSING_SECONDS, whatever tasks are left.

    After a failure the watch library's tasks swallow their cancellation and would be waited for for ever; a process that only
    seems to live is worse than one that is started again.
    """
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(work)
    finally:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        stuck = loop.run_until_complete(asyncio.wait(rest, timeout=CLOSING_SECONDS))[1] if rest else set()
        asyncio.set_event_loop(None)
        if stuck:
            loop.set_exception_handler(lambda *_: None)  # they are destroyed with the process, which is no news
        else:
            loop.close()


async def _run(runtime: Runtime) -> None:
    """Start the runtime, then watch; ends with whichever of them ends first."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    try:
        await runtime.start()
        await _watch_until_signal(runtime)
    finally:
        await runtime.stop()


async def _watch_until_signal(runtime: Runtime) -> None:
    """Returns after a signal; raises if the watch library or a background task failed."""
    failure = asyncio.create_task(runtime.failed())
    settings = kopf.OperatorSettings()
    configure(settings)
    watching = asyncio.create_task(
        kopf.operator(
            registry=_registry(runtime),
            settings=settings,
            clusterwide=runtime.settings.cluster_wide,
            namespaces=runtime.settings.watched_namespaces,
            standalone=True,
        )
    )
    try:
        await asyncio.wait({failure, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done() and failure.exception() is None:
            # The library has stopped the runtime, after a signal or because a watch failed, and should end soon and say why.
            await asyncio.wait({watching}, timeout=CLOSING_SECONDS)
            if not watching.done():
                raise Terminal("WatchFailed", "a watch has failed for good (see above), and the watch library does not end")
        for task in (failure, watching):
            if task.done():
                task.result()
    finally:
        for task in (failure, watching):
            task.cancel()
        await asyncio.wait({failure, watching}, timeout=1.0)


def configure(settings: kopf.OperatorSettings) -> None:
    """The watch library's settings: fixed kinds, no Events or annotations of its own, no fatal outages."""
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.chunk_size = 500
    settings.watching.inactivity_timeout = 90
    settings.watching.server_timeout = 240
    settings.watching.reconnect_backoff = 0.5
    settings.queueing.idle_timeout = 0.2  # its task per object would otherwise hold memory for five seconds
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = EndlessBackoff()
    settings.persistence.diffbase_storage = NothingKept()
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.process.ultimate_exiting_timeout = 20


def _registry(runtime: Runtime) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    _register(registry, runtime)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> Any:
        return await runtime.login()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await runtime.stop()  # here, or the library would wait five seconds for the workers

    return registry


def _register(registry: kopf.OperatorRegistry, runtime: Runtime) -> None:
    """One handler a resource, which only feeds the store."""
    for resource in runtime.resources:
        kopf.on.event(
            resource.group,
            resource.version,
            resource.plural,
            registry=registry,
            id=f"store-{resource.plural}",
            when=_news_for(runtime, resource),
        )(_feeder(runtime, resource))


def _news_for(runtime: Runtime, resource: ResourceType) -> Callable[..., bool]:
    """Most events are echoes of our own writes, whose answers the store has: those need no handler."""

    def is_news(event: Any, **_: Any) -> bool:
        return runtime.store.is_news(resource, event["type"], event["object"])

    return is_news


def _feeder(runtime: Runtime, resource: ResourceType) -> Callable[..., Awaitable[None]]:
    async def feed(event: Any, **_: Any) -> None:
        runtime.observe(resource, event)

    return feed


async def _end_with(runtime: Runtime) -> None:
    """Under ``kopf run``: end the process if a background task fails, because the library would not notice."""
    try:
        await runtime.failed()
    except Exception:
        _logger.exception("the operator ends because a part of it failed")
        signal.raise_signal(signal.SIGTERM)


def register_for_kopf_run() -> None:
    """Register everything in the default registry, for ``kopf run operator/main.py``; settings come from GRFLEET_*.

    ``kopf run`` needs ``-A`` or ``-n`` to match: the startup handler refuses a mismatch.
    """
    settings = parse_settings(None)
    allow_deep_objects()
    registry = kopf.get_default_registry()
    holder: list[asyncio.Task[None]] = []
    runtime = Runtime(settings, all_loops(), clock=SystemClock(), rng=random.Random())
    _register(registry, runtime)

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        if settings.peering.clusterwide != runtime.settings.cluster_wide:
            raise kopf.PermanentError("kopf run -A goes with an empty GRFLEET_NAMESPACE, kopf run -n with a filled one")
        try:
            await runtime.start()
        except ReconcileError as error:
            raise kopf.PermanentError(str(error)) from None
        holder.append(asyncio.create_task(_end_with(runtime)))

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> Any:
        return await runtime.login()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await runtime.stop()
