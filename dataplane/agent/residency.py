"""Whose state the engine holds, for gateways: read from the engine when one of them asks, once a second at most.

The agent keeps the last changes in the order in which they came, so that several gateways, each at its own cursor, cost the
engine one call. Cursors are the engine's own and survive a restart of the agent. A new start of the engine, or an answer that
begins anew, makes every older cursor begin anew too. With nobody asking, nothing is read.
While the KV cache is about to shrink, users beyond what it will hold are not claimed any more, as if the engine had said so.
"""

import asyncio
import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

import msgspec

from contract.errors import ProtocolViolation, Unreachable
from contract.residency import InstanceLoad, ResidencyReport, UserState
from dataplane.agent.ports import EnginePort
from dataplane.agent.report import Known
from dataplane.agent.window import Report
from policies.allocation.types import Costs

PERIOD_S = 1.0
"""Least time between two readings of the engine."""
KEPT = 2500
"""Users whose last change is kept, and asked for at most; half of what a report may hold, as an agent has to weigh little."""
_CHANGE = struct.Struct("<QdIII")  # cursor at which it was read, when it was last used, tokens by tier
_MOST_TOKENS, _MOST_AGE_MS = 2**32 - 1, 1e12
log = logging.getLogger("grfleet.agent")


class Bound(NamedTuple):
    """The size that a KV cache is about to have, what it uses now, and what a token takes at least; all in bytes."""

    kv_bytes: int
    used_bytes: int
    bytes_per_token: int

    def tokens(self, *, known: int) -> int:
        """Return the tokens that fit; if all in the cache are known, by what they really take: pages are never quite full."""
        each = max(self.bytes_per_token, self.used_bytes / known) if known else self.bytes_per_token
        return int(self.kv_bytes / each)


class ResidencyShelf:
    """The last changes of one engine.

    Parameters
    ----------
    engine
        Where they come from.
    monotonic_s
        Clock for the pause between readings, and for ages.
    """

    def __init__(self, engine: EnginePort, *, monotonic_s: Callable[[], float], period_s: float = PERIOD_S) -> None:
        self._engine = engine
        self._monotonic_s = monotonic_s
        self._period_s = period_s
        self._reading = asyncio.Lock()
        self._read_s: float | None = None
        self._told = True
        self._answers = False
        self._start_id = ""
        self._generation = 0
        self._cursor = 0
        self._floor = 0
        self._changes: OrderedDict[bytes, bytes] = OrderedDict()  # packed: half the memory of five thousand objects
        self._asked_s: float | None = None
        self._bound: Bound | None = None
        self._withdrawn: frozenset[bytes] = frozenset()

    async def report(self, cursor: int, *, uid: str, load: InstanceLoad) -> ResidencyReport | None:
        """Return what changed after a cursor; None from an engine that does not tell, or has not yet.

        Parameters
        ----------
        uid
            Of the instance, as the intent in force or the command line has it.
        load
            What else is known of the engine; handed on, but not `reachable` when the engine does not answer here.
        """
        async with self._reading:
            self._asked_s = now_s = self._monotonic_s()
            if self._read_s is None or now_s - self._read_s >= self._period_s:
                self._read_s = now_s
                await self._read(now_s)
        if not self._told or not self._cursor:
            return None
        since, users = self._since(cursor)
        return ResidencyReport(
            uid=uid,
            start_id=self._start_id,
            generation=self._generation,
            since=since,
            cursor=self._cursor,
            users=users,
            load=load if self._answers else msgspec.structs.replace(load, reachable=False),
        )

    def bound_to(self, bound: Bound | None) -> None:
        """From the next reading on, which comes when somebody asks, claim no more in HBM than that; None: all there is.

        Whom an LRU cache of that size would not hold is told as without state in HBM, until the bound is lifted: then what the
        engine says of them is told again. Both are told with the next cursor of the engine, so a reader misses neither.
        """
        if (bound and bound.kv_bytes) != (self._bound and self._bound.kv_bytes):
            self._read_s = None
        self._bound = bound

    def heard_within(self, seconds: float) -> bool:
        """Whether somebody asked so lately, of an engine that tells."""
        told = self._told and self._cursor > 0 and self._asked_s is not None
        return told and self._monotonic_s() - (self._asked_s or 0.0) <= seconds

    def _since(self, cursor: int) -> tuple[int, list[UserState]]:
        now_s = self._monotonic_s()
        if self._floor <= cursor <= self._cursor:
            fresh: list[UserState] = []
            for key, change in reversed(self._changes.items()):
                sequence, state = self._told_of(key, change, now_s)
                if sequence <= cursor:
                    break
                fresh.append(state)
            return cursor, fresh
        every = (self._told_of(key, change, now_s)[1] for key, change in reversed(self._changes.items()))
        return 0, list(islice((state for state in every if not state.gone), KEPT))

    def _told_of(self, key: bytes, change: bytes, now_s: float) -> tuple[int, UserState]:
        sequence, state = _unpacked(key, change, now_s)
        return sequence, msgspec.structs.replace(state, tokens_hbm=0) if key in self._withdrawn else state

    async def _read(self, now_s: float) -> None:
        try:
            report = await self._engine.residency(self._cursor, most=KEPT)
            if report is not None and report.start_id != self._start_id and self._cursor:
                report = await self._engine.residency(0, most=KEPT)  # cursors of another process mean nothing here
        except (Unreachable, ProtocolViolation) as error:
            if self._answers:
                log.warning("residency cannot be read", extra={"error": str(error)[:200]})
            self._answers = False
            return
        self._answers, self._told = True, report is not None
        if report is not None:
            self._take(report, now_s)

    def _take(self, report: ResidencyReport, now_s: float) -> None:
        goes_on = report.cursor != self._cursor or report.start_id != self._start_id
        began_anew = (report.start_id, report.generation, report.since) != (self._start_id, self._generation, self._cursor)
        self._start_id, self._generation, self._cursor = report.start_id, report.generation, report.cursor
        if began_anew or not self._floor:
            self._changes.clear()
            self._floor = report.cursor
        for state in reversed(report.users):
            key = bytes.fromhex(state.key)
            self._changes[key] = _packed(report.cursor, now_s, state)
            self._changes.move_to_end(key)
        if goes_on:
            self._withdraw()
        while len(self._changes) > KEPT:
            self._floor = _CHANGE.unpack(self._changes.popitem(last=False)[1])[0]

    def _withdraw(self) -> None:
        """Bring claims to the bound; whoever changes sides counts as changed at this reading."""
        if self._bound is None and not self._withdrawn:
            return
        beyond: frozenset[bytes] = frozenset()
        if self._bound is not None:
            changes = ((key, _CHANGE.unpack(change)) for key, change in self._changes.items())
            states = [(key, used_s, hbm) for key, (_, used_s, hbm, _, _) in changes]
            known = sum(hbm for _, _, hbm in states) if len(states) < KEPT else 0  # more are kept in the cache than here, else
            beyond = beyond_lru(states, tokens=self._bound.tokens(known=known))
        for key in beyond ^ self._withdrawn:
            if key in self._changes:
                self._changes[key] = _CHANGE.pack(self._cursor, *_CHANGE.unpack(self._changes[key])[1:])
                self._changes.move_to_end(key)
        self._withdrawn = beyond


