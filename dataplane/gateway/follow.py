"""Where a gateway's table comes from: a file, an HTTP address, or a GRRoutingTable watched through the Kubernetes API.

Every source goes on for ever: what cannot be read is told, and the table in force stays. Only a table without instances, the
tombstone of a deleted pool, empties a gateway; an object that is missing or deleted does not.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from contract.errors import ProtocolViolation
from contract.table import RoutingTable

MAX_TABLE_BYTES = 4 * 2**20
_WATCH_S = 240
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TABLES = "/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grroutingtables"


@dataclass(frozen=True)
class Published:
    """A table, and the uid of the object it stands in (empty where there is none)."""

    table: RoutingTable
    uid: str = ""


def _nothing() -> None:
    return None


class TableSource(Protocol):
    """Gives tables as they appear; never ends by itself."""

    def tables(self) -> AsyncIterator[Published]:
        """Tables, the newest as soon as it is seen; a table may come twice."""
        ...


def table_from(raw: bytes) -> Published:
    """Return the table in a document: a table itself, or a GRRoutingTable object that holds it in its status.

    Raises
    ------
    ProtocolViolation
        When it is neither, or too long.
    """
    if len(raw) > MAX_TABLE_BYTES:
        raise ProtocolViolation(f"a table of {len(raw)} bytes, {MAX_TABLE_BYTES} are allowed")
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"not a routing table: {error}") from error
    return _published(document) if isinstance(document, dict) and "status" in document else Published(_table_of(document))


def _published(item: Any) -> Published:
    try:
        return Published(_table_of(item["status"]), str(item["metadata"].get("uid", "")))
    except (KeyError, TypeError, AttributeError) as error:
        raise ProtocolViolation(f"not a GRRoutingTable: {error!r}") from error


@dataclass
class FileSource:
    """A file that is replaced as a whole (rename), looked at `period_s` apart."""

    path: Path
    on_problem: Callable[[str], None]
    period_s: float = 0.2
    on_heard: Callable[[], None] = _nothing

    async def tables(self) -> AsyncIterator[Published]:
        """Tables of the file, one for each change of its contents."""
        last: bytes | None = None
        problem = ""
        while True:
            try:
                raw = await asyncio.to_thread(self.path.read_bytes)
                if raw != last:
                    last = raw
                    yield table_from(raw)
                problem = ""
                self.on_heard()
            except (OSError, ProtocolViolation) as error:
                if str(error) != problem:
                    problem = str(error)
                    self.on_problem(f"{self.path}: {error}")
            await asyncio.sleep(self.period_s)


@dataclass
class HttpSource:
    """An address that answers GET with the table; asked with the last ETag."""

    url: str
    on_problem: Callable[[str], None]
    rng: random.Random
    period_s: float = 1.0
    on_heard: Callable[[], None] = _nothing

    async def tables(self) -> AsyncIterator[Published]:
        """Tables of the address, one for each answer that differs from the one before."""
        last: bytes | None = None
        headers: dict[str, str] = {}
        async with httpx.AsyncClient(timeout=5.0) as client:
            while True:
                try:
                    status, etag, raw = await self._get(client, headers)
                    if status != 304 and raw != last:
                        last = raw
                        headers = {"if-none-match": etag} if etag else {}
                        yield table_from(raw)
                    self.on_heard()
                except (httpx.HTTPError, ProtocolViolation) as error:
                    self.on_problem(f"{self.url}: {type(error).__name__} {error}")
                await asyncio.sleep(self.period_s * self.rng.uniform(0.8, 1.2))

    async def _get(self, client: httpx.AsyncClient, headers: dict[str, str]) -> tuple[int, str, bytes]:
        async with client.stream("GET", self.url, headers=headers) as answer:
            if answer.status_code != 304:
                answer.raise_for_status()
            raw = bytearray()
            async for chunk in answer.aiter_bytes():
                raw += chunk
                if len(raw) > MAX_TABLE_BYTES:
                    raise ProtocolViolation(f"a table of more than {MAX_TABLE_BYTES} bytes")
            return answer.status_code, str(answer.headers.get("etag", "")), bytes(raw)


@dataclass
class WatchSource:
    """A GRRoutingTable, listed and watched with the pod's own ServiceAccount."""

    namespace: str
    name: str
    client: Callable[[], httpx.AsyncClient]
    on_problem: Callable[[str], None]
    rng: random.Random
    on_heard: Callable[[], None] = _nothing

    async def tables(self) -> AsyncIterator[Published]:
        """Tables of the object, in the order of its versions."""
        pause_s = 0.2
        while True:
            try:
                async with self.client() as client:  # a new one each time: the token of a pod is renewed in its file
                    async for table in self._once(client):
                        pause_s = 0.2
                        yield table
            except (httpx.HTTPError, OSError, ValueError, KeyError, ProtocolViolation) as error:
                self.on_problem(f"routing table {self.namespace}/{self.name}: {type(error).__name__} {str(error)[:200]}")
            await asyncio.sleep(self.rng.uniform(0.5, 1.0) * pause_s)
            pause_s = min(5.0, pause_s * 2)

    async def _once(self, client: httpx.AsyncClient) -> AsyncIterator[Published]:
        path = _TABLES.format(namespace=self.namespace)
        chosen = {"fieldSelector": f"metadata.name={self.name}"}
        listing = (await client.get(path, params=chosen)).raise_for_status().json()
        self.on_heard()
        for item in listing["items"]:
            if item.get("status"):
                yield _published(item)
        watch = {
            **chosen,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": listing["metadata"]["resourceVersion"],
        }
        watch["timeoutSeconds"] = str(_WATCH_S)
        async with client.stream("GET", path, params=watch, timeout=_WATCH_S + 30) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                self.on_heard()
                if event["type"] in ("ADDED", "MODIFIED") and event["object"].get("status"):
                    yield _published(event["object"])


def _table_of(status: object) -> RoutingTable:
    try:
        return msgspec.convert(status, RoutingTable)
    except msgspec.ValidationError as error:
        raise ProtocolViolation(f"not a routing table: {error}") from error


def in_cluster_client() -> httpx.AsyncClient:
    """Client of the API server as a pod sees it.

    Raises
    ------
    OSError
        When this is no pod, or it has no ServiceAccount token.
    """
    token = (_ACCOUNT / "token").read_text().strip()
    return httpx.AsyncClient(
        base_url="https://kubernetes.default.svc",
        headers={"authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt")),
        timeout=10.0,
    )


def source_of(
    address: str, *, on_problem: Callable[[str], None], rng: random.Random, on_heard: Callable[[], None] = _nothing
) -> TableSource:
    """Return the source behind `--table`: `kubernetes:NAMESPACE/NAME`, an http(s) URL, or a file.

    Parameters
    ----------
    on_problem, on_heard
        Told what went wrong, and at each answer that could be used, whether or not it brought a table.

    Raises
    ------
    ValueError
        When the address has none of these forms.
    """
    if address.startswith("kubernetes:"):
        namespace, _, name = address.removeprefix("kubernetes:").partition("/")
        if not namespace or not name:
            raise ValueError(f"{address}: use kubernetes:NAMESPACE/NAME")
        return WatchSource(namespace, name, in_cluster_client, on_problem, rng, on_heard)
    if address.startswith(("http://", "https://")):
        return HttpSource(address, on_problem, rng, on_heard=on_heard)
    return FileSource(Path(address.removeprefix("file:")), on_problem, on_heard=on_heard)
