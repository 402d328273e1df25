"""The table by watch from the Kubernetes API: list, then watch from that version; resume while the stream ends cleanly.

The event stream alone is not trusted. After every interruption, after `410 Gone`, and every ten minutes anyway, the object is
listed anew. That a table is not there is no word about its instances: the one in use stays. A router is emptied by a published
tombstone, or when the pool is not there either.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from pathlib import Path

import httpx
import msgspec

from contract.answers import MAX_ANSWER_BYTES, decode, read_bounded
from contract.clock import Clock, monotonic_ms
from contract.errors import ProtocolViolation
from contract.table_sources.absence import CONFIRM_SECONDS, Absence
from contract.table_sources.sources import ANSWER_SECONDS, Metadata, Published, Sighting, sighting_of

TABLE_PATH = "/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grroutingtables"
WATCH_SECONDS = 240
RELIST_MS = 600_000.0
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
GONE = 410


class _List(msgspec.Struct, frozen=True):
    metadata: Metadata
    items: list[Published] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    code: int = 0


class VersionExpired(Exception):
    """The API server ended the watch with an error, mostly 410: it no longer knows the version. The next look is a list."""


class KubernetesSource:
    """Follows one GRRoutingTable.

    Parameters
    ----------
    api : httpx.AsyncClient
        Base URL, CA and credentials of the API server; may list and watch grroutingtables, and get grservingpools if it is to be
        noticed that a pool was deleted while no operator ran. Closed with the source if `owned`.
    """

    def __init__(
        self,
        api: httpx.AsyncClient,
        *,
        namespace: str,
        name: str,
        owned: bool = False,
        rng: random.Random | None = None,
        clock: Clock = monotonic_ms,
    ) -> None:
        self._api, self._namespace, self._name, self._owned = api, namespace, name, owned
        self._rng, self._clock = rng or random.Random(), clock
        self._path = TABLE_PATH.format(namespace=namespace)
        self._version = ""
        self._listed_ms = 0.0
        self._absence = Absence(api, namespace=namespace, clock=clock)

    @property
    def label(self) -> str:
        return f"routing table {self._namespace}/{self._name}"

    async def sightings(self) -> AsyncGenerator[Sighting, None]:
        if not self._version or self._clock() - self._listed_ms > RELIST_MS:
            for sighting in await self._list():
                yield sighting
        version, self._version = self._version, ""  # only a clean end brings it back
        pending = self._absence.pending
        async for event in self._watch(version, seconds=CONFIRM_SECONDS if pending else WATCH_SECONDS):
            if event.type == "ERROR":
                raise VersionExpired(decode(bytes(event.object), _Status).code)
            published = decode(bytes(event.object), Published)
            version = published.metadata.resource_version or version
            if event.type == "DELETED" and self._is_mine(published):
                yield await self._absence.look("the object was deleted")
                if self._absence.pending:
                    return
            elif event.type in ("ADDED", "MODIFIED") and self._is_mine(published):
                yield self._seen(published)
            else:
                yield Sighting()
        self._version = "" if pending else version

    def _seen(self, published: Published) -> Sighting:
        sighting = sighting_of(published)
        if sighting.table is not None:
            self._absence.over(published, sighting.table)
        return sighting

    def _is_mine(self, published: Published) -> bool:
        """Whether it is the table asked for, whatever a server made of the selector."""
        at = published.metadata
        return at.name == self._name and at.namespace in ("", self._namespace)

    async def _list(self) -> list[Sighting]:
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            self._api.stream("GET", self._path, params={"fieldSelector": f"metadata.name={self._name}"}) as response,
        ):
            response.raise_for_status()
            body = await read_bounded(response.aiter_bytes(), call="list", limit_bytes=MAX_ANSWER_BYTES)
        listing = decode(body, _List)
        if not listing.metadata.resource_version:
            raise ProtocolViolation("list: no resourceVersion")
        self._version, self._listed_ms = listing.metadata.resource_version, self._clock() - self._rng.uniform(0.0, RELIST_MS / 4)
        seen = [self._seen(each) for each in listing.items or [] if self._is_mine(each)]
        return seen or [await self._absence.look("there is no such object")]

    async def _watch(self, version: str, *, seconds: int) -> AsyncIterator[_Event]:
        seconds = round(seconds * self._rng.uniform(0.75, 1.0))
        params = {
            "fieldSelector": f"metadata.name={self._name}",
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        timeout = httpx.Timeout(ANSWER_SECONDS, read=seconds + 30.0)
        async with self._api.stream("GET", self._path, params=params, timeout=timeout) as response:
            if response.status_code == GONE:
                raise VersionExpired(GONE)
            response.raise_for_status()
            async for line in _bounded_lines(response):
                yield decode(line, _Event)

    async def aclose(self) -> None:
        if self._owned:
            await self._api.aclose()


async def _bounded_lines(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > MAX_ANSWER_BYTES:
            raise ProtocolViolation(f"watch: an event larger than {MAX_ANSWER_BYTES} bytes")
    if rest.strip():
        yield rest  # half an event, mostly: where it cannot be decoded, the end was no clean one


class ServiceAccountAuth(httpx.Auth):
    """The token of a pod, read anew for each request: the kubelet renews it, and one that is kept stops working after an hour."""

    def __init__(self, token_file: Path) -> None:
        self._file = token_file

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["authorization"] = f"Bearer {self._file.read_text().strip()}"
        yield request


def in_cluster(*, host: str, port: str, directory: Path = SERVICE_ACCOUNT) -> httpx.AsyncClient:
    """Return a client of the API server for a pod.

    Parameters
    ----------
    host, port : str
        `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT` of the environment.

    Raises
    ------
    OSError
        When the pod has no ServiceAccount mounted.
    """
    shown = f"[{host}]" if ":" in host else host
    authorities = directory / "ca.crt"
    if not authorities.exists():  # the library of TLS would not say which file it misses
        raise FileNotFoundError(f"there is no {authorities}: no pod with a ServiceAccount; elsewhere give the URL of the table")
    return httpx.AsyncClient(
        base_url=f"https://{shown}:{port}",
        verify=ssl.create_default_context(cafile=str(authorities)),
        auth=ServiceAccountAuth(directory / "token"),
        trust_env=False,
        timeout=httpx.Timeout(10.0),
    )
