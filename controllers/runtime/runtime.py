"""Puts the parts together and gives them one life: start, feed with watch events, stop.

Watch and store run in every replica, so that a follower is warm; queues and workers run only while leading, and start
with all keys. Losing the Lease cancels the work and contends again, because the store stays good.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import aiohttp

from controllers.runtime.clock import Clock
from controllers.runtime.controller import Controller
from controllers.runtime.credentials import Login, load_api_client
from controllers.runtime.errors import ReconcileError, Terminal, Transient
from controllers.runtime.events import EventRecorder
from controllers.runtime.kube import HttpKubeApi, transport_of
from controllers.runtime.leader import Fence, LeaderElector, OpenFence
from controllers.runtime.loop import Context, Loop
from controllers.runtime.metrics import Metrics
from controllers.runtime.pool_counts import expose_pools
from controllers.runtime.preflight import preflight
from controllers.runtime.probes import ProbeServer
from controllers.runtime.resources import Key, ResourceType
from controllers.runtime.settings import Settings
from controllers.runtime.store import Store, WatchEvent
from controllers.runtime.sweep import Sweeper
from controllers.runtime.table_metrics import TableCollector
from controllers.runtime.watch import WatchMonitor

_logger = logging.getLogger(__name__)
_AGENTS_KEEP_ALIVE_SECONDS = 15.0
"""Longer than the time between two looks at an agent, so that a connection outlives it."""


class PreflightFailed(Terminal):
    """Kinds or permissions are missing; the message has one line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("PreflightFailed", "\n".join(problems))
        self.problems = problems


