"""The state of a fleet before its first request: columns by instance, users numbered on their instance, caches warm.

Routing depends on nothing but the user's slot, so each instance is simulated by itself, which keeps its caches in the machine's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.keys import SLOTS
from policies.routing.rendezvous import place
from simulator.core.randomness import mix
from simulator.fleet import state
from simulator.fleet.columns import gather
from simulator.fleet.config import FleetConfig, Level
from simulator.fleet.laws import LawTables
from simulator.fleet.resize import SHORT_MEMORY, set_emb_limit
from simulator.fleet.state import Batches, Requests, Rows, Users
from simulator.fleet.users import NOBODY, TIERS
from simulator.fleet.warm import warm_rows, warm_users
from simulator.physics.batching import BatchRules
from simulator.request_log import RequestLog

SAMPLES_KEPT = 1 << 16
_INSTANCE = np.uint64(0xD1B5_4A32_D192_ED03)
RECORD_EVERY = {Level.EXACT: 64, Level.SAMPLED: 1, Level.SAMPLED_64: 1, Level.REDUCED: 0}
_MODES = {Level.EXACT: state.EVERY_ROW, Level.REDUCED: state.NO_ROWS}


@dataclass(frozen=True, kw_only=True)
class WarmUsers:
    """Users whose state is cached before the first request, the least recently used first.

    Attributes
    ----------
    user : uint32, shape (n,)
        As in the log.
    tokens : int32, shape (n,)
        Length of the history that is cached.
    """

    user: NDArray[np.uint32]
    tokens: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Who serves what.

    Attributes
    ----------
    instance : uint16, shape (requests,)
    local_user : int32, shape (users,)
        Number of each user on its instance.
    users_of : tuple of int
        Users of each instance.
    first : int64, shape (instances + 1,)
        Where the requests of each instance begin when all stand one behind the other, and where the last ones end.
    warm : tuple of (int32 array, int32 array)
        Users that each instance holds before its first request, by their number there, and their tokens.
    """

    instance: NDArray[np.uint16]
    local_user: NDArray[np.int32]
    users_of: tuple[int, ...]
    first: NDArray[np.int64]
    warm: tuple[tuple[NDArray[np.int32], NDArray[np.int32]], ...]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """State of one instance, in the arrays that the loops work on."""

    number: int
    seed: np.uint64
    requests: Requests
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    users: Users
    rows: Rows
    batches: Batches


def rendezvous_owners(instances: int) -> list[int]:
    """Return the owner of each slot as the routing loop would first place them: equal weights, names instance-0 and so on."""
    return [int(owner) for owner in place([f"instance-{number}" for number in range(instances)], [100.0] * instances)]


def placed(log: RequestLog, owners: Sequence[int], *, instances: int, warm: WarmUsers | None = None) -> Placement:
    """Return who serves what.

    Raises
    ------
    ValueError
        When the owners are not 4096 numbers of instances.
    """
    table = np.asarray(owners, dtype=np.int64)
    if table.shape != (SLOTS,) or table.min() < 0 or table.max() >= instances:
        raise ValueError(f"routing: {SLOTS} owners within 0..{instances - 1} are needed, one for each slot")
    owner = table.astype(np.uint16)[log.user_slots]
    users_of = np.bincount(owner, minlength=instances)
    by_owner = np.argsort(owner, kind="stable")
    first = np.concatenate(([0], np.cumsum(users_of)[:-1]))
    local = np.empty(log.users, dtype=np.int32)
    local[by_owner] = np.arange(log.users) - np.repeat(first, users_of)
    instance = owner[log.user]
    held = warm or WarmUsers(user=np.zeros(0, dtype=np.uint32), tokens=np.zeros(0, dtype=np.int32))
    if len(held.user) and (held.user.max() >= log.users or held.tokens.min() < 0 or len(held.user) != len(held.tokens)):
        raise ValueError(f"warm: users below {log.users} with tokens from 0 are needed")
    holders = _by_instance(owner[held.user], instances)
    return Placement(
        instance=instance,
        local_user=local,
        users_of=tuple(int(count) for count in users_of),
        first=np.concatenate(([0], np.cumsum(np.bincount(instance, minlength=instances)))),
        warm=tuple((local[held.user[places]], held.tokens[places]) for places in holders),
    )


def _by_instance(instance: NDArray[np.uint16], instances: int) -> tuple[NDArray[np.int64], ...]:
    """Return the places of each instance, rising."""
    bounds = np.cumsum(np.bincount(instance, minlength=instances))[:-1]
    return tuple(np.split(np.argsort(instance, kind="stable"), bounds))


