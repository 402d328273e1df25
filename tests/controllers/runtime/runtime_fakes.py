"""In-memory stand-ins for tests of the pure parts: an API server that keeps objects and resourceVersions, and can be cut."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from controllers.runtime.errors import AlreadyExists, Conflict, Gone, Transient
from controllers.runtime.resources import Key, Object, ResourceType, key_of


class FakeServer:
    """The truth: objects with a resourceVersion that moves on each write."""

    def __init__(self) -> None:
        self.objects: dict[tuple[ResourceType, Key], dict[str, Any]] = {}
        self.writes: list[tuple[str, Key]] = []
        self._version = 0

    def put(self, resource: ResourceType, obj: Object) -> dict[str, Any]:
        """Store a copy under a new resourceVersion."""
        self._version += 1
        new = copy.deepcopy(dict(obj))
        new["metadata"]["resourceVersion"] = str(self._version)
        self.objects[(resource, key_of(obj))] = new
        return copy.deepcopy(new)


class FakeKube:
    """One client's way to the server. ``mode``: "up", "refused", "hangs", or "applied but answer lost"."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.mode = "up"
        self.released = asyncio.Event()

    async def get(self, resource: ResourceType, key: Key, *, subresource: str | None = None) -> Object | None:
        """The object or None."""
        await self._road()
        return copy.deepcopy(self.server.objects.get((resource, key)))

    async def create(self, resource: ResourceType, obj: Object, *, field_manager: str) -> Object:
        """POST."""
        await self._road()
        key = key_of(obj)
        if (resource, key) in self.server.objects:
            raise AlreadyExists("AlreadyExists", str(key))
        self.server.writes.append(("create", key))
        return self._answer(self.server.put(resource, obj))

    async def replace(self, resource: ResourceType, obj: Object, *, field_manager: str) -> Object:
        """PUT with a resourceVersion."""
        await self._road()
        key = key_of(obj)
        current = self.server.objects.get((resource, key))
        if current is None:
            raise Gone("NotFound", str(key))
        if current["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Conflict("Conflict", str(key))
        self.server.writes.append(("update", key))
        return self._answer(self.server.put(resource, obj))

    async def merge(
        self, resource: ResourceType, key: Key, patch: Object, *, field_manager: str, subresource: str | None = None
    ) -> Object:
        """Merge patch of top-level fields."""
        await self._road()
        current = self.server.objects.get((resource, key))
        if current is None:
            raise Gone("NotFound", str(key))
        self.server.writes.append(("patch", key))
        return self._answer(self.server.put(resource, {**current, **patch}))

    async def _road(self) -> None:
        if self.mode == "refused":
            raise Transient("ConnectFailed", "refused")
        if self.mode == "hangs":
            await self.released.wait()
            self.released.clear()

    def _answer(self, obj: Object) -> Object:
        if self.mode == "applied but answer lost":
            raise Transient("ConnectionLost", "cut while waiting")
        return obj
