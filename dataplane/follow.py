"""The published table as gateways and pickers follow it: each new one from a file, an HTTP address, or the Kubernetes API.

It goes on for ever: what cannot be read is told, and the table in force stays. Only a table without instances, the tombstone of a
deleted pool, empties a gateway; an object that is missing or deleted does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import httpx

from contract.errors import ProtocolViolation
from contract.table import RoutingTable
from contract.table_sources.kubernetes_api import KubernetesSource, in_cluster
from contract.table_sources.locate import named_table
from contract.table_sources.sources import FileSource, HttpSource, Sleep, Source, sighting_in
from contract.table_sources.unbroken import unbroken

FILE_PERIOD_S = 0.2
LONGEST_PAUSE_S, LONGEST_PAUSE_OF_API_S = 1.0, 5.0


@dataclass(frozen=True)
class Published:
    """A table, and the uid of the object it stands in (empty where there is none)."""

    table: RoutingTable
    uid: str = ""


class TableSource(Protocol):
    """Gives tables as they appear; never ends by itself."""

    def tables(self) -> AsyncIterator[Published]:
        """Tables, the newest as soon as it is seen; a table may come twice."""
        ...


def _nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Tables of one source.

    Attributes
    ----------
    open_source
        Opens it; each who asks for tables has one of his own, from the beginning.
    on_problem, on_heard
        Told what went wrong, once until it is over, and at each answer that could be used, whether or not it brought a table.
    longest_pause_s
        Between two tries at a source that fails.
    """

    open_source: Callable[[], Source]
    on_problem: Callable[[str], None]
    rng: random.Random
    on_heard: Callable[[], None] = _nothing
    longest_pause_s: float = LONGEST_PAUSE_S
    sleep: Sleep = asyncio.sleep

    async def tables(self) -> AsyncGenerator[Published, None]:
        """Tables of the source, each that differs from the one before."""
        last: Published | None = None
        told = ""
        async with contextlib.aclosing(self.open_source()) as source:
            following = unbroken(source, rng=self.rng, longest_pause_s=self.longest_pause_s, sleep=self.sleep)
            async with contextlib.aclosing(following) as sightings:
                async for sighting in sightings:
                    if not sighting.problem:
                        self.on_heard()
                    elif sighting.problem != told:
                        self.on_problem(f"{source.label}: {sighting.problem}")
                    told = sighting.problem
                    if sighting.table is None:
                        continue
                    published = Published(sighting.table, sighting.incarnation)
                    if published != last:
                        last = published
                        yield published


def table_from(raw: bytes) -> Published:
    """Return the table in a document: a table itself, or a GRRoutingTable object that holds it in its status.

    Raises
    ------
    ProtocolViolation
        When it is neither.
    """
    sighting = sighting_in(raw)
    if sighting.table is None:
        raise ProtocolViolation(sighting.problem or "the document holds no routing table")
    return Published(sighting.table, sighting.incarnation)


def source_of(
    address: str,
    *,
    on_problem: Callable[[str], None],
    rng: random.Random,
    on_heard: Callable[[], None] = _nothing,
) -> Feed:
    """Return the source behind `--table`: `kubernetes:NAMESPACE/NAME`, an http(s) URL, or a file.

    Parameters
    ----------
    on_problem, on_heard
        As of `Feed`.

    Raises
    ------
    ValueError
        When the name of a table is not whole.
    OSError
        When a table of the Kubernetes API is asked for outside a pod, or in one without a ServiceAccount.
    """
    table = named_table(address)
    if table is not None:
        api = in_cluster(host="kubernetes.default.svc", port="443")
        return Feed(
            open_source=lambda: KubernetesSource(api, namespace=table[0], name=table[1], rng=rng),
            on_problem=on_problem,
            on_heard=on_heard,
            rng=rng,
            longest_pause_s=LONGEST_PAUSE_OF_API_S,
        )
    if address.startswith(("http://", "https://")):
        return Feed(
            open_source=lambda: HttpSource(httpx.AsyncClient(timeout=5.0), address, owned=True, rng=rng),
            on_problem=on_problem,
            on_heard=on_heard,
            rng=rng,
        )
    path = address.removeprefix("file:")
    return Feed(
        open_source=lambda: FileSource(path, poll_seconds=FILE_PERIOD_S), on_problem=on_problem, on_heard=on_heard, rng=rng
    )
