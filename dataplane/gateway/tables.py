"""From what HAProxy holds and what the routing table wants to the commands between them; pure.

Order keeps every request answerable: servers come before the slots that name them, slots leave a server before it drains, and
it is deleted in a later round, when nothing is in flight on it. The generation stands in the slot table itself, under a key
that is no slot, and is written before the slots: whoever holds an older table, an agent that starts again or one beside another
replica, sees it and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from contract.keys import SLOTS
from contract.table import NOBODY, RoutingTable, check_rows, unpack_slots
from dataplane.fence import is_tombstone
from dataplane.gateway.config import FILLED_KEY, FLEET, ID_TABLE, SLOT_TABLE, USER_TABLE, GatewayConfig, server_options
from dataplane.gateway.servers import Refused, Server, servers_of

GENERATION_KEY = SLOTS  # no slot: those end one below; nor is the next
LINEAGE_KEY = SLOTS + 1
MAX_GENERATION = 2**32 - 1
_MAINTENANCE = 0x01 | 0x02 | 0x20  # forced, inherited, without an address; 0x04 only says that the file began with it
_DRAIN = 0x08


@dataclass(frozen=True, kw_only=True)
class HeldServer:
    """One server as HAProxy reports it."""

    id: int
    address: str
    weight: int
    admin_state: int
    in_use: int
    up: bool = True

    @property
    def in_maintenance(self) -> bool:
        """Whether it takes nothing at all."""
        return bool(self.admin_state & _MAINTENANCE)

    @property
    def draining(self) -> bool:
        """Whether it takes only what names it."""
        return bool(self.admin_state & _DRAIN) and not self.in_maintenance


@dataclass(frozen=True, kw_only=True)
class Held:
    """What HAProxy holds; slots without an entry are missing, and `ids` is None in one without a table of ids, an older one."""

    servers: Mapping[int, HeldServer] = field(default_factory=dict)
    slots: Mapping[int, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    generation: int = 0
    lineage: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    echoes: Mapping[str, str] = field(default_factory=dict)
    ids: frozenset[int] | None = frozenset()


@dataclass(frozen=True, kw_only=True)
class Want:
    """What it should hold: a table with server ids in place of indices, and the hot users.

    Attributes
    ----------
    owners
        Server ids of the instances that take users, by uid.
    touched
        When it was made from another one: that one's `users`, and the keys in which `users` differs from it.
    """

    generation: int
    lineage: int = 0
    servers: tuple[Server, ...] = ()
    slots: Mapping[int, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    owners: Mapping[str, int] = field(default_factory=dict)
    touched: tuple[Mapping[str, int], Sequence[str]] | None = None


class HotUsers:
    """Hot users: user key -> uid of the instance. Also by instance, so that the few of one that leaves are found at once."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self.by_key = users
        self._by_instance: dict[str, list[str]] | None = None

    def of(self, uid: str) -> Sequence[str]:
        """Keys of the users of an instance."""
        if self._by_instance is None:
            self._by_instance = {}
            for key, each in self.by_key.items():
                self._by_instance.setdefault(each, []).append(key)
        return self._by_instance.get(uid, ())

    def owned(self, owners: Mapping[str, int]) -> dict[str, int]:
        """Server id of each user whose instance is among `owners`."""
        owner_of = owners.get
        return {key: number for key, uid in self.by_key.items() if (number := owner_of(uid)) is not None}


