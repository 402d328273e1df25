"""Where tables come from: the port that the followers read, and the two sources that need no Kubernetes, HTTP and a file.

A source is asked for sightings until it ends or raises; then it is asked again, after a pause. It may keep what lets it resume.
Everything that it reads is hostile until decoded: bounded in size, and typed or refused.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import httpx
import msgspec

from contract.answers import MAX_ANSWER_BYTES, decode, read_bounded
from contract.errors import ProtocolViolation
from contract.table import RoutingTable

Sleep = Callable[[float], Awaitable[object]]
POLL_SECONDS = 1.0
ANSWER_SECONDS = 30.0


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What a source saw: a table, or that there is nothing new (None), or something that is no table (`problem`)."""

    table: RoutingTable | None = None
    incarnation: str = ""
    problem: str = ""


class Source(Protocol):
    """A way to the published table."""

    @property
    def label(self) -> str:
        """What to call it in a message; no credentials."""

    def sightings(self) -> AsyncGenerator[Sighting, None]:
        """Yield what is seen from now on; raise what interrupts it. The end is an invitation to ask again at once."""

    async def aclose(self) -> None:
        """Give up what it holds."""


class Owner(msgspec.Struct, frozen=True):
    """Whom an object is deleted with."""

    kind: str = ""
    name: str = ""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of a published object, what a follower looks at."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: list[Owner] | None = None


class Published(msgspec.Struct, frozen=True):
    """A GRRoutingTable object whose status was not looked into yet."""

    metadata: Metadata = Metadata()
    status: msgspec.Raw = msgspec.Raw(b"{}")


class _Head(msgspec.Struct, frozen=True):
    generation: int | None = None


def sighting_of(published: Published) -> Sighting:
    """Return the table of an object; nothing new while its status has none yet."""
    try:
        if decode(bytes(published.status), _Head).generation is None:
            return Sighting()
        return Sighting(table=decode(bytes(published.status), RoutingTable), incarnation=published.metadata.uid)
    except ProtocolViolation as error:
        return Sighting(problem=f"routing table refused: {error}")


def sighting_in(body: bytes) -> Sighting:
    """Return the table in a document: a GRRoutingTable object, or the bare table."""
    try:
        published = decode(body, Published)
    except ProtocolViolation as error:
        return Sighting(problem=f"routing table refused: {error}")
    return sighting_of(published if bytes(published.status) != b"{}" else Published(status=msgspec.Raw(body)))


class HttpSource:
    """Polls a URL that answers a table as JSON; by `If-None-Match` where the server gives an ETag.

    Parameters
    ----------
    http : httpx.AsyncClient
        Closed with the source if `owned`.
    url : str
        Absolute, or relative to the client's base URL; without credentials.
    poll_seconds : float
        Mean pause between polls; each is spread by a quarter.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        *,
        poll_seconds: float = POLL_SECONDS,
        owned: bool = False,
        rng: random.Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._http, self._url, self._owned = http, url, owned
        self._poll_s, self._rng, self._sleep = poll_seconds, rng or random.Random(), sleep
        self._etag = ""

    @property
    def label(self) -> str:
        return f"routing table at {httpx.URL(self._url).copy_with(userinfo=b'', query=None)}"

    async def sightings(self) -> AsyncGenerator[Sighting, None]:
        while True:
            yield await self._look()
            await self._sleep(self._poll_s * self._rng.uniform(0.75, 1.25))

    async def _look(self) -> Sighting:
        headers = {"if-none-match": self._etag} if self._etag else {}
        async with asyncio.timeout(ANSWER_SECONDS), self._http.stream("GET", self._url, headers=headers) as response:
            if response.status_code == httpx.codes.NOT_MODIFIED and self._etag:
                return Sighting()
            response.raise_for_status()
            body = await read_bounded(response.aiter_bytes(), call="GET table", limit_bytes=MAX_ANSWER_BYTES)
        sighting = sighting_in(body)
        self._etag = response.headers.get("etag", "") if sighting.table is not None else ""
        return sighting

    async def aclose(self) -> None:
        if self._owned:
            await self._http.aclose()


class FileSource:
    """Reads a file whenever it changed (written beside and renamed, or in place: half a table is refused and read again)."""

    def __init__(self, path: str | Path, *, poll_seconds: float = POLL_SECONDS, sleep: Sleep = asyncio.sleep) -> None:
        self._path, self._poll_s, self._sleep = Path(path), poll_seconds, sleep
        self._seen: tuple[int, int, int] | None = None

    @property
    def label(self) -> str:
        return f"routing table in {self._path}"

    async def sightings(self) -> AsyncGenerator[Sighting, None]:
        while True:
            yield await asyncio.to_thread(self._look)
            await self._sleep(self._poll_s)

    def _look(self) -> Sighting:
        with self._path.open("rb") as file:
            stat = os.fstat(file.fileno())
            now = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if now == self._seen:
                return Sighting()
            body = file.read(MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            return Sighting(problem=f"routing table refused: larger than {MAX_ANSWER_BYTES} bytes")
        self._seen = now
        return sighting_in(body)

    async def aclose(self) -> None:
        """Nothing is held between two looks."""
