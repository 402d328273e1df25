"""Proof that the watches are alive: when did each last bring bytes from the API server?

The watch library retries for ever and looks healthy while a kind is forbidden or its stream is dead. So every answer
it gets passes through here: a successful one counts as a read, and an open stream counts whenever its byte counter
has grown, which the API server's bookmarks make it do about once a minute. A list is how the library recovers when it
has lost its place, so each list is passed on to whoever looks for deletions that got lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import aiohttp

from controllers.runtime.clock import Clock
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import ResourceType

Handler = Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]


@dataclass(slots=True)
class _Stream:
    """One URL path (a resource in a namespace or everywhere), its latest answer, and when it last gave bytes."""

    resource: ResourceType
    read_at: float
    answer: aiohttp.ClientResponse | None = None
    bytes_seen: int = 0


class WatchMonitor:
    """Ages of the watches.

    Parameters
    ----------
    namespaces
        Those that are watched; empty means one cluster-wide watch a resource.
    limit_seconds
        A watch without bytes for longer is dead, if the API server answers other requests meanwhile.
    listed
        Called when the first page of a list has come in, which fixes the state of the whole list: at the start of the
        watch library, and again whenever it lost its place.
    outage_seconds
        If it answers nobody, starting again would not help at first; after this time it is tried all the same.
    """

    def __init__(
        self,
        resources: Iterable[ResourceType],
        *,
        namespaces: Iterable[str],
        clock: Clock,
        metrics: Metrics,
        listed: Callable[[ResourceType], None] = lambda resource: None,
        limit_seconds: float = 200.0,
        outage_seconds: float = 900.0,
    ) -> None:
        self._clock = clock
        self._listed = listed
        self._limit = limit_seconds
        self._outage = outage_seconds
        self._requests = metrics.watch_requests
        self._answered_at = clock.monotonic()
        scopes: list[str | None] = [*namespaces] or [None]
        self._streams: dict[str, _Stream] = {
            resource.path(scope): _Stream(resource, clock.monotonic()) for resource in resources for scope in scopes
        }
        for resource in {stream.resource for stream in self._streams.values()}:
            metrics.watch_age.labels(str(resource)).set_function(partial(self.age_seconds, resource))

    async def middleware(self, request: aiohttp.ClientRequest, handler: Handler) -> aiohttp.ClientResponse:
        """Goes into the watch library's HTTP session."""
        stream = self._streams.get(request.url.path)
        name = str(stream.resource) if stream else "other"
        try:
            answer = await handler(request)
        except Exception:
            self._requests.labels(name, "error").inc()
            raise
        self._requests.labels(name, str(answer.status)).inc()
        if answer.status < 400:
            self.answered()
            if stream is not None:
                stream.read_at = self._clock.monotonic()
                stream.answer, stream.bytes_seen = answer, 0
                if not {"watch", "continue"} & set(request.url.query):
                    self._listed(stream.resource)
        return answer

    def answered(self) -> None:
        """Somebody in this process got an answer from the API server."""
        self._answered_at = self._clock.monotonic()

    def age_seconds(self, resource: ResourceType) -> float:
        """Time since the oldest of the resource's watches last brought bytes."""
        now = self._clock.monotonic()
        for stream in self._streams.values():
            self._look(stream, now)
        return max((now - stream.read_at for stream in self._streams.values() if stream.resource == resource), default=0.0)

    def problems(self) -> Iterator[str]:
        """Why the process should be started again; empty if it is fine."""
        now = self._clock.monotonic()
        silent = now - self._answered_at
        limit = self._limit if silent < self._limit else self._outage
        for resource in sorted({stream.resource for stream in self._streams.values()}, key=str):
            if (age := self.age_seconds(resource)) > limit:
                yield f"the watch of {resource} has brought nothing for {age:.0f} s"

    def _look(self, stream: _Stream, now: float) -> None:
        received = stream.answer.content.total_bytes if stream.answer is not None else 0
        if received > stream.bytes_seen:
            stream.bytes_seen = received
            stream.read_at = now