class UserCommands(Sequence[str]):
    """Commands that set hot users (key, server id); words are made of them only when somebody reads them."""

    def __init__(self, entries: Sequence[tuple[str, int]]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [f"set table {USER_TABLE} key {key} data.gpt0 {owner}" for key, owner in self.entries[index]]
        return self[index : index + 1 or None][0]


@dataclass(frozen=True)
class Step:
    """Commands that may travel together, and what each answer must hold.

    Those of an `optional` step may be refused and come again; nobody waits for those that may come `later`.
    """

    what: str
    commands: Sequence[str]
    success: str = ""
    optional: bool = False
    later: bool = False

    @property
    def kind(self) -> str:
        """What it changes: `slots`, `users`, `names` or `servers`."""
        verb = " ".join(self.commands[0].split()[1:3])
        if verb.startswith("map"):
            return "names"
        return {f"table {SLOT_TABLE}": "slots", f"table {USER_TABLE}": "users"}.get(verb, "servers")


EMPTY = Want(generation=0)


def want_of(
    table: RoutingTable,
    users: HotUsers | None = None,
    *,
    lineage: int = 0,
    before: Want | None = None,
    addresses: Mapping[str, str] | None = None,
    tls: bool = False,
) -> Want:
    """Return what HAProxy should hold for a table.

    Parameters
    ----------
    users
        Hot users; those whose instance is not in the table, or drains, are left out.
    before
        What was made of the table before and the same `users`; spares a look at each of them.
    addresses, tls
        As of `servers_of`.

    Raises
    ------
    contract.errors.ProtocolViolation
        When the packed slots are not a table, or two rows are one instance.
    """
    packed = unpack_slots(table.slots, instances=len(table.instances))
    check_rows(table.instances)
    if is_tombstone(table):
        return EMPTY
    ids, servers, refused = servers_of(table.instances, addresses=addresses, tls=tls)
    owners = {s.uid: s.id for s in servers if not s.draining_only}
    users = users or HotUsers({})
    touched = None
    if before is None:
        owned: Mapping[str, int] = users.owned(owners)
    else:
        owned, keys = _owned_since(users, before, owners)
        touched = (before.users, keys)
    return Want(
        generation=min(table.generation, MAX_GENERATION),
        lineage=lineage,
        servers=servers,
        slots={slot: ids[owner] for slot, owner in enumerate(packed) if owner != NOBODY and owner in ids},
        users=owned,
        refused=refused,
        owners=owners,
        touched=touched,
    )


def _owned_since(users: HotUsers, before: Want, owners: Mapping[str, int]) -> tuple[Mapping[str, int], Sequence[str]]:
    """The users that are owned now, and the keys in which they differ from those before."""
    changed = [uid for uid in {*before.owners, *owners} if before.owners.get(uid) != owners.get(uid)]
    keys = [key for uid in changed for key in users.of(uid)]
    if not keys:
        return before.users, ()
    owned = dict(before.users)
    for uid in changed:
        if uid in owners:
            owned.update(dict.fromkeys(users.of(uid), owners[uid]))
        else:
            for key in users.of(uid):
                owned.pop(key, None)
    return owned, keys


def users_of(held: Held, want: Want) -> dict[str, str]:
    """Return the hot users that HAProxy holds, with the uids of the instances that a table knows."""
    uids = {server.id: server.uid for server in want.servers}
    return {key: uids[owner] for key, owner in held.users.items() if owner in uids}


def is_older(held: Held, want: Want) -> bool:
    """Whether HAProxy already follows a later table of the same pool (another replica's agent wrote it, or this one before)."""
    known = {server.id for server in want.servers}
    newer = held.lineage == want.lineage and held.generation > want.generation
    return newer and any(owner in known for owner in held.slots.values())


def plan(held: Held, want: Want, *, config: GatewayConfig, overdue: frozenset[int] = frozenset()) -> tuple[Step, ...]:
    """Return the steps from `held` to `want`, in order; none when nothing differs.

    Parameters
    ----------
    overdue
        Ids of servers whose drain has lasted too long: what is still in flight there is cut.
    """
    arriving = _arriving(held, want, config)
    if is_older(held, want):
        return _kept(arriving)
    users, forgotten = _users(held, want)
    return _kept(
        [
            *arriving,
            Step("generation", _entries(SLOT_TABLE, _marks(held, want))),
            Step("slots", _entries(SLOT_TABLE, _changes(held.slots, want.slots))),
            *users,
            *_leaving(held, want, config, overdue),
            *forgotten,
        ]
    )


def _kept(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(step for step in steps if step.commands)


def _arriving(held: Held, want: Want, config: GatewayConfig) -> list[Step]:
    new = [s for s in want.servers if s.id not in held.servers]
    known = [(s, held.servers[s.id]) for s in want.servers if s.id in held.servers]
    moved = [s for s, h in known if h.address != s.address]
    reopened = [s for s, h in known if not s.draining_only and (h.in_maintenance or h.draining)]
    names, echoes = config.map_paths
    return [
        Step(
            "add servers",
            tuple(f"add server {FLEET}/{s.label} {s.address} {server_options(s, config)}" for s in new),
            "New server registered.",
        ),
        Step("find servers by id", _ids(held, want)),
        Step(
            "name servers",
            tuple(_map_entry(names, held.names, s.label, s.name) for s in want.servers if held.names.get(s.label) != s.name),
        ),
        Step(
            "accept choices",
            tuple(_map_entry(echoes, held.echoes, s.name, s.label) for s in want.servers if held.echoes.get(s.name) != s.label),
        ),
        Step("move servers", tuple(_move(s) for s in moved), "changed"),
        Step("open servers", tuple(f"enable {kind} {FLEET}/{s.label}" for s in new for kind in ("health", "server"))),
        Step(
            "weights",
            tuple(f"set server {FLEET}/{s.label} weight {s.weight}" for s, h in known if h.weight != s.weight),
        ),
        Step("reopen servers", tuple(f"set server {FLEET}/{s.label} state ready" for s in reopened)),
    ]


def _ids(held: Held, want: Want) -> tuple[str, ...]:
    """Commands that lead from the id of a server to it; the last one says that all do."""
    wanted = (*(s.id for s in want.servers), FILLED_KEY) if held.ids is not None else ()
    return tuple(f"set table {ID_TABLE} key {i} data.server_id {i}" for i in wanted if i not in (held.ids or ()))


def _map_entry(path: object, held: Mapping[str, str], key: str, value: str) -> str:
    return f"{'set' if key in held else 'add'} map {path} {key} {value}"


def _move(server: Server) -> str:
    host, port = server.address.rsplit(":", 1)
    return f"set server {FLEET}/{server.label} addr {host.strip('[]')} port {port}"


def _marks(held: Held, want: Want) -> dict[int, tuple[int, int]]:
    return {LINEAGE_KEY: (held.lineage, want.lineage), GENERATION_KEY: (held.generation, want.generation)}


def _changes(held: Mapping[int, int], want: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    return {slot: (held.get(slot, 0), want.get(slot, 0)) for slot in range(SLOTS) if held.get(slot, 0) != want.get(slot, 0)}


def _entries(table: str, changes: Mapping[int, tuple[int, int]]) -> tuple[str, ...]:
    return tuple(f"set table {table} key {key} data.gpt0 {new}" for key, (old, new) in changes.items() if old != new)


def _users(held: Held, want: Want) -> tuple[list[Step], list[Step]]:
    """What changes for hot users, and the entries to clear after all else."""
    # An entry is set to nobody before it is cleared: peers learn what is set, not what is cleared.
    if held.users is want.users:  # what the last round wrote; a hundred thousand need not be compared
        return [], []
    known, wanted = held.users.get, want.users.get
    keys: Iterable[str]
    if want.touched is not None and want.touched[0] is held.users:
        keys = want.touched[1]
        gone = [key for key in keys if key in held.users and key not in want.users]
    else:
        keys = want.users
        gone = [key for key in held.users if key not in want.users]
    new = [(key, owner) for key in keys if (owner := wanted(key)) is not None and known(key) != owner]
    changes = [
        Step("hot users", UserCommands(new)),
        Step("release users", UserCommands([(key, 0) for key in gone if held.users[key]])),
    ]
    forgotten = tuple([f"clear table {USER_TABLE} key {key}" for key in gone])
    return changes, [Step("forget users", forgotten, optional=True, later=True)]


def _leaving(held: Held, want: Want, config: GatewayConfig, overdue: frozenset[int]) -> list[Step]:
    staying = {server.id: server for server in want.servers}
    gone = [h for h in held.servers.values() if h.id not in staying]
    to_drain = [h for h in gone if not h.draining and not h.in_maintenance]
    to_drain += [
        held.servers[i] for i, s in staying.items() if s.draining_only and i in held.servers and not held.servers[i].draining
    ]
    to_drain_new = [s.id for i, s in staying.items() if s.draining_only and i not in held.servers]
    idle = [h for h in gone if (h.draining and (not h.in_use or h.id in overdue)) or h.in_maintenance]
    names, echoes = config.map_paths
    kept_names = {server.name for server in want.servers}
    deleted = {f"s{h.id}" for h in idle}
    remaining = {f"s{i}" for i in held.servers} - deleted
    known = {server.label for server in want.servers} | remaining | deleted
    lost = [i for i in held.ids or () if i != FILLED_KEY and f"s{i}" not in known]
    return [
        Step("drain", tuple(f"set server {FLEET}/s{i} state drain" for i in (*(h.id for h in to_drain), *to_drain_new))),
        Step(
            "forget choices",
            tuple(
                f"del map {echoes} {name}"
                for name, label in held.echoes.items()
                if name not in kept_names and label not in remaining
            ),
        ),
        Step("close servers", tuple(f"set server {FLEET}/s{h.id} state maint" for h in idle if not h.in_maintenance)),
        Step(
            "cut what is late", tuple(f"shutdown sessions server {FLEET}/s{h.id}" for h in idle if h.id in overdue and h.in_use)
        ),
        Step("delete servers", tuple(f"del server {FLEET}/s{h.id}" for h in idle), "Server deleted.", optional=True),
        Step("forget ids", tuple(f"clear table {ID_TABLE} key {i}" for i in lost), optional=True),
        Step("forget names", tuple(f"del map {names} {label}" for label in held.names if label not in known)),
    ]
