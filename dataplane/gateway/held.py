"""Reads what HAProxy holds from its answers; a line that says something unexpected makes the whole answer unusable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from dataplane.gateway.config import FLEET, ID_TABLE, SLOT_TABLE, USER_TABLE, GatewayConfig
from dataplane.gateway.runtime_api import CommandRefused, RuntimeApi
from dataplane.gateway.tables import GENERATION_KEY, LINEAGE_KEY, Held, HeldServer

_STATE_VERSION = "1"
_STOPPED = "0"
_COLUMNS = ("srv_id", "srv_name", "srv_addr", "srv_port", "srv_op_state", "srv_admin_state", "srv_uweight")
_ENTRY = re.compile(r"^0x[0-9a-f]+: key=(\S+) [^\n]*\bgpt0=(\d+)", re.MULTILINE)
_ID = re.compile(r"^0x[0-9a-f]+: key=(\d+) [^\n]*\bserver_id=(\d+)", re.MULTILINE)
_NO_TABLE = "No such table"


async def read_held(api: RuntimeApi, config: GatewayConfig, *, users: Mapping[str, int] | None = None) -> Held:
    """Return what HAProxy holds now.

    Parameters
    ----------
    users
        What is known of the hot-user table, to spare reading it (it may have megabytes); None reads it.

    Raises
    ------
    CommandRefused
        When an answer is not what HAProxy 2.6 to 2.8 gives.
    RuntimeUnavailable
        When it does not answer.
    """
    names, echoes = config.map_paths
    state, used, slots, ids, named, echoed = await api.ask_all(
        [
            f"show servers state {FLEET}",
            f"show servers conn {FLEET}",
            f"show table {SLOT_TABLE}",
            f"show table {ID_TABLE}",
            f"show map {names}",
            f"show map {echoes}",
        ]
    )
    if users is None:
        users = _table(await api.ask(f"show table {USER_TABLE}"))
    try:
        held_slots = {int(key): value for key, value in _table(slots).items()}
        held_ids = _ids(ids)
        servers = _servers(state, used)
    except (ValueError, IndexError, KeyError) as error:
        raise CommandRefused(f"an answer of HAProxy cannot be read: {error}") from error
    return Held(
        servers=servers,
        generation=held_slots.pop(GENERATION_KEY, 0),
        lineage=held_slots.pop(LINEAGE_KEY, 0),
        slots=held_slots,
        users=users,
        names=_map(named),
        echoes=_map(echoed),
        ids=held_ids,
    )


def _rows(answer: str, *columns: str) -> Iterator[tuple[str, ...]]:
    """These columns of an answer whose first line that begins with a hash names all of them."""
    lines = answer.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("#"))
    named = lines[head].lstrip("# ").split()
    pick = itemgetter(*(named.index(column) for column in columns))
    return (pick(line.split()) for line in lines[head + 1 :] if line.strip())


def _servers(state: str, used: str) -> dict[int, HeldServer]:
    try:
        if state.split("\n", 1)[0].strip() != _STATE_VERSION:
            raise ValueError("the form of `show servers state` is not version 1")
        in_use = {name: int(count) for name, count in _rows(used, "bkname/svname", "used_cur")}
        servers = {
            int(number): HeldServer(
                id=int(number),
                address=_address(host, port),
                weight=int(weight),
                admin_state=int(admin),
                in_use=in_use.get(f"{FLEET}/{name}", 0),
                up=operation != _STOPPED,
            )
            for number, name, host, port, operation, admin, weight in _rows(state, *_COLUMNS)
        }
    except StopIteration as error:
        raise ValueError("no line names the columns") from error
    return servers


def _address(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ids(answer: str) -> frozenset[int] | None:
    """Keys that lead to the server of that id; None where there is no such table."""
    if answer.startswith(_NO_TABLE):
        return None
    return frozenset(int(key) for key, value in _table(answer, _ID).items() if int(key) == value)


def _table(answer: str, entry: re.Pattern[str] = _ENTRY) -> dict[str, int]:
    head, _, entries = answer.partition("\n")
    if not head.startswith("# table:"):
        raise CommandRefused(f"show table: {answer[:200]!r}")
    found = entry.findall(entries)
    if len(found) != entries.count("\n") + bool(entries):
        raise CommandRefused(f"show table: a line of {head[:200]!r} is no entry")
    return {key: int(value) for key, value in found}


def _map(answer: str) -> dict[str, str]:
    if answer.startswith("Unknown map"):
        raise CommandRefused(f"show map: {answer[:200]!r}")
    lines: Sequence[list[str]] = [line.split(maxsplit=2) for line in answer.splitlines()]
    return {parts[1]: parts[2] for parts in lines if len(parts) == 3}
