"""Where a gateway's table comes from: a file, an HTTP address, or a GRRoutingTable watched through the Kubernetes API.

Every source goes on for ever: what cannot be read is told once per change of its reason, and the table in force stays. Only a
source's explicit word, a table without instances or a deleted object, empties a gateway.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from contract.errors import ProtocolViolation
from contract.keys import SLOTS
from contract.table import NOBODY, RoutingTable, pack_slots

MAX_TABLE_BYTES = 4 * 2**20
_WATCH_S = 240
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TABLES = "/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grroutingtables"
TOMBSTONE = RoutingTable(generation=0, instances=[], slots=pack_slots([NOBODY] * SLOTS))


class TableSource(Protocol):
    """Gives tables as they appear; never ends by itself."""

    def tables(self) -> AsyncIterator[RoutingTable]:
        """Tables, the newest as soon as it is seen; a table may come twice."""
        ...


def table_from(raw: bytes) -> RoutingTable:
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
        if isinstance(document, dict) and isinstance(document.get("status"), dict):
            document = document["status"]
        return msgspec.convert(document, RoutingTable)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"not a routing table: {error}") from error


@dataclass
class FileSource:
    """A file that is replaced as a whole (rename), looked at `period_s` apart."""

    path: Path
    on_problem: Callable[[str], None]
    period_s: float = 0.2

    async def tables(self) -> AsyncIterator[RoutingTable]:
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

    async def tables(self) -> AsyncIterator[RoutingTable]:
        """Tables of the address, one for each answer that differs from the one before."""
        last: bytes | None = None
        headers: dict[str, str] = {}
        async with httpx.AsyncClient(timeout=5.0) as client:
            while True:
                try:
                    answer = await client.get(self.url, headers=headers)
                    if answer.status_code != 304:
                        raw = answer.raise_for_status().content
                        headers = {"if-none-match": answer.headers["etag"]} if "etag" in answer.headers else {}
                        if raw != last:
                            last = raw
                            yield table_from(raw)
                except (httpx.HTTPError, ProtocolViolation) as error:
                    self.on_problem(f"{self.url}: {type(error).__name__} {error}")
                await asyncio.sleep(self.period_s * self.rng.uniform(0.8, 1.2))


@dataclass
class WatchSource:
    """A GRRoutingTable, listed and watched with the pod's own ServiceAccount; an object that is deleted gives a tombstone."""

    namespace: str
    name: str
    client: Callable[[], httpx.AsyncClient]
    on_problem: Callable[[str], None]
    rng: random.Random

    async def tables(self) -> AsyncIterator[RoutingTable]:
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

    async def _once(self, client: httpx.AsyncClient) -> AsyncIterator[RoutingTable]:
        path = _TABLES.format(namespace=self.namespace)
        chosen = {"fieldSelector": f"metadata.name={self.name}"}
        listing = (await client.get(path, params=chosen)).raise_for_status().json()
        for item in listing["items"]:
            if status := item.get("status"):
                yield _table_of(status)
        if not listing["items"]:
            yield TOMBSTONE
        watch = {**chosen, "watch": "true", "resourceVersion": listing["metadata"]["resourceVersion"]}
        watch["timeoutSeconds"] = str(_WATCH_S)
        async with client.stream("GET", path, params=watch, timeout=_WATCH_S + 30) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] == "DELETED":
                    yield TOMBSTONE
                elif event["type"] != "BOOKMARK" and (status := event["object"].get("status")):
                    yield _table_of(status)


def _table_of(status: Mapping[str, Any]) -> RoutingTable:
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


def source_of(address: str, *, on_problem: Callable[[str], None], rng: random.Random) -> TableSource:
    """Return the source behind `--table`: `kubernetes:NAMESPACE/NAME`, an http(s) URL, or a file.

    Raises
    ------
    ValueError
        When the address has none of these forms.
    """
    if address.startswith("kubernetes:"):
        namespace, _, name = address.removeprefix("kubernetes:").partition("/")
        if not namespace or not name:
            raise ValueError(f"{address}: use kubernetes:NAMESPACE/NAME")
        return WatchSource(namespace, name, in_cluster_client, on_problem, rng)
    if address.startswith(("http://", "https://")):
        return HttpSource(address, on_problem, rng)
    return FileSource(Path(address.removeprefix("file:")), on_problem)
