"""Addresses of instances that are known by host names: HAProxy takes only IP addresses for servers that come while it runs.

A name that cannot be resolved keeps the address it had, and one that has several keeps the one in use while it is among them, so
a name server that is away or shuffles its answers moves nobody.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

_AT_ONCE = 8
Lookup = Callable[[str], Awaitable[Sequence[str]]]


class HostBook:
    """Remembers the address of each host name.

    Parameters
    ----------
    lookup
        Returns the IP addresses of a name; OSError when there are none.
    on_problem
        Told of a name without an address, once until it has one.
    timeout_s
        How long one look-up may take.
    known
        Addresses that were found before.
    """

    def __init__(
        self,
        lookup: Lookup,
        *,
        on_problem: Callable[[str], None],
        timeout_s: float = 5.0,
        known: Mapping[str, str] | None = None,
    ) -> None:
        self._lookup = lookup
        self._on_problem = on_problem
        self._timeout_s = timeout_s
        self._known: dict[str, str] = dict(known or {})
        self._failing: set[str] = set()
        self._turns = 0

    async def refresh(self, hosts: Collection[str]) -> Mapping[str, str]:
        """Look all names up again and return the addresses that are known; names that are not asked for are forgotten.

        Where there are more names than look-ups in the time, others come first each time.
        """
        names = sorted(hosts)
        begin, self._turns = self._turns * (len(names) // 2 + 1) % max(1, len(names)), self._turns + 1
        names = [*names[begin:], *names[:begin]]
        found = await asyncio.gather(*(self._one(host) for host in names))
        self._known = {host: address for host, address in zip(names, found, strict=True) if address is not None}
        self._failing &= set(hosts)
        return self._known

    async def _one(self, host: str) -> str | None:
        known = self._known.get(host)
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = _without_zones(await self._lookup(host))
        except (OSError, TimeoutError, UnicodeError) as error:
            if host not in self._failing:
                self._on_problem(f"{host}: {type(error).__name__} {error}; {known or 'no address'} stays")
            self._failing.add(host)
            return known
        self._failing.discard(host)
        if known in addresses or not addresses:
            return known
        return min(addresses)


def _without_zones(addresses: Sequence[str]) -> list[str]:
    """Those that are reached from anywhere: a link-local one with its zone is no address of a server."""
    return [each for each in addresses if "%" not in each]


_threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="grfleet-lookup")
"""Their own: a thread that waits for a name server which is away is kept for ten seconds, and tables are read by threads too."""


async def system_lookup(host: str) -> Sequence[str]:
    """Addresses of a name as the system resolves it."""
    look = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_threads, look)
    return [str(address[0]) for *_, address in found]
