"""Kubernetes Events, few and deduplicated: the same thing said again only raises a count.

An Event's name is a hash of what it says about which object, so that repeats, restarts and other replicas meet the
same Event. Posting never fails a reconcile: messages wait in a bounded queue and are dropped, counted, when it is full.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from controllers.runtime.clock import Clock
from controllers.runtime.errors import AlreadyExists, Gone, ReconcileError
from controllers.runtime.kube import KubeApi
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import EVENTS, Key, Object, identity, key_of, uid_of

_logger = logging.getLogger(__name__)
_MANAGER = "grfleet-events"
_NOTE, _REMEMBERED, _WAITING = 1024, 4096, 512

EventLevel = Literal["Normal", "Warning"]


@dataclass(slots=True)
class _Said:
    count: int
    posted_at: float


@dataclass(frozen=True, slots=True)
class _Message:
    regarding: Object
    level: EventLevel
    reason: str
    note: str
    action: str
    controller: str

    @property
    def name(self) -> str:
        text = "\0".join((uid_of(self.regarding), self.controller, self.level, self.reason, self.note))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{key_of(self.regarding).name[:200].rstrip('-.')}.{digest}"  # what ends in these two is no part of a name


class EventRecorder:
    """Posts Events in events.k8s.io/v1.

    Parameters
    ----------
    instance
        Identity of this process, shown as reportingInstance.
    quiet_seconds
        The count of a repeated Event is written at most once in this time.
    """

    def __init__(self, kube: KubeApi, *, clock: Clock, metrics: Metrics, instance: str, quiet_seconds: float = 60.0) -> None:
        self._kube = kube
        self._clock = clock
        self._instance = instance[:128]
        self._quiet = quiet_seconds
        self._said: OrderedDict[Key, _Said] = OrderedDict()
        self._waiting: asyncio.Queue[_Message] = asyncio.Queue(_WAITING)
        self._outcomes = metrics.events_posted

    def emit(self, regarding: Object, level: EventLevel, reason: str, note: str, *, action: str, controller: str) -> None:
        """Say something about an object; call it on transitions, not in every reconcile.

        Parameters
        ----------
        regarding
            The object, with apiVersion, kind and metadata.
        reason, action
            CamelCase words: why, and what was done or tried.
        note
            A sentence for people; cut after 1024 bytes, as which the API server counts it.
        """
        message = _Message(
            regarding, level, reason[:128], note.encode()[:_NOTE].decode(errors="ignore"), action[:128], controller
        )
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            self._outcomes.labels("dropped").inc()

    async def run(self) -> None:
        """Post what waits, for ever."""
        while True:
            message = await self._waiting.get()
            try:
                outcome = await self._post(message)
            except ReconcileError as error:
                outcome = "failed"
                _logger.warning("an Event was not posted: %s", error)
            self._outcomes.labels(outcome).inc()

    async def flush(self) -> None:
        """Post what waits now; for tests and for the end of the process."""
        while not self._waiting.empty():
            self._outcomes.labels(await self._post(self._waiting.get_nowait())).inc()

    async def _post(self, message: _Message) -> str:
        key = Key(key_of(message.regarding).namespace or "default", message.name)
        said = self._said.get(key)
        if said is None:
            return await self._create(key, message)
        said.count += 1
        if self._clock.monotonic() - said.posted_at < self._quiet:
            return "counted"
        return await self._raise_count(key, message, said)

    async def _create(self, key: Key, message: _Message) -> str:
        try:
            await self._kube.create(EVENTS, self._event(key, message), field_manager=_MANAGER)
        except AlreadyExists:
            return await self._raise_count(key, message, self._remember(key, 2))
        self._remember(key, 1)
        return "created"

    async def _raise_count(self, key: Key, message: _Message, said: _Said) -> str:
        series = {"count": max(2, said.count), "lastObservedTime": self._time()}
        try:
            await self._kube.merge(EVENTS, key, {"series": series}, field_manager=_MANAGER)
        except Gone:  # the API server forgets Events after an hour
            self._said.pop(key, None)
            return await self._create(key, message)
        said.posted_at = self._clock.monotonic()
        return "repeated"

    def _remember(self, key: Key, count: int) -> _Said:
        said = self._said[key] = _Said(count, self._clock.monotonic())
        while len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        return said

    def _event(self, key: Key, message: _Message) -> dict[str, Any]:
        about, metadata = message.regarding, message.regarding["metadata"]
        return {
            **identity(EVENTS, key),
            "eventTime": self._time(),
            "type": message.level,
            "reason": message.reason,
            "action": message.action,
            "note": message.note,
            "reportingController": f"grfleet.dev/{message.controller}",
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                **{name: metadata[name] for name in ("namespace", "uid", "resourceVersion") if metadata.get(name)},
            },
        }

    def _time(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