class Runtime:
    """One operator process, apart from the watch library. Use it within one event loop.

    Parameters
    ----------
    loops
        The control loops to run.
    """

    def __init__(self, settings: Settings, loops: Iterable[Loop], *, clock: Clock, rng: random.Random) -> None:
        self.settings = settings
        self.loops = list(loops)
        self.clock = clock
        self.rng = rng
        self.metrics = Metrics()
        self.resources: tuple[ResourceType, ...] = tuple(
            dict.fromkeys(resource for loop in self.loops for resource in loop.watches)
        )
        self.store = Store(self.resources)
        self.watch = WatchMonitor(
            self.resources, namespaces=settings.watched_namespaces, clock=clock, metrics=self.metrics, listed=self._listed
        )
        self.preflight_passed = False
        self._leading = False
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[None] | None = None
        self._probes = ProbeServer(self.metrics, alive=self.watch.problems, ready=self._unready)
        for resource in self.resources:
            self.metrics.objects.labels(str(resource)).set_function(partial(self.store.count, resource))
        expose_pools(self.metrics.pools, self.store)
        self.metrics.registry.register(TableCollector(self.store, clock))
        self.store.subscribe(self._changed)

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve probes, pass the preflight, start the background tasks.

        Raises
        ------
        PreflightFailed
            If kinds or permissions are missing.
        Terminal
            If there are no credentials.
        """
        port = await self._probes.start(self.settings.metrics_host, self.settings.metrics_port)
        _logger.info("serving /metrics, /healthz and /readyz", extra={"address": f"{self.settings.metrics_host}:{port}"})
        self._api_client = await load_api_client(self.settings.kubeconfig)
        self.login = Login(self._api_client, self.watch.middleware)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=256, keepalive_timeout=_AGENTS_KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        unfenced = self._kube(OpenFence())
        await self._preflight(unfenced)
        self._build(unfenced)
        self._spawn()

    async def stop(self) -> None:
        """End everything within about a second and give the Lease back; may be called several times."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def failed(self) -> None:
        """Return when a background task has ended: after `stop`, or else by a failure, which is raised."""
        if not self._tasks:
            await asyncio.Event().wait()
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping is not None:
            return  # it was ended on purpose
        for task in done:
            task.result()

    def observe(self, resource: ResourceType, event: Mapping[str, Any]) -> None:
        """Take in one raw event of the watch library."""
        self.metrics.watch_events.labels(str(resource), str(event["type"] or "LISTED")).inc()
        self.store.observe(resource, event["type"], event["object"])

    # -- start, in steps ----------------------------------------------------------------------------------------

    def _kube(self, fence: Fence) -> HttpKubeApi:
        return HttpKubeApi(
            transport_of(self._api_client), clock=self.clock, rng=self.rng, observe=self._requested, fence=fence.check
        )

    def _requested(self, verb: str, resource: str, code: str) -> None:
        self.metrics.requests.labels(verb, resource, code).inc()
        if code != "error":
            self.watch.answered()

    async def _preflight(self, kube: HttpKubeApi) -> None:
        """Wait for the API server as long as it takes; a missing permission is final."""
        pause = 0.5
        while True:
            try:
                problems = await preflight(kube, self.resources, self.settings)
                break
            except Transient as error:
                _logger.warning("the API server does not answer yet: %s", error)
                await self.clock.sleep(pause * self.rng.uniform(0.5, 1.0))
                pause = min(5.0, pause * 2)
        if problems:
            raise PreflightFailed(problems)
        self.preflight_passed = True

    def _build(self, unfenced: HttpKubeApi) -> None:
        settings, clock, rng = self.settings, self.clock, self.rng
        lease = Key(settings.operator_namespace, settings.lease_name)
        self.elector: LeaderElector | None = None
        if settings.leader_elect:
            self.elector = LeaderElector(unfenced, lease, settings.identity, clock=clock, rng=rng, metrics=self.metrics)
        fence: Fence = self.elector or OpenFence()
        kube = self._kube(fence)
        self.events = EventRecorder(kube, clock=clock, metrics=self.metrics, instance=settings.identity)
        self.context = Context(
            settings=settings,
            store=self.store,
            kube=kube,
            events=self.events,
            clock=clock,
            fence=fence,
            metrics=self.metrics,
            http=self._http,
            rng=rng,
        )
        self.sweeper = Sweeper(
            unfenced,
            self.store,
            namespaces=settings.watched_namespaces,
            clock=clock,
            rng=rng,
            swept=self._swept,
        )
        self.controllers = {loop.name: self._controller(loop) for loop in self.loops}

    def _controller(self, loop: Loop) -> Controller:
        async def reconcile(key: Key) -> Any:
            return await loop.reconcile(key, self.context)

        return Controller(
            loop.name,
            reconcile,
            kind=loop.keyed_by.kind,
            clock=self.clock,
            rng=self.rng,
            metrics=self.metrics,
            workers=self.settings.workers,
            all_keys=partial(self._all_keys, loop),
        )

    def _spawn(self) -> None:
        """Tasks that exist before the watch library starts; it leaves those alone when it ends."""
        lead = self._contend() if self.elector is not None else self._lead()
        for name, work in (("sweeper", self.sweeper.run()), ("leader", lead)):
            self._tasks.append(asyncio.create_task(work, name=f"grfleet-{name}"))

    # -- leading ------------------------------------------------------------------------------------------------

    async def _contend(self) -> None:
        assert self.elector is not None
        await self.elector.run(self._lead)

    async def _lead(self) -> None:
        await self.sweeper.synced.wait()
        for loop in self.loops:
            await self._start_loop(loop)
        self._leading = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.events.run(), name="grfleet-events")
                for name, controller in self.controllers.items():
                    group.create_task(controller.run(), name=f"grfleet-{name}")
        finally:
            self._leading = False

    async def _start_loop(self, loop: Loop) -> None:
        pause = 0.5
        while True:
            try:
                await loop.start(self.context)
                return
            except ReconcileError as error:
                _logger.warning("loop %s cannot start yet: %s", loop.name, error, extra={"reason": error.reason})
                await self.clock.sleep(pause * self.rng.uniform(0.5, 1.0))
                pause = min(30.0, pause * 2)

    def _changed(self, event: WatchEvent) -> None:
        """Store listener: an event becomes keys, and only for the leader, who begins with all keys anyway."""
        if not self._leading:
            return
        for loop in self.loops:
            if event.resource in loop.watches:
                for key in self._keys_for(loop, event):
                    self.controllers[loop.name].queue.add(key)

    def _keys_for(self, loop: Loop, event: WatchEvent) -> list[Key]:
        """What the loop makes of an event; an error there must cost neither the other loops nor the process."""
        try:
            return list(loop.keys_for(event, self.store))
        except Exception:
            _logger.exception("loop %s cannot map an event of %s %s", loop.name, event.resource, event.key)
            self.metrics.panics.labels(loop.name).inc()
            return []

    def _all_keys(self, loop: Loop) -> list[Key]:
        keys = {
            key
            for resource in loop.watches
            for event in self.store.resync_events(resource)
            for key in self._keys_for(loop, event)
        }
        return sorted(keys)

    # -- probes and end -----------------------------------------------------------------------------------------

    def _unready(self) -> list[str]:
        if not self.preflight_passed:
            return ["the preflight has not passed yet"]
        return [f"{resource} has not been listed yet" for resource in self.store.unsynced()]

    def _listed(self, resource: ResourceType) -> None:
        self.sweeper.request(resource)

    def _swept(self, resource: ResourceType, ghosts: int) -> None:
        self.metrics.sweeps.labels(str(resource)).inc()
        self.metrics.ghosts.labels(str(resource)).inc(ghosts)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        if getattr(self, "elector", None) is not None:
            assert self.elector is not None
            await self.elector.release()
        await self._probes.stop()
        if hasattr(self, "_api_client"):
            await self._http.close()
            await self._api_client.close()
