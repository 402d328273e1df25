"""Hot users of a gateway: what agents report of their engines' users, merged and weighed into overrides.

Reports are bound to (uid, start id) of an instance, and so are overrides: a process that is gone leaves nothing to its successor.
What is missing moves nobody: an agent that is silent keeps its users, and they are trusted less and less where they are not. All
of it is arithmetic on one thread; who asks the agents is `dataplane.hot_users.agents`.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from contract.keys import slot_of
from contract.residency import MAX_USERS, InstanceLoad, ResidencyReport, UserState
from contract.table import NOBODY, InstanceState, TableInstance
from policies.routing.bound import caps
from policies.routing.overrides import plan_overrides
from policies.routing.residency import BookRules, Outcome, ResidencyBook, Tokens
from policies.routing.score import known_or_mean
from policies.routing.types import InstanceFacts, Limits, Override

UNREACHABLE_REPORTS = 2
"""Reports in a row that say that the engine does not answer, until nobody is sent there any more."""
LOAD_MEMORY_MS = 30_000.0
"""Time constant of the averages of queue and requests in flight: users that are sent by those of a moment come in a herd."""
WHOLE_MS = 30_000.0
"""All users are weighed at least so often."""
ROWS_PER_OVERRIDE, LEAST_USERS = 2, 100
"""Twice as many states are known, of all instances together, as users may be sent elsewhere; of each so many at least."""
LEAST_MOVES = 100
MOVES_ONE_IN = 50
"""In one round as many users move for what they save: one in so many of those known, and no fewer than `LEAST_MOVES`."""
_ANY_START = "?"
_MOST = 1e6  # requests, rows, or milliseconds (a quarter of an hour)
_SERVING = (InstanceState.READY, InstanceState.WARMING)


@dataclass
class _Instance:
    """One row of the table and the last that its agent said."""

    row: TableInstance
    start_id: str = ""
    generation: int = -1
    cursor: int = 0
    load: InstanceLoad | None = None
    heard_ms: float = -math.inf
    loaded_ms: float = -math.inf
    unreachable: int = 0
    queue_ms: float = math.nan
    in_flight: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a round came to: instance uid by user key, and counts."""

    users: Mapping[str, str]
    weighed: int = 0
    known: int = 0
    moved: int = 0
    refused: int = 0
    deferred: int = 0
    silent: int = 0


@dataclass(frozen=True, kw_only=True)
class ResidentsView:
    """What is shown of it; ages in seconds by instance name, infinite for one that never reported.

    Attributes
    ----------
    refused, refusals
        Overrides that the bound on load did not let: in the last round, and in all rounds together.
    most
        Overrides that are allowed now.
    """

    overrides: int = 0
    users_known: int = 0
    moved: int = 0
    refused: int = 0
    refusals: int = 0
    most: int = 0
    silent: int = 0
    round_s: float = 0.0
    age_s: Mapping[str, float] = field(default_factory=dict)
    reports: Mapping[str, int] = field(default_factory=dict)


