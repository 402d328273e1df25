"""Prefixes computed ahead of their ranking requests, admitted by the real trigger of `policies.preinference`.

Each early signal becomes an event of its own beside the requests: a request without candidates, which is served when the trigger
admits it and skipped otherwise. Single flight, slots, memory and rate are the trigger's; used, late and wasted are counted by the
caches, as the reference engine does.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policies.measurement import Fresh
from policies.preinference.flights import Flights
from policies.preinference.trigger import Signal, TriggerRules, Verdict
from simulator.fleet import state
from simulator.fleet.build import Instance
from simulator.fleet.service import compute_ms, gather_ms
from simulator.fleet.state import Requests
from simulator.fleet.users import HBM, mark_prefix
from simulator.request_log import RequestLog

_COLUMNS = ("arrival_ms", "user", "history_tokens", "candidates", "signal_lead_ms", "law")
_OUTCOME = Requests._fields.index("latency_ms")


@dataclass(frozen=True, kw_only=True)
class Events:
    """Requests and signals in order of time; `is_request` says which are requests, `candidates` what a signal announces."""

    log: RequestLog
    is_request: NDArray[np.bool_]
    candidates: NDArray[np.int32]


def with_signals(log: RequestLog) -> Events:
    """Return the requests of a log and, before those with a lead, their signals."""
    announced = np.flatnonzero(log.signal_lead_ms > 0.0)
    at_ms = np.maximum(log.arrival_ms[announced] - log.signal_lead_ms[announced], 0.0)
    times = np.concatenate((at_ms, log.arrival_ms))
    order = np.argsort(times, kind="stable")
    source = np.concatenate((announced, np.arange(len(log))))[order]
    is_request = order >= len(announced)
    columns = {name: getattr(log, name)[source] for name in _COLUMNS}
    candidates = columns["candidates"]
    columns |= {"arrival_ms": times[order], "candidates": np.where(is_request, candidates, 0).astype(np.int32)}
    return Events(log=replace(log, **columns), is_request=is_request, candidates=candidates)


class Trigger:
    """Judges the signals of one instance.

    Parameters
    ----------
    rules : TriggerRules
        Thresholds in force on every instance.
    """

    def __init__(self, rules: TriggerRules) -> None:
        self.verdicts: Counter[Verdict] = Counter()
        self.busy_ms = 0.0
        self._rules = rules
        self._flights = Flights()
        self._flying: set[int] = set()
        self._computing: list[tuple[float, int]] = []

    def ranked(self, users: NDArray[np.int32]) -> None:
        """Note whose ranking requests have come since the last signal."""
        if self._flying:
            for user in users.tolist():
                if user in self._flying:
                    self._flying.discard(user)
                    self._flights.ended(user)

    def admits(
        self,
        instance: Instance,
        place: int,
        *,
        candidates: int,
        lead_ms: float,
        physics: NDArray[np.float64],
        fleet: NDArray[np.int64],
    ) -> bool:
        """Judge the signal at one place of the instance's order."""
        requests, ints, floats = instance.requests, instance.ints, instance.floats
        now_ms, user, history = float(requests.arrival_ms[place]), int(requests.user[place]), int(requests.history[place])
        while self._computing and self._computing[0][0] <= now_ms:
            self._flights.computed(heapq.heappop(self._computing)[1])
        record = instance.users.record[user]
        cached = min(int(record[state.TOKENS]), history) if record[state.TIER] == HBM else 0
        missed = int((history - cached) * fleet[state.ROWS_PER_TOKEN] * floats[state.RATIO])
        ahead_ms = compute_ms(physics, history, 0, cached) + gather_ms(physics, int(fleet[state.ROW_BYTES]), missed, 0.0)
        inline_ms = compute_ms(physics, history, candidates, cached) + gather_ms(
            physics, int(fleet[state.ROW_BYTES]), missed, 0.0
        )
        pages = -(-history // int(fleet[state.PAGE_TOKENS]))
        signal = Signal(
            tokens=history - cached,
            bytes=pages * int(fleet[state.PAGE_BYTES]),
            inline_ms=Fresh(max(0.0, float(floats[state.FREE_AT]) - now_ms) + inline_ms),
            compute_ms=ahead_ms,
            lead_ms=lead_ms,
            resident=cached >= history,
        )
        live = Fresh(float(ints[state.PREFIX_BYTES]))
        verdict = self._flights.judge(user, signal, rules=self._rules, reported_live_bytes=live, now_ms=now_ms)
        self.verdicts[verdict] += 1
        return verdict is Verdict.ADMIT

    def computed(self, instance: Instance, place: int, fleet: NDArray[np.int64]) -> None:
        """Take note of a prefix that was just put to work; it is no ranking request."""
        requests = instance.requests
        user = int(requests.user[place])
        ready_ms = float(requests.arrival_ms[place] + requests.latency_ms[place])
        mark_prefix(fleet, instance.ints, instance.users, user, ready_ms)
        heapq.heappush(self._computing, (ready_ms, user))
        self._flying.add(user)
        self.busy_ms += float(requests.service_ms[place])
        instance.ints[state.REQUESTS] -= 1


class Ahead:
    """Signals and triggers of a fleet."""

    def __init__(self, events: Events, instance: NDArray[np.uint16], rules: TriggerRules, instances: int) -> None:
        self.events = events
        self._triggers = [Trigger(rules) for _ in range(instances)]
        self._jobs = [np.flatnonzero(instance == number) for number in range(instances)]
        self._signals = [np.flatnonzero(~events.is_request[jobs]) for jobs in self._jobs]

    def serve(
        self,
        instance: Instance,
        first: int,
        stop: int,
        *,
        run: Callable[[Instance, int, int], None],
        physics: NDArray[np.float64],
        fleet: NDArray[np.int64],
    ) -> None:
        """Serve the events at the places first..stop-1 of an instance: `run` those between signals, and the signals admitted."""
        trigger, jobs, signals = self._triggers[instance.number], self._jobs[instance.number], self._signals[instance.number]
        begin, end = np.searchsorted(signals, [first, stop]).tolist()
        for place in signals[begin:end].tolist():
            run(instance, first, place)
            trigger.ranked(instance.requests.user[first:place])
            job = int(jobs[place])
            lead_ms, candidates = float(self.events.log.signal_lead_ms[job]), int(self.events.candidates[job])
            if trigger.admits(instance, place, candidates=candidates, lead_ms=lead_ms, physics=physics, fleet=fleet):
                run(instance, place, place + 1)
                trigger.computed(instance, place, fleet)
            else:
                skip(instance.requests, place)
            first = place + 1
        run(instance, first, stop)
        trigger.ranked(instance.requests.user[first:stop])

    def counts(self, total: NDArray[np.int64]) -> dict[str, int]:
        """Return what became of signals and prefixes, from the counters of all instances together."""
        verdicts: Counter[Verdict] = sum((trigger.verdicts for trigger in self._triggers), Counter())
        return {
            "signals": verdicts.total(),
            "preInferAccepted": verdicts[Verdict.ADMIT],
            "preInferUsed": int(total[state.USED]),
            "preInferLate": int(total[state.LATE]),
            "preInferWasted": int(total[state.WASTED]),
            "preInferBusyMs": round(sum(trigger.busy_ms for trigger in self._triggers)),
            **{f"signals{verdict.value}": count for verdict, count in sorted(verdicts.items()) if verdict is not Verdict.ADMIT},
        }


def skip(requests: Requests, place: int) -> None:
    """Let the event at one place have no outcome."""
    for column in requests[_OUTCOME:]:
        column[place] = 0