def beyond_lru(states: Iterable[tuple[bytes, float, int]], *, tokens: int) -> frozenset[bytes]:
    """Return the keys that a least-recently-used cache of so many tokens would not hold.

    Parameters
    ----------
    states
        Key, time of last use and tokens of each; those without tokens are not among the result.
    """
    held = sorted((state for state in states if state[2] > 0), key=lambda state: state[1], reverse=True)
    for at, (_, _, size) in enumerate(held):
        tokens -= size
        if tokens < 0:
            return frozenset(key for key, _, _ in held[at:])
    return frozenset()


def _packed(sequence: int, now_s: float, state: UserState) -> bytes:
    hbm, host, ssd = (min(tokens, _MOST_TOKENS) for tokens in (state.tokens_hbm, state.tokens_host, state.tokens_ssd))
    return _CHANGE.pack(sequence, now_s - min(state.age_ms, _MOST_AGE_MS) / 1000.0, hbm, host, ssd)


def _unpacked(key: bytes, change: bytes, now_s: float) -> tuple[int, UserState]:
    sequence, used_s, hbm, host, ssd = _CHANGE.unpack(change)
    age_ms = round(max(0.0, now_s - used_s) * 1000.0, 1)
    return sequence, UserState(key=key.hex(), tokens_hbm=hbm, tokens_host=host, tokens_ssd=ssd, age_ms=age_ms)


def load_of(known: Known, window: Report, costs: Costs | None) -> InstanceLoad:
    """Return what the agent knows of its engine as a router takes it; what is not known stays None."""
    split, describe, serving = known.split, known.describe, known.serving
    row_ms = costs.ms_per_emb_miss_row if costs is not None else None
    token_ms = None
    if costs is not None and row_ms is not None:
        missed = 1.0 - window.emb_hit_percent / 100.0 if window.emb_hit_percent is not None else 1.0
        token_ms = costs.ms_per_kv_miss_token + costs.emb_rows_per_kv_miss_token * missed * row_ms
    below = describe is not None and "dram" in describe.tiers
    return InstanceLoad(
        reachable=known.reachable,
        draining=known.draining,
        refilling=split is not None and split.refill_backlog_bytes > 0,
        queue=serving.queue if serving is not None else None,
        in_flight=serving.in_flight if serving is not None else None,
        service_ms=window.service_ms,
        emb_hit_percent=window.emb_hit_percent,
        rows_per_request=costs.emb_rows_per_request if costs is not None else None,
        ms_per_row=row_ms,
        ms_per_token=token_ms,
        ms_per_token_host=1000.0 * describe.kv_bytes_per_token / describe.link_bytes_per_second
        if describe is not None and below
        else None,
    )
