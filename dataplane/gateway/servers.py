"""Servers of a gateway: rows of the routing table with an id that every replica computes alike.

The id is a hash of (name, uid), so replicas that exchange their tables mean the same instance by the same number, and a
successor of the same name never inherits its predecessor's entries. Names and addresses come over a wire: they are checked
here, and a row that HAProxy could not hold is left out and counted rather than stopping the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import xxhash

from contract.table import InstanceState, TableInstance
from dataplane.addresses import ip_of, is_ip

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*\.?")
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
    tls
        Speaks TLS; `host` is then the name in its certificate, empty when it is known by its address alone.
    """

    id: int
    name: str
    uid: str
    address: str
    weight_percent: int
    draining_only: bool = False
    tls: bool = False
    host: str = ""

    @property
    def weight(self) -> int:
        """Weight inside HAProxy, 0 to 20: its hash holds 16 points for each, and a thousand servers of 100 cost two seconds."""
        return -(-self.weight_percent // 5)

    @property
    def label(self) -> str:
        """Name of the server inside HAProxy."""
        return f"s{self.id}"


@dataclass(frozen=True)
class Refused:
    """A row that was left out, and why."""

    name: str
    reason: str


def server_id(name: str, uid: str, *, how: str = "") -> int:
    """Return the id of an instance; `how` it is spoken to, when not in plain HTTP, makes it another server."""
    return 1 + xxhash.xxh64_intdigest(f"{name}\n{uid}{how}".encode()) % _IDS


def servers_of(
    rows: Iterable[TableInstance], *, addresses: Mapping[str, str] | None = None, tls: bool = False
) -> tuple[dict[int, int], tuple[Server, ...], tuple[Refused, ...]]:
    """Return the server id of each usable row (by its index in the table), the servers by id, and the rows left out.

    Parameters
    ----------
    addresses
        IP address of each host name that is known.
    tls
        Whether instances may speak TLS.
    """
    ids: dict[int, int] = {}
    servers: dict[int, Server] = {}
    refused: list[Refused] = []
    for index, row in enumerate(rows):
        try:
            server = _server(row, addresses or {}, tls=tls)
        except ValueError as error:
            refused.append(Refused(row.name[:80], str(error)))
            continue
        if server.id in servers:
            refused.append(Refused(row.name[:80], "twice in the table, or its id is another instance's"))
            continue
        ids[index] = server.id
        servers[server.id] = server
    return ids, tuple(servers[key] for key in sorted(servers)), tuple(refused)


def hosts_of(rows: Iterable[TableInstance]) -> frozenset[str]:
    """Return the host names in the addresses of rows that are no IP addresses."""
    found = set()
    for row in rows:
        try:
            host = _parts(row.address).hostname or ""
        except ValueError:
            continue
        if _HOST.fullmatch(host) is not None and not is_ip(host):
            found.add(host)
    return frozenset(found)


def _server(row: TableInstance, addresses: Mapping[str, str], *, tls: bool) -> Server:
    if _NAME.fullmatch(row.name) is None:
        raise ValueError("its name has characters that no HAProxy map holds")
    parts = _parts(row.address)
    secure = parts.scheme == "https"
    if secure and not tls:
        raise ValueError("its address speaks https, and no authority to verify it by was given")
    port = parts.port if parts.port is not None else 443 if secure else 80
    if port == 0:
        raise ValueError("its address has port 0")
    host = parts.hostname or ""
    named = not is_ip(host)
    if named and _HOST.fullmatch(host) is None:
        raise ValueError(f"its host {host[:80]!r} is no name of a host: letters, digits, dashes and dots")
    if named and host not in addresses:
        raise ValueError(f"its host {host[:80]!r} has no address, or none that is known yet")
    ip = ip_of(addresses[host] if named else host)
    how = f"\nhttps {host if named else ''}" if secure else ""
    return Server(
        id=server_id(row.name, row.uid, how=how),
        name=row.name,
        uid=row.uid,
        address=f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}",
        weight_percent=row.weight_percent,
        draining_only=row.state not in _SERVING,
        tls=secure,
        host=host if named else "",
    )


def _parts(url: str) -> SplitResult:
    """Scheme, host and port of an address; HAProxy is given no more."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    if parts.scheme not in ("", "http", "https"):
        raise ValueError(f"its address speaks {parts.scheme[:10]}, the gateway speaks http and https to instances")
    if parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise ValueError("its address has more than a host and a port")
    return parts
