"""What a control loop looks like to the runtime, and what the runtime offers to a loop.

A loop says which resources it watches, which of its keys an event concerns, and how to reconcile one key. The runtime
calls ``reconcile`` only in the leader, only after the store is complete, and never twice at once for the same key.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from controllers.runtime.clock import Clock
from controllers.runtime.controller import Result
from controllers.runtime.events import EventRecorder
from controllers.runtime.kube import KubeApi
from controllers.runtime.leader import Fence
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import Key, ResourceType
from controllers.runtime.settings import Settings
from controllers.runtime.store import Store, WatchEvent


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a loop may touch. ``kube`` passes the fence before each write by itself.

    Attributes
    ----------
    http
        One session for all agents and engines: pooled connections, one TLS context. Loops that talk to agents build their
        clients on it, set their timeouts and bound their own concurrency.
    rng
        The source of all jitter.
    """

    settings: Settings
    store: Store
    kube: KubeApi
    events: EventRecorder
    clock: Clock
    fence: Fence
    metrics: Metrics
    http: aiohttp.ClientSession
    rng: random.Random


class Loop(Protocol):
    """One control loop.

    Attributes
    ----------
    name
        Name of the controller in logs and metrics, e.g. ``pool``.
    keyed_by
        The resource whose keys the loop's queue holds, usually POOLS or INSTANCES.
    watches
        Resources whose events it wants; ``keyed_by`` must be among them.
    """

    @property
    def name(self) -> str: ...

    @property
    def keyed_by(self) -> ResourceType: ...

    @property
    def watches(self) -> tuple[ResourceType, ...]: ...

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """Keys to look at because of the event. Called in the event loop: no IO. May name keys that do not exist."""

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Bring the world one step closer to what ``key`` asks for; raises Transient, Conflict or Terminal."""

    async def start(self, ctx: Context) -> None:
        """Called each time this process becomes the leader, before the first reconcile."""
