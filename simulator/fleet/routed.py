"""A fleet whose instances come and go and whose users move: who serves a request is decided as time goes by.

Time is cut where anything may change: where a routing policy is asked, where instances join, drain and die, at the ends of
windows. Between two cuts every instance serves its share by itself. What an instance had in hand when it dies begins anew
elsewhere at that time, and what is sent to it until routing notices goes elsewhere at once; both are counted as retried. Moved
users leave their state behind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.fleet import state
from simulator.fleet.build import Instance, WarmUsers, empty_requests, fresh_instance
from simulator.fleet.config import FleetConfig
from simulator.fleet.observe import Watched, observe
from simulator.fleet.policies import SplitPolicy
from simulator.fleet.result import FleetResult
from simulator.fleet.routing import Arrivals, HeldUsers, Life, RoutingObservation, RoutingPolicy
from simulator.fleet.running import Running, empty_columns
from simulator.fleet.warm import warm_users

NOBODY = LOST = -1
MOST_LOOKS = 1_000_000


@dataclass(kw_only=True)
class Host:
    """An instance that takes requests as they come: its users are numbered in the order in which it meets them.

    `jobs` has the place in the log of each of its `count` requests, LOST for what it had in hand when it died; `noted` of them it
    was told to serve.
    """

    instance: Instance
    local: NDArray[np.int32]
    jobs: NDArray[np.int64]
    users: int = 0
    count: int = 0
    noted: int = 0

    def numbers(self, users: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Return the numbers that users have here, new ones included."""
        new = np.unique(users[self.local[users] < 0])
        self.local[new] = np.arange(self.users, self.users + len(new))
        self.users += len(new)
        return self.local[users]

    def held(self) -> HeldUsers:
        """Return the users whose state is here."""
        users = np.flatnonzero(self.local >= 0)
        record = self.instance.users.record[self.local[users]]
        there = record[:, state.TIER] > 0
        mine = record[there]
        return HeldUsers(users[there].astype(np.uint32), mine[:, state.TOKENS], mine[:, state.TIER])