def requests_of(log: RequestLog, placement: Placement, *, new: Callable[..., NDArray[Any]] = np.zeros) -> Requests:
    """Return all requests, those of each instance behind those of the one before, and `new` columns for the outcome."""
    requests = empty_requests(len(log), new=new)
    columns = (log.arrival_ms, log.user, log.history_tokens, log.candidates, log.law)
    gather(placement.first[:-1].copy(), placement.instance, placement.local_user, *columns, requests)
    return requests


def empty_requests(count: int, *, new: Callable[..., NDArray[Any]] = np.zeros) -> Requests:
    """Return columns for so many requests; those of the outcome are made by `new`. Nothing takes memory before it is written."""
    return Requests(
        arrival_ms=np.empty(count),
        user=np.empty(count, dtype=np.int32),
        history=np.empty(count, dtype=np.int32),
        candidates=np.empty(count, dtype=np.int32),
        law=np.empty(count, dtype=np.uint8),
        latency_ms=new(count),
        service_ms=new(count),
        kv_hit=new(count, dtype=np.int32),
        host_hit=new(count, dtype=np.int32),
        ssd_hit=new(count, dtype=np.int32),
        rows_asked=new(count, dtype=np.int32),
        rows_missed=new(count, dtype=np.int32),
    )


def constants_of(
    config: FleetConfig, log: RequestLog, tables: LawTables, level: Level, *, seen_one_in: int | None
) -> NDArray[np.int64]:
    """Return the whole-number constants of a fleet.

    Parameters
    ----------
    seen_one_in : int or None
        Of the rows that a level samples, one in so many is shown to the policy, a power of two; 0 for none, None when there is no
        policy to read what an agent could measure.

    Raises
    ------
    ValueError
        When it is no power of two.
    """
    one_in = 0 if seen_one_in is None else seen_one_in
    if one_in < 0 or one_in & (one_in - 1):
        raise ValueError(f"split: one sampled row in {one_in} cannot be shown, only one in a power of two")
    out = np.zeros(state.FLEET_INTS, dtype=np.int64)
    out[state.PAGE_TOKENS], out[state.PAGE_BYTES] = config.page_tokens, config.page_bytes
    out[state.ROW_BYTES] = config.service.row_bytes
    out[state.ROWS_PER_TOKEN] = log.rows_per_token
    out[state.CELL_BYTES] = config.service.row_bytes * tables.one_in
    out[state.MODE] = _MODES.get(level, state.SOME_ROWS)
    out[state.RECORD_ONE_IN] = -1 if seen_one_in is None else RECORD_EVERY[level] * (one_in > 0)
    out[state.RECORD_SHIFT] = 65 - one_in.bit_length() if one_in > 1 else 0
    out[state.LAYERS] = config.service.layers
    out[state.POOL_BYTES] = config.pool_bytes
    out[state.BATCH_MOST] = 1 if config.batching is None else config.batching.max_requests
    out[state.OFFLOAD_MOST] = state.UNBOUNDED if config.offload_queue_bytes is None else config.offload_queue_bytes
    out[state.MOST_LAG] = state.UNBOUNDED if config.max_emb_lag is None else config.max_emb_lag
    out[state.LOAD_BEHIND] = state.NEVER_BEHIND if config.load_behind_percent is None else config.load_behind_percent
    return out


def instance_of(
    number: int,
    *,
    config: FleetConfig,
    requests: Requests,
    placement: Placement,
    tables: LawTables,
    fleet: NDArray[np.int64],
    seed: int,
) -> Instance:
    """Return one instance before its first request: rows in the steady state of its first law, users as given."""
    mine = slice(placement.first[number], placement.first[number + 1])
    columns: list[Any] = [column[mine] for column in requests]
    made = fresh_instance(
        number,
        config=config,
        requests=Requests(*columns),
        users=placement.users_of[number],
        law=int(requests.law[mine.start]) if mine.stop > mine.start else 0,
        tables=tables,
        fleet=fleet,
        seed=seed,
    )
    warm_users(fleet, made.ints, made.users, *placement.warm[number])
    return made


