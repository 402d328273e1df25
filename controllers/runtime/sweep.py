"""Our own lists beside the watch: the first completes the store, later ones remove objects whose deletion got lost.

A sweep runs soon after each list of the watch library (its start, an API server restart, an edited CRD, an expired
version), because whatever vanished before that list is never reported; and every ten minutes with jitter in any case.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from controllers.runtime.clock import Clock
from controllers.runtime.errors import Expired, ReconcileError, Transient
from controllers.runtime.kube import KubeApi
from controllers.runtime.resources import ResourceType
from controllers.runtime.store import Store

_logger = logging.getLogger(__name__)


class Sweeper:
    """Keeps the store equal to what the API server lists. Tell it by :meth:`request` when the watch has listed again.

    Parameters
    ----------
    namespaces
        Namespaces to list; empty means the whole cluster.
    period_seconds
        Time between sweeps that nothing asked for; each wait is drawn from [0.9, 1.1] of it.
    first_seconds
        When the first sweep begins even if the watch library has not listed by then.
    settle_seconds
        Pause between a list of the watch library and the sweep that answers it, once the store is synced.
    swept
        Called with the resource type and the number of ghosts dropped after each whole list.
    """

    def __init__(
        self,
        kube: KubeApi,
        store: Store,
        *,
        namespaces: Iterable[str],
        clock: Clock,
        rng: random.Random,
        period_seconds: float = 600.0,
        first_seconds: float = 5.0,
        settle_seconds: float = 1.0,
        retry_seconds: float = 5.0,
        swept: Callable[[ResourceType, int], None] = lambda resource, ghosts: None,
    ) -> None:
        self._kube = kube
        self._store = store
        self._namespaces = frozenset(namespaces)
        self._clock = clock
        self._rng = rng
        self._period = period_seconds
        self._settle = settle_seconds
        self._retry = retry_seconds
        self._swept = swept
        self._due: dict[ResourceType, float] = {resource: clock.monotonic() + first_seconds for resource in store.resources}
        self._wake = asyncio.Event()
        self.synced = asyncio.Event()
        if not self._due:
            self.synced.set()

    def request(self, resource: ResourceType) -> None:
        """Ask for a sweep of one resource type, shortly from now."""
        settle = 0.0 if resource in self._store.unsynced() else self._settle
        due = self._clock.monotonic() + settle
        if self._due[resource] > due:
            self._due[resource] = due
            self._wake.set()

    async def run(self) -> None:
        """Sweep what is due, for ever. The very first round is what makes the store synced."""
        while True:
            for resource in self._due:
                if self._due[resource] <= self._clock.monotonic():
                    await self._try(resource)
            await self._wait()

    async def sweep(self, resource: ResourceType) -> int:
        """List the resource type whole and reconcile the store with it; returns the number of ghosts dropped."""
        ghosts = await self._compare(resource)
        self._store.mark_synced(resource)
        if not self._store.unsynced():
            self.synced.set()
        self._swept(resource, ghosts)
        if ghosts:
            _logger.info("sweep of %s dropped %d objects whose deletion the watch had missed", resource, ghosts)
        return ghosts

    async def _compare(self, resource: ResourceType) -> int:
        """Page by page, so that a large list never lies in memory whole."""
        scopes: list[str | None] = [*sorted(self._namespaces)] or [None]
        for _ in range(3):
            sweep = self._store.begin_sweep(resource)
            try:
                for namespace in scopes:
                    async for page in self._kube.list(resource, namespace):
                        self._store.sweep_page(sweep, page.items)
            except Expired:
                continue  # the list took so long that its state is gone: begin again
            return self._store.end_sweep(sweep, self._namespaces)
        raise Transient("ListExpired", f"list {resource}: its continuation expired three times in a row")

    async def _try(self, resource: ResourceType) -> None:
        self._due[resource] = self._clock.monotonic() + self._period * self._rng.uniform(0.9, 1.1)
        try:
            await self.sweep(resource)
        except ReconcileError as error:
            self._due[resource] = self._clock.monotonic() + self._retry * self._rng.uniform(0.5, 1.0)
            _logger.warning("sweep of %s failed, will be repeated: %s", resource, error)

    async def _wait(self) -> None:
        self._wake.clear()
        if not self._due:
            await self._wake.wait()
        pause = max(0.0, min(self._due.values()) - self._clock.monotonic())
        woken = asyncio.ensure_future(self._wake.wait())
        alarm = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait({woken, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            alarm.cancel()