@dataclass(kw_only=True)
class Routed(Running):
    """A simulation with a routing policy; `lives` says when each instance is there."""

    policy: RoutingPolicy
    lives: Sequence[Life]
    hosts: list[Host] = field(default_factory=list)
    retried: int = 0

    def run(self, split: SplitPolicy, *, warm: WarmUsers | None) -> None:
        """Serve the log."""
        first_law = int(self.log.law[0])
        for number, life in enumerate(self.lives):
            instance = fresh_instance(
                number,
                config=self.config,
                requests=empty_requests(self.jobs, new=np.zeros),
                users=self.log.users,
                law=first_law,
                tables=self.tables,
                fleet=self.fleet,
                seed=self.seed,
                cold=life.joins_ms > 0.0,
            )
            unknown = np.full(self.log.users, NOBODY, dtype=np.int32)
            self.hosts.append(Host(instance=instance, local=unknown, jobs=np.zeros(self.jobs, dtype=np.int64)))
        watched = math.isfinite(split.interval_ms)
        seen = Watched(log=self.log, config=self.config, tables=self.tables, fleet=self.fleet)
        before = [host.instance.ints.copy() for host in self.hosts]
        last = [(host.instance.ints.copy(), host.instance.floats.copy()) for host in self.hosts]
        looks, cuts = self._looks(), self._cuts()
        owner = np.full(self.jobs, NOBODY, dtype=np.int64)
        if warm is not None and len(warm.user):
            self._warm(warm)
        start_ms, served, step = 0.0, 0, 0
        # A look at the fleet comes before the requests of its time.
        for end_ms in [*cuts.tolist(), math.inf]:
            if start_ms in looks:
                stop = int(np.searchsorted(self.log.arrival_ms, looks[start_ms], side="left"))
                owner[served:stop] = self._asked(start_ms, slice(served, stop), before)
                before = [host.instance.ints.copy() for host in self.hosts]
            stop = int(np.searchsorted(self.log.arrival_ms, end_ms, side="left"))
            self._give(np.arange(served, stop), owner[served:stop], self.log.arrival_ms[served:stop], end_ms)
            served = stop
            for number, life in enumerate(self.lives):
                if life.dies_ms == end_ms:
                    self._lose(number, end_ms)
            while step < len(self.ends) and self.ends[step] <= end_ms:
                for host in self.hosts:
                    self.note(host.instance, step)
                if watched and step + 1 < len(self.ends):
                    last = self._steer(split, seen, last, float(self.ends[step]))
                step += 1
            self.tell()
            start_ms = end_ms
        for host in self.hosts:
            self.end(host.instance)

    def outcome(self, *, window_ms: float, measured_from_ms: float) -> FleetResult:
        """Put the result together."""
        columns, instance = empty_columns(self.jobs), np.zeros(self.jobs, dtype=np.uint16)
        for host in self.hosts:
            requests, part = host.instance.requests, slice(0, host.count)
            done = host.jobs[part] != LOST
            jobs = host.jobs[part][done]
            instance[jobs] = host.instance.number
            begun_later = requests.arrival_ms[part][done] - self.log.arrival_ms[jobs]
            columns["latency_ms"][jobs] = requests.latency_ms[part][done] + begun_later
            for name, column in _OUTCOME.items():
                columns[name][jobs] = getattr(requests, column)[part][done]
        counts = self._counts(instance, columns)
        return self.made(columns, instance=instance, counts=counts, window_ms=window_ms, measured_from_ms=measured_from_ms)

    def _looks(self) -> dict[float, float]:
        """Return when the policy is asked, and until when each answer counts."""
        last = float(self.log.arrival_ms[-1])
        times = {0.0}
        if math.isfinite(self.policy.interval_ms):
            if last / self.policy.interval_ms > MOST_LOOKS:
                raise ValueError(f"routing: an interval of {self.policy.interval_ms} ms means more than {MOST_LOOKS} looks")
            times |= set((np.arange(1, int(last / self.policy.interval_ms) + 1) * self.policy.interval_ms).tolist())
        for life in self.lives:
            times |= {at for at in (life.joins_ms, life.drains_ms, life.dies_ms + life.noticed_ms) if at <= last}
        begins = sorted(times)
        return dict(zip(begins, [*begins[1:], math.inf], strict=True))

    def _cuts(self) -> NDArray[np.float64]:
        """Return when anything may change, after the start."""
        last = float(self.log.arrival_ms[-1])
        times = set(self._looks()) | set(self.ends.tolist()) | {life.dies_ms for life in self.lives}
        return np.array(sorted(time for time in times if 0.0 < time <= max(last, float(self.ends[-1]))))

    def _asked(self, now_ms: float, places: slice, before: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Ask the policy who serves the requests at some places of the log."""
        log = self.log
        seen = [self._observation(host, old, now_ms) for host, old in zip(self.hosts, before, strict=True)]
        users = log.user[places]
        arrivals = Arrivals(
            arrival_ms=log.arrival_ms[places],
            user=users,
            slot=log.user_slots[users],
            history_tokens=log.history_tokens[places],
        )
        return self._checked(self.policy.route(now_ms, seen, arrivals), len(arrivals))

    def _checked(self, owner: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        out = np.asarray(owner, dtype=np.int64)
        if out.shape != (count,) or (count and (out.min() < NOBODY or out.max() >= len(self.lives))):
            raise ValueError(f"routing: {count} numbers of instances within 0..{len(self.lives) - 1} are needed, -1 for nobody")
        return out

    def _observation(self, host: Host, before: NDArray[np.int64], now_ms: float) -> RoutingObservation:
        number = host.instance.number
        more = host.instance.ints - before
        return RoutingObservation(
            instance=number,
            presence=self.lives[number].seen(now_ms),
            age_ms=max(0.0, now_ms - self.lives[number].joins_ms),
            requests=int(more[state.REQUESTS]),
            kv_tokens_asked=int(more[state.KV_ASKED]),
            kv_tokens_hit=int(more[state.KV_HIT] + more[state.LOWER_HIT]),
            waiting_ms=max(0.0, float(host.instance.floats[state.FREE_AT]) - now_ms),
            rows_asked=int(more[state.ROWS_ASKED]),
            rows_missed=int(more[state.ROWS_MISSED]),
            held=host.held() if getattr(self.policy, "sees_users", False) else None,
        )

    def _warm(self, warm: WarmUsers) -> None:
        """Put users where the policy would have had them before the first request."""
        if warm.user.max() >= self.log.users or warm.tokens.min() < 0 or len(warm.user) != len(warm.tokens):
            raise ValueError(f"warm: users below {self.log.users} with tokens from 0 are needed")
        seen = [self._observation(host, host.instance.ints, 0.0) for host in self.hosts]
        arrivals = Arrivals(
            arrival_ms=np.zeros(len(warm.user)),
            user=warm.user,
            slot=self.log.user_slots[warm.user],
            history_tokens=warm.tokens,
        )
        owner = self._checked(self.policy.route(0.0, seen, arrivals), len(arrivals))
        for number, host in enumerate(self.hosts):
            mine = owner == number
            one = host.instance
            warm_users(self.fleet, one.ints, one.users, host.numbers(warm.user[mine]), warm.tokens[mine])

    def _give(self, jobs: NDArray[np.int64], owner: NDArray[np.int64], arrival_ms: NDArray[np.float64], until_ms: float) -> None:
        """Let requests arrive at their instances, or at others where those do not serve, and everybody run until a time."""
        if len(jobs):
            alive = np.array([life.serves(float(arrival_ms[0])) for life in self.lives])
            there = (owner >= 0) & alive[owner]
            if not there.all():
                # The next one that lives, from the one that the slot names on: anybody can know it.
                able = np.flatnonzero(alive)
                lost = ~there
                owner = owner.copy()
                owner[lost] = able[self.log.user_slots[self.log.user[jobs[lost]]].astype(np.int64) % len(able)]
                self.retried += int(lost.sum())
        for number, host in enumerate(self.hosts):
            mine = owner == number
            self._arrive(host, jobs[mine], arrival_ms[mine])
            # One that has died does not run on.
            if self.lives[number].dies_ms >= until_ms or host.noted < host.count:
                self._serve(host, until_ms)

    def _arrive(self, host: Host, jobs: NDArray[np.int64], arrival_ms: NDArray[np.float64]) -> None:
        part, log, requests = slice(host.count, host.count + len(jobs)), self.log, host.instance.requests
        host.jobs[part] = jobs
        requests.arrival_ms[part] = arrival_ms
        requests.user[part] = host.numbers(log.user[jobs])
        requests.history[part] = log.history_tokens[jobs]
        requests.candidates[part] = log.candidates[jobs]
        requests.law[part] = log.law[jobs]
        host.count += len(jobs)

    def _serve(self, host: Host, until_ms: float) -> None:
        if self.config.batching is None:
            self.run_alone(host.instance, host.noted, host.count)
        else:
            self.run_together(host.instance, host.noted, host.count, until_ms)
        self.served[host.instance.number] += host.count - host.noted
        host.noted = host.count

    def _lose(self, number: int, now_ms: float) -> None:
        """Let begin anew elsewhere what a dying instance has in hand."""
        host = self.hosts[number]
        requests, part = host.instance.requests, slice(0, host.count)
        unfinished = requests.arrival_ms[part] + requests.latency_ms[part] > now_ms
        if self.config.batching is not None:
            unfinished |= requests.latency_ms[part] == 0.0
        jobs = host.jobs[part][unfinished]
        host.jobs[part][unfinished] = LOST
        self.served[number] -= len(jobs)
        if len(jobs):
            self._give(jobs, np.full(len(jobs), NOBODY), np.full(len(jobs), now_ms), now_ms)

    def _steer(
        self,
        split: SplitPolicy,
        watched: Watched,
        last: list[tuple[NDArray[np.int64], NDArray[np.float64]]],
        now_ms: float,
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Let the split policy decide for those that are there; return the counters of now."""
        there = [host for host in self.hosts if self.lives[host.instance.number].serves(now_ms)]
        seen = []
        planned = getattr(split, "planned", None)
        for host in there if planned is None else ():
            arrival_ms = host.instance.requests.arrival_ms[: host.count]
            first = int(np.searchsorted(arrival_ms, now_ms - split.interval_ms, side="left"))
            places = slice(first, host.count)
            seen.append(observe(watched, host.instance, last[host.instance.number], places, interval_ms=split.interval_ms))
        copies = [(host.instance.ints.copy(), host.instance.floats.copy()) for host in self.hosts]
        wanted = split.decide(now_ms, seen) if planned is None else planned(now_ms, len(there))
        for host, emb_bytes in zip(there, wanted, strict=True):
            self.move(host.instance, host.count, emb_bytes, now_ms)
        return copies

    def _counts(self, instance: NDArray[np.uint16], columns: dict[str, NDArray[Any]]) -> dict[str, int]:
        """Count who moved and what was not found afterwards, request by request of each user."""
        log = self.log
        order = np.argsort(log.user, kind="stable")
        user, served = log.user[order], instance[order]
        moved = np.zeros(self.jobs, dtype=np.bool_)
        moved[order[1:]] = (user[1:] == user[:-1]) & (served[1:] != served[:-1])
        found = columns["kv_hit_tokens"] + columns["host_hit_tokens"] + columns["ssd_hit_tokens"]
        missed = log.history_tokens - np.minimum(found, log.history_tokens)
        return {
            "requestsMoved": int(moved.sum()),
            "usersMoved": len(np.unique(log.user[moved])),
            "requestsMissedAfterMoves": int((moved & (found == 0) & (log.history_tokens > 0)).sum()),
            "tokensMissedAfterMoves": int(missed[moved].sum(dtype=np.int64)),
            "requestsRetried": self.retried,
        }


def checked_lives(lives: Sequence[Life] | None, config: FleetConfig) -> Sequence[Life]:
    """Return the lives of all instances.

    Raises
    ------
    ValueError
        When there are not as many, or when at some time nobody would be there to serve.
    """
    found = [Life()] * config.instances if lives is None else list(lives)
    if len(found) != config.instances:
        raise ValueError(f"lives: {len(found)} of them for {config.instances} instances")
    for at in [0.0, *(life.dies_ms for life in found if math.isfinite(life.dies_ms))]:
        if not any(life.serves(at) for life in found):
            raise ValueError(f"lives: at {at} ms no instance is there to serve")
    return found


_OUTCOME = {
    "service_ms": "service_ms",
    "kv_hit_tokens": "kv_hit",
    "host_hit_tokens": "host_hit",
    "ssd_hit_tokens": "ssd_hit",
    "rows_asked": "rows_asked",
    "rows_missed": "rows_missed",
}