class Residents:
    """What is known of hot users and where they are sent. Not for two threads at once.

    Parameters
    ----------
    limits
        Of the overrides: number, time to live, bound.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._book = ResidencyBook(BookRules(forget_ms=self._limits.ttl_ms, speculative_ms=self._limits.speculative_ms))
        self._instances: dict[str, _Instance] = {}
        self._owners: list[str | None] = []
        self._slots: dict[str, int] = {}
        self._overrides: dict[str, Override] = {}
        self._started: dict[str, str] = {}
        self._emptied: set[str] = set()
        self._who: list[tuple[str, str, bool, int]] = []
        self._whole_ms = -math.inf
        self._gone: set[tuple[str, str]] = set()
        self._table_changed = False
        self._last = Chosen(users={})
        self._outcomes: Tally[str] = Tally()
        self._refusals = 0

    # -- what comes in -------------------------------------------------------------------------------------------------------

    def follow(self, rows: Sequence[TableInstance], slots: Sequence[int]) -> None:
        """Take over a table: its instances, and the index of each slot's owner (NOBODY for none)."""
        known, instances = self._instances, dict[str, _Instance]()
        for row in rows:
            instances[row.uid] = instance = known.get(row.uid) or _Instance(row)
            instance.row = row
        self._instances = instances  # in one step: metrics are read on another thread
        owners: list[str | None] = [None if owner == NOBODY else rows[owner].uid for owner in slots]
        self._table_changed = self._table_changed or owners != self._owners
        self._owners = owners
        share = ROWS_PER_OVERRIDE * self._limits.most // max(1, len(rows))
        self._book.bound(max(LEAST_USERS, min(MAX_USERS, share)))
        self._follow_starts()

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self._limits

    def set_limits(self, limits: Limits) -> bool:
        """Go over to other limits, and say whether they are: the next choice weighs all users; `follow` bounds who is known."""
        if limits == self._limits:
            return False
        self._limits = limits
        self._book.remember(forget_ms=limits.ttl_ms, speculative_ms=limits.speculative_ms)
        self._whole_ms = -math.inf
        return True

    def adopt(self, users: Mapping[str, str], *, now_ms: float) -> None:
        """Take the overrides that a gateway holds (user key -> instance uid) for its own, of whatever start of the instances."""
        until_ms = now_ms + self._limits.ttl_ms
        self._overrides = {
            key: Override(user_key=key, instance_uid=uid, saved_ms=0.0, until_ms=until_ms) for key, uid in users.items()
        }
        self._started = dict.fromkeys(users.values(), _ANY_START)

    def cursor_of(self, uid: str) -> int:
        """What to ask the agent of an instance for; 0 for everything."""
        instance = self._instances.get(uid)
        return instance.cursor if instance is not None else 0

    def heard(self, uid: str, report: ResidencyReport, *, now_ms: float) -> bool:
        """Take a report of an instance's agent; say whether it is to be asked again, from the beginning."""
        instance = self._instances.get(uid)
        if instance is None or report.uid != uid:
            self._outcomes["fenced"] += 1
            return False
        if report.start_id != instance.start_id:
            self._outcomes["restarted"] += bool(instance.start_id)
            instance.start_id, instance.generation, instance.cursor = report.start_id, -1, 0
            instance.queue_ms = instance.in_flight = math.nan
            self._follow_starts()
        if report.since != instance.cursor and report.since != 0:
            instance.cursor = 0  # it goes on from what another start had told
            return True
        instance.unreachable = 0 if report.load is None or report.load.reachable else instance.unreachable + 1
        self._average(instance, report.load, now_ms)
        if not instance.unreachable:
            self._take(instance, report, now_ms)
        return False

    def _take(self, instance: _Instance, report: ResidencyReport, now_ms: float) -> None:
        gone = [state.key for state in report.users if state.gone]
        outcome = self._book.report(
            uid=instance.row.uid,
            start_id=report.start_id,
            generation=report.generation,
            cursor=report.cursor,
            users=[_tokens(state) for state in report.users if not state.gone],
            gone=gone,
            now_ms=now_ms,
            whole=report.since == 0,
        )
        self._outcomes[outcome.value.lower()] += 1
        if outcome is Outcome.TAKEN:
            if report.generation != instance.generation and instance.generation >= 0:
                self._emptied.add(instance.row.uid)
            instance.generation, instance.cursor, instance.heard_ms = report.generation, report.cursor, now_ms
            if self._gone:
                self._gone.difference_update((state.key, instance.row.uid) for state in report.users)
            self._gone.update((key, instance.row.uid) for key in gone)
        else:
            instance.cursor = 0

    def missed(self) -> None:
        """Note that an agent did not answer; nothing follows from it but that its users grow old."""
        self._outcomes["missing"] += 1

    def routed(self, user_key: str, uid: str, *, now_ms: float) -> None:
        """Expect a user's state, as large as it is known to be, where a request was just sent; it counts for a moment."""
        self._book.routed(user_key, uid=uid, tokens=self._book.largest(user_key), now_ms=now_ms)

    def _average(self, instance: _Instance, load: InstanceLoad | None, now_ms: float) -> None:
        """Take the load of a report: as it is, but for what jumps from one moment to the next."""
        kept = math.exp(-max(0.0, now_ms - instance.loaded_ms) / LOAD_MEMORY_MS)
        instance.load, instance.loaded_ms = load, now_ms
        if load is None:
            return
        instance.in_flight = _blend(instance.in_flight, _or_nan(load.in_flight), kept)
        instance.queue_ms = _blend(instance.queue_ms, _waiting_ms(load), kept)

    def _follow_starts(self) -> None:
        self._book.follow({uid: instance.start_id for uid, instance in self._instances.items()})

    # -- what comes of it ----------------------------------------------------------------------------------------------------

    def choose(self, *, now_ms: float, down: Collection[str] = ()) -> Chosen:
        """Weigh what is known and return who is sent elsewhere than its slot says.

        A round weighs the users that have state elsewhere than where they are sent. The others have nothing to gain; they are
        weighed too when that is not all there is to it: as instances come, go or restart, when one is above its bound, and now
        and then.

        Parameters
        ----------
        down
            Uids of instances that the gateway itself finds not answering.
        """
        silent = self._book.silent(now_ms)
        facts = [self._facts(instance, down, silent) for instance in self._instances.values()]
        known = self._book.users
        limits = self._limits_for(facts, known)
        whole = self._must_weigh_all(facts, limits, now_ms)
        kept = self._standing()
        rows = self._book.strays(now_ms, home=self._home if whole else self._place_in(kept), also=kept if whole else ())
        weighed = {row.user_key for row in rows}
        apart = {} if whole else {key: each for key, each in kept.items() if key not in weighed}
        plan = plan_overrides(
            rows,
            facts,
            slot_owner=self._home,
            limits=msgspec.structs.replace(limits, most=limits.most - len(apart)),
            now_ms=now_ms,
            previous=[each for key, each in kept.items() if key not in apart],
            silent=silent,
            # Users whose slots have just changed owner are kept at their caches: those do not move.
            allowance=None if self._table_changed else max(LEAST_MOVES, known // MOVES_ONE_IN),
        )
        self._table_changed = False
        self._refusals += plan.refused
        self._overrides = apart | {each.user_key: each for each in plan.overrides}
        self._gone.clear()
        self._started = {uid: each.start_id or self._started.get(uid, "") for uid, each in self._instances.items()}
        if len(self._slots) > 2 * known + 1000:
            self._slots.clear()
        users = {key: each.instance_uid for key, each in self._overrides.items()}
        self._last = Chosen(
            users=self._last.users if users == self._last.users else users,
            weighed=len(rows),
            known=known,
            moved=self._last.moved + plan.moved,
            refused=plan.refused,
            deferred=plan.deferred,
            silent=len(silent),
        )
        return self._last

    def _must_weigh_all(self, facts: Sequence[InstanceFacts], limits: Limits, now_ms: float) -> bool:
        """Whether users that are where their state is have to be looked at too."""
        who = [(fact.uid, fact.start_id, fact.eligible, fact.weight_percent) for fact in facts]
        changed = self._table_changed or who != self._who
        self._who = who
        load = known_or_mean(fact.in_flight for fact in facts)
        weight = np.array([fact.weight_percent if fact.eligible else 0 for fact in facts], dtype=np.float64)
        above = bool(np.any((weight > 0.0) & (load > caps(np.where(weight > 0.0, load, 0.0), weight, limits.bound))))
        if not changed and not above and now_ms - self._whole_ms < min(WHOLE_MS, limits.ttl_ms / 10.0):
            return False
        self._whole_ms = now_ms
        return True

    def _standing(self) -> dict[str, Override]:
        """Overrides whose process is still the one that they were made for, and has not dropped their user."""
        for key, uid in self._gone:
            each = self._overrides.get(key)
            if each is not None and each.instance_uid == uid:
                del self._overrides[key]
        starts = {uid: instance.start_id for uid, instance in self._instances.items()}
        stale = {uid for uid, start in self._started.items() if start != _ANY_START and starts.get(uid) != start}
        stale |= {uid for uid in self._emptied if uid in starts} | (self._started.keys() - starts.keys())
        self._emptied.clear()
        if stale:
            self._overrides = {key: each for key, each in self._overrides.items() if each.instance_uid not in stale}
        return self._overrides

    def _place_in(self, overrides: Mapping[str, Override]) -> Callable[[str], str | None]:
        """Where a user is sent now."""

        def place(user_key: str) -> str | None:
            each = overrides.get(user_key)
            return each.instance_uid if each is not None else self._home(user_key)

        return place

    def view(self, *, now_ms: float) -> ResidentsView:
        """Return what is shown to Prometheus."""
        last = self._last
        return ResidentsView(
            overrides=len(last.users),
            users_known=last.known,
            moved=last.moved,
            refused=last.refused,
            refusals=self._refusals,
            most=self._limits.most,
            silent=last.silent,
            age_s={each.row.name: (now_ms - each.heard_ms) / 1000.0 for each in self._instances.values()},
            reports=dict(self._outcomes),
        )

    def _home(self, user_key: str) -> str | None:
        slot = self._slots.get(user_key)
        if slot is None:
            slot = self._slots[user_key] = slot_of(user_key)
        return self._owners[slot] if self._owners else None

    def _limits_for(self, facts: Iterable[InstanceFacts], known: int) -> Limits:
        """The limits; where nobody says what a user brings along, what is in flight is shared out among all that are known."""
        limits = self._limits
        if limits.load_per_user is None:
            in_flight = sum(fact.in_flight for fact in facts if math.isfinite(fact.in_flight))
            limits = msgspec.structs.replace(limits, load_per_user=min(1.0, in_flight / max(1, known)))
        return limits

    def _facts(self, instance: _Instance, down: Collection[str], silent: Collection[str]) -> InstanceFacts:
        row, load = instance.row, instance.load
        lost = instance.unreachable >= UNREACHABLE_REPORTS or (row.uid in down and row.uid in silent)
        nothing = InstanceLoad(reachable=True)
        load = nothing if load is None or row.uid in silent else load
        return InstanceFacts(
            name=row.name,
            uid=row.uid,
            start_id=instance.start_id,
            ready=row.state in (*_SERVING, InstanceState.DRAINING) and not lost,
            draining=row.state is InstanceState.DRAINING or load.draining,
            weight_percent=row.weight_percent,
            in_flight=math.nan if row.uid in silent else instance.in_flight,
            ms_per_token_recompute=_or_nan(load.ms_per_token),
            ms_per_token_host=_or_nan(load.ms_per_token_host),
            emb_overlap=_or_nan(load.emb_hit_percent) / 100.0,
            ms_per_row=_or_nan(load.ms_per_row),
            rows_per_request=_or_nan(load.rows_per_request),
            refilling=load.refilling,
            queue_ms=instance.queue_ms,
        )


def _tokens(state: UserState) -> Tokens:
    return Tokens(user_key=state.key, hbm=state.tokens_hbm, host=state.tokens_host, ssd=state.tokens_ssd, age_ms=state.age_ms)


def _waiting_ms(load: InstanceLoad) -> float:
    """Work in the queue; not known of one in which nothing gets done, which is no reason to take it for the shortest."""
    return _or_nan(load.queue) * _or_nan(load.service_ms) if load.queue else _or_nan(load.queue)


def _blend(before: float, now: float, kept: float) -> float:
    """The average with a share `kept` of what was before; what is not known now changes nothing."""
    if math.isnan(now):
        return before
    return now if math.isnan(before) else kept * before + (1.0 - kept) * now


def _or_nan(value: float | None) -> float:
    """A number of a report; what nobody could mean is not known, as it would drown what all others say."""
    return math.nan if value is None or value > _MOST else float(value)
