"""Servers of a gateway: rows of the routing table with an id that every replica computes alike.

The id is a hash of (name, uid), so replicas that exchange their tables mean the same instance by the same number, and a
successor of the same name never inherits its predecessor's entries. Names and addresses come over a wire: they are checked
here, and a row that HAProxy could not hold is left out and counted rather than stopping the others.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import xxhash

from contract.table import InstanceState, TableInstance

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_IDS = 2**31 - 1
_SERVING = (InstanceState.READY, InstanceState.WARMING)


@dataclass(frozen=True, kw_only=True)
class Server:
    """One instance as HAProxy holds it.

    Attributes
    ----------
    id
        1 to 2^31 - 1, the same on every replica.
    address
        `a.b.c.d:port` or `[v6]:port`.
    weight_percent
        0 to 100; only the last resort, HAProxy's own hash, looks at it.
    draining_only
        Takes no new users; a caller that echoes its choice still reaches it.
    """

    id: int
    name: str
    uid: str
    address: str
    weight_percent: int
    draining_only: bool = False

    @property
    def label(self) -> str:
        """Name of the server inside HAProxy."""
        return f"s{self.id}"


@dataclass(frozen=True)
class Refused:
    """A row that was left out, and why."""

    name: str
    reason: str


def server_id(name: str, uid: str) -> int:
    """Return the id of an instance."""
    return 1 + xxhash.xxh64_intdigest(f"{name}\n{uid}".encode()) % _IDS


def servers_of(rows: Iterable[TableInstance]) -> tuple[dict[int, int], tuple[Server, ...], tuple[Refused, ...]]:
    """Return the server id of each usable row (by its index in the table), the servers by id, and the rows left out."""
    ids: dict[int, int] = {}
    servers: dict[int, Server] = {}
    refused: list[Refused] = []
    for index, row in enumerate(rows):
        try:
            server = _server(row)
        except ValueError as error:
            refused.append(Refused(row.name[:80], str(error)))
            continue
        if server.id in servers:
            refused.append(Refused(row.name[:80], "twice in the table, or its id is another instance's"))
            continue
        ids[index] = server.id
        servers[server.id] = server
    return ids, tuple(servers[key] for key in sorted(servers)), tuple(refused)


def _server(row: TableInstance) -> Server:
    if _NAME.fullmatch(row.name) is None:
        raise ValueError("its name has characters that no HAProxy map holds")
    return Server(
        id=server_id(row.name, row.uid),
        name=row.name,
        uid=row.uid,
        address=_address(row.address),
        weight_percent=row.weight_percent,
        draining_only=row.state not in _SERVING,
    )


def _address(url: str) -> str:
    """`host:port` of an address or plain HTTP URL; the host is an IP address, as HAProxy adds no server by name."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    if parts.scheme not in ("", "http"):
        raise ValueError(f"its address speaks {parts.scheme[:10]}, the gateway speaks http to instances")
    if parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise ValueError("its address has more than a host and a port")
    port = parts.port if parts.port is not None else 80
    host = ipaddress.ip_address(parts.hostname or "")
    if port == 0:
        raise ValueError("its address has port 0")
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"
