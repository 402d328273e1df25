"""The edge, where user ids become keys, as gateways and pickers share it: its flags and their checks, the pool's secret, tables.

Both must make the same key of the same id and tell instances the same name of it, whichever of them a request comes through; so
what may be said to them is one rule, and both go over to another secret or another table in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from contract.errors import ProtocolViolation
from contract.keys import MIN_POOL_KEY_BYTES, secret_in
from contract.table import RoutingTable, can_carry_a_key
from dataplane.follow import TableSource

SECRET_PERIOD_S = 2.0
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")  # the operator takes the name of a Secret, which may be so long
_Held = TypeVar("_Held")


class ConfigError(ValueError):
    """A value cannot stand in a configuration; the message names it and what it may be."""


class TakesTables(Protocol):
    """What routes by a table."""

    def offer(self, table: RoutingTable, *, uid: str = "") -> bool: ...


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the edge, and of the table that it routes by."""
    add = parser.add_argument
    add("--table", required=True, metavar="FILE|URL", help="routing table: a file, http(s)://..., or kubernetes:NAMESPACE/NAME")
    add(
        "--pool-key",
        required=True,
        metavar="FILE",
        help="secret of the pool (RoutingPolicy.spec.userKeySecret), 16 bytes or more",
    )
    add("--id-header", default="x-user-id", metavar="NAME", help="request header with the raw user id; default %(default)s")
    add(
        "--key-header",
        metavar="NAME",
        help="header that carries the user key, from callers that have made it and to instances; default: what the table says",
    )
    add("--key-id", default="", metavar="ID", help="name of the pool key, handed on to instances as x-gr-key-id")
    add("--ignore-choices", action="store_true", help="do not let callers choose an instance by x-gr-instance")


def check_names(*, id_header: str, key_header: str | None, key_id: str) -> None:
    """Refuse headers and names of keys that would break a configuration or take the place of what others need.

    Raises
    ------
    ConfigError
        Naming the first that is wrong.
    """
    for what, header in (("id header", id_header), ("key header", key_header)):
        if header is None:
            continue
        if _HEADER.fullmatch(header) is None:
            raise ConfigError(f"{what}: {header[:80]!r} is no name of a header")
        if not can_carry_a_key(header.lower()):  # instances would never see the one, and others would write the other
            raise ConfigError(f"{what}: {header} is needed for something else")
    if id_header.lower().startswith("x-gr-"):
        raise ConfigError("id header: names that begin with x-gr- belong to grfleet")
    if key_id and _KEY_ID.fullmatch(key_id) is None:
        raise ConfigError(f"key id: {key_id[:80]!r} is not made of letters, digits, dots, dashes and underscores, 253 at most")


def check_pool_key(pool_key: bytes) -> bytes:
    """Return a secret that is long enough.

    Raises
    ------
    ConfigError
        When it could be guessed.
    """
    if len(pool_key) < MIN_POOL_KEY_BYTES:
        raise ConfigError(
            f"pool key: at least {MIN_POOL_KEY_BYTES} bytes are needed; check the Secret of RoutingPolicy.spec.userKeySecret"
        )
    return pool_key


def read_pool_key(path: Path) -> bytes:
    """Return the secret as it is in its file, but for one newline that an editor left at its end.

    Raises
    ------
    ConfigError, OSError
        When it is none, or cannot be read.
    """
    return check_pool_key(secret_in(path.read_bytes()))


def trusting(authorities: bytes) -> ssl.SSLContext:
    """Return a context that verifies servers by these authorities, PEM, and by nobody else.

    Raises
    ------
    ConfigError
        When there is none among them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"ca file: there is no certificate in it ({error})") from error
    return context


async def follow_secret(
    read: Callable[[], _Held],
    take: Callable[[_Held], None],
    *,
    in_force: _Held | None,
    what: str,
    log: logging.Logger,
    period_s: float = SECRET_PERIOD_S,
) -> None:
    """Take over what stands in a secret's files whenever it is another, for ever.

    What cannot be read or taken is told once, changes nothing, and is tried again.

    Parameters
    ----------
    read
        Called beside the event loop.
    take
        May refuse with ValueError or OSError.
    in_force
        What was taken before; None takes over what is found first, and says nothing of it.
    """
    problem = ""
    while True:
        await asyncio.sleep(period_s)
        try:
            found = await asyncio.to_thread(read)
            if found != in_force:
                take(found)
                if in_force is not None:
                    log.info("the %s has changed", what)
                in_force = found
            problem = ""
        except (OSError, ValueError) as error:  # what ssl raises is an OSError
            if str(error) != problem:
                problem = str(error)
                log.warning("the %s cannot be used, the one before stays", what, extra={"error": problem[:400]})


async def follow_tables(router: TakesTables, source: TableSource, *, log: logging.Logger) -> None:
    """Offer every table of a source, for ever."""
    async for published in source.tables():
        offer(router, published.table, uid=published.uid, log=log)


def offer(router: TakesTables, table: RoutingTable, *, uid: str, log: logging.Logger) -> None:
    """Offer a table; one that cannot be used is logged and changes nothing."""
    try:
        taken = router.offer(table, uid=uid)
    except (ProtocolViolation, ConfigError) as error:
        log.warning("a table is refused", extra={"error": str(error)[:400]})
        return
    log.info("table", extra={"generation": table.generation, "taken": taken, "instances": len(table.instances)})