def fresh_instance(
    number: int,
    *,
    config: FleetConfig,
    requests: Requests,
    users: int,
    law: int,
    tables: LawTables,
    fleet: NDArray[np.int64],
    seed: int,
    cold: bool = False,
) -> Instance:
    """Return one instance that nobody has asked yet, with room for so many users.

    Its rows are in the steady state of a law, or nowhere when it is cold.
    """
    own_seed = _seed_of(seed, number)
    ints, floats = np.zeros(state.INTS, dtype=np.int64), np.zeros(state.FLOATS)
    of_users, rows = _empty_users(users), _empty_rows(config, tables, fleet)
    ints[state.KV_LIMIT] = config.pool_bytes - config.first_emb_bytes
    ints[state.OFFLOAD_ROOM] = fleet[state.OFFLOAD_MOST]
    ints[state.HOST_LIMIT], ints[state.SSD_LIMIT] = config.host_bytes, config.ssd_bytes
    ints[state.KNOWN_LAW] = ints[state.KNOWN_USED] = -1
    floats[state.FILLED_AT] = -1.0
    most_cells = config.pool_bytes // int(fleet[state.CELL_BYTES])
    ints[state.GHOST_LIMIT] = min(most_cells, tables.cells)
    ints[state.EMB_TARGET] = config.first_emb_bytes
    if fleet[state.MODE] == state.NO_ROWS and not cold:
        group = int(tables.laws.ints[law, state.GROUP])
        rows.window[group], rows.window_law[group] = tables.laws.window[-1], law
        rows.oldest[group] = -tables.laws.window[-1]
    set_emb_limit(fleet, ints, floats, rows, tables.laws, config.first_emb_bytes)
    if cold:
        floats[state.RATIO] = 1.0
    elif fleet[state.MODE] != state.NO_ROWS:
        warm_rows(own_seed, law, tables.cell_mass(law), ints, floats, rows)
    ints[state.RESIZE_EVICTED] = 0
    return Instance(
        number=number,
        seed=own_seed,
        requests=requests,
        ints=ints,
        floats=floats,
        users=of_users,
        rows=rows,
        batches=empty_batches(config.batching, len(requests.law)),
    )


def empty_batches(rules: BatchRules | None, count: int) -> Batches:
    """Return the buckets of an instance with so many requests, or none where requests are served alone."""
    edges = () if rules is None else rules.bucket_edges_tokens
    buckets, kept = (0, 0) if rules is None else (len(edges) + 1, count)
    return Batches(
        edge=np.array(edges, dtype=np.int64),
        first=np.full(buckets, NOBODY, dtype=np.int64),
        last=np.full(buckets, NOBODY, dtype=np.int64),
        waiting=np.zeros(buckets, dtype=np.int64),
        ready_ms=np.full(buckets, np.inf),
        following=np.zeros(kept, dtype=np.int32),
        fetch=np.zeros(kept, dtype=np.int32),
        running=np.full(1, NOBODY, dtype=np.int64),
    )


def _empty_users(count: int) -> Users:
    record = np.zeros((count + TIERS, state.RECORD), dtype=np.int32)
    for sentinel in range(count, count + TIERS):
        record[sentinel, [state.OLDER, state.YOUNGER]] = sentinel
    return Users(record=record, ready_ms=np.zeros(count), used_ms=np.zeros(count))


def _empty_rows(config: FleetConfig, tables: LawTables, fleet: NDArray[np.int64]) -> Rows:
    simulated = fleet[state.MODE] != state.NO_ROWS
    cells = tables.cells if simulated else 0
    kept = min(cells, 2 * (config.pool_bytes // int(fleet[state.CELL_BYTES])))
    size = 3 * kept + 1024 if simulated else 1
    groups = int(tables.laws.ints[:, state.GROUP].max()) + 1
    samples = SAMPLES_KEPT if fleet[state.RECORD_ONE_IN] > 0 else 0
    return Rows(
        last=np.full(cells, -1, dtype=np.int32),
        ring=np.zeros(size, dtype=np.int32),
        misses=np.zeros(len(tables.laws.ints)),
        expected=np.zeros(len(tables.laws.ints)),
        sampled_at=np.zeros(len(tables.laws.ints)),
        memory=np.full(len(tables.laws.ints), SHORT_MEMORY),
        window=np.zeros(groups),
        window_law=np.full(groups, -1, dtype=np.int64),
        oldest=np.zeros(groups),
        youngest=np.zeros(groups),
        sampled=np.zeros(samples, dtype=np.int32),
        sampled_ms=np.zeros(samples),
    )


def _seed_of(seed: int, number: int) -> np.uint64:
    """Return the seed of one instance; mixed, since streams step by a constant and must not be each other's continuation."""
    named = np.array([(seed << 12 | number) & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)
    return np.uint64(mix(mix(named) ^ _INSTANCE)[0])
