"""One simulation: a log through a fleet at a level of detail, with whoever chooses the splits and who serves whom.

Instances do not see each other, so each runs from one decision of the split policy to the next by itself; without decisions it
runs through. Under a routing policy all run from cut to cut (`routed`). The same log, configuration and seed give the same
result, whatever the order of simulation.
"""

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from policies.preinference.trigger import TriggerRules
from simulator.fleet import state
from simulator.fleet.ahead import Ahead, with_signals
from simulator.fleet.build import Instance, Placement, WarmUsers, constants_of, instance_of, placed, requests_of
from simulator.fleet.columns import scatter, scatter_lower
from simulator.fleet.config import FleetConfig, Level
from simulator.fleet.laws import law_tables
from simulator.fleet.observe import Watched, asked_of, observe
from simulator.fleet.policies import ApartSplit, FixedSplit, FleetObservation, SplitPolicy, rows_shown
from simulator.fleet.processes import in_processes, shared
from simulator.fleet.result import FleetResult
from simulator.fleet.routed import Routed, checked_lives
from simulator.fleet.routing import Life, RoutingPolicy
from simulator.fleet.running import Progress, Running, empty_columns
from simulator.fleet.service import fleet_floats
from simulator.fleet.state import Requests
from simulator.replay import even_slots
from simulator.request_log import RequestLog

WINDOWS = 8
MOST_STEPS = 1_000_000
MOST_ROWS = (1 << 31) - 1


def simulate(
    log: RequestLog,
    config: FleetConfig,
    *,
    level: Level = Level.SAMPLED,
    split: SplitPolicy | None = None,
    routing: Sequence[int] | RoutingPolicy | None = None,
    lives: Sequence[Life] | None = None,
    seed: int,
    warm: WarmUsers | None = None,
    measured_from_ms: float = 0.0,
    window_ms: float | None = None,
    pre_infer: TriggerRules | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> FleetResult:
    """Serve a log with a fleet in virtual time.

    Parameters
    ----------
    log : RequestLog
    config : FleetConfig
    level : Level
    split : SplitPolicy, optional
        The configured split is held when absent.
    routing : sequence of int or RoutingPolicy, optional
        Owner of each of 4096 slots; dealt out in turn when absent (`rendezvous_owners` places them as the routing loop does). A
        policy decides as time goes by (`TableRouting` is the routing loop); users that it moves leave their state behind.
    lives : sequence of Life, optional
        When each instance is there, under a routing policy; all of them always when absent.
    seed : int
        Of the rows drawn and of the warm start.
    warm : WarmUsers, optional
        The KV caches start empty when absent; EMB caches always start in the steady state of their first law.
    measured_from_ms : float
        Requests before it are left out of the summary.
    window_ms : float, optional
        Length of the windows of the series under a fixed split; an eighth of the log when absent. A policy's interval otherwise.
    pre_infer : TriggerRules, optional
        Computes prefixes ahead where early signals and these thresholds allow; signals are ignored when absent.
    workers : int
        Processes to share the instances out to, under one table, where no prefix is computed ahead and a split policy decides
        for each instance apart (`ApartSplit`).
    progress : callable, optional
        Called with (requests served, requests in all) now and then.

    Raises
    ------
    ProcessLost
        When one of several processes was ended from outside.
    ValueError
        The message begins with the name of what is wrong.
    """
    policy = split or FixedSplit()
    if not policy.interval_ms > 0.0:
        raise ValueError(f"split: an interval of {policy.interval_ms} ms is not positive")
    if not (math.isfinite(measured_from_ms) and measured_from_ms >= 0.0):
        raise ValueError(f"measured_from_ms: {measured_from_ms} must be finite and not negative")
    if workers < 1:
        raise ValueError(f"workers: {workers} must be at least 1")
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed: {seed} lies outside 0..2**63")
    most_rows = (int(log.history_tokens.max()) + int(log.candidates.max())) * log.rows_per_token
    if most_rows > MOST_ROWS:
        raise ValueError(f"rows_per_token: {log.rows_per_token} makes up to {most_rows} rows in one request, at most {MOST_ROWS}")
    if pre_infer is not None and config.batching is not None:
        raise ValueError("batching: prefixes computed ahead are served one by one")
    router = cast(RoutingPolicy, routing) if hasattr(routing, "route") else None
    if router is None and lives is not None:
        raise ValueError("lives: instances come and go under a routing policy, not under a table that stands still")
    if router is not None and pre_infer is not None:
        raise ValueError("routing: prefixes are computed ahead under a table that stands still")
    level = Level(level)
    watched = math.isfinite(policy.interval_ms)
    step_ms = policy.interval_ms if watched else window_ms or max(log.duration_ms / WINDOWS, 1.0)
    ends = _ends(log, step_ms)
    tables = law_tables(log.laws, level, head=not watched)
    common: dict[str, Any] = {
        "log": log,
        "config": config,
        "level": level,
        "seed": seed,
        "tables": tables,
        "physics": fleet_floats(config),
        "fleet": constants_of(config, log, tables, level, seen_one_in=rows_shown(policy) if watched else None),
        "ends": ends,
        "progress": progress or _silent,
    }
    if router is not None:
        there = checked_lives(lives, config)
        routed = Routed(**common, **_counters(ends, config, np.zeros), jobs=len(log), policy=router, lives=there)
        routed.run(policy, warm=warm)
        return routed.outcome(window_ms=step_ms, measured_from_ms=measured_from_ms)
    events = with_signals(log) if pre_infer is not None and log.signal_lead_ms.any() else None
    served = log if events is None else events.log
    owners = even_slots(config.instances) if routing is None else cast(Sequence[int], routing)
    placement = placed(served, owners, instances=config.instances, warm=warm)
    together = events is not None or (watched and not getattr(policy, "apart", False))
    one_by_one = not together or (events is None and getattr(policy, "one_by_one", False))
    workers = 1 if together else min(workers, config.instances)
    new: Callable[..., NDArray[Any]] = np.zeros if workers == 1 else shared
    run = _Placed(
        **common,
        **_counters(ends, config, new),
        jobs=len(served),
        placement=placement,
        requests=requests_of(served, placement, new=new),
        ahead=None if events is None or pre_infer is None else Ahead(events, placement.instance, pre_infer, config.instances),
    )
    if not watched:
        run.straight(workers)
    elif workers == 1 and one_by_one:
        run.one_by_one(policy)
    elif workers == 1:
        run.steered(policy, range(config.instances))
    else:
        run.apart(cast(ApartSplit, policy), workers)
    return run.result(window_ms=step_ms, measured_from_ms=measured_from_ms)


def _counters(ends: NDArray[np.float64], config: FleetConfig, new: Callable[..., NDArray[Any]]) -> dict[str, Any]:
    """Return what a run writes to by window and instance."""
    return {
        "series": new((3, len(ends), config.instances), dtype=np.int64),
        "counted": new((config.instances, state.INTS), dtype=np.int64),
        "filled_at_ms": new(config.instances),
        "served": new(config.instances, dtype=np.int64),
    }


def _ends(log: RequestLog, step_ms: float) -> NDArray[np.float64]:
    """Return the ends of the steps that cover the log; the last one lies behind its last request."""
    if not (step_ms > 0.0 and log.arrival_ms[-1] / step_ms < MOST_STEPS):
        raise ValueError(f"window_ms: {step_ms} ms cuts the log into more than {MOST_STEPS} steps")
    first = math.floor(log.arrival_ms[0] / step_ms)
    last = math.floor(log.arrival_ms[-1] / step_ms)
    return np.arange(first + 1, last + 2, dtype=np.float64) * step_ms


def _silent(served: int, of: int) -> None:
    pass


@dataclass(kw_only=True)
class _Placed(Running):
    """A simulation in which every request has its instance before the first one is served."""

    placement: Placement
    requests: Requests
    ahead: Ahead | None = None

    def straight(self, workers: int) -> None:
        """Run each instance through; only one is in memory at a time, or one a process."""
        numbers = range(self.config.instances)
        # The first one here: it compiles what has to be before processes begin.
        alone = numbers if workers == 1 else numbers[:1]
        for number in alone:
            self._through(number)
            self.tell()
        if len(alone) < len(numbers):
            in_processes(self._through, numbers[len(alone) :], workers=workers, look=self.tell)

    def _through(self, number: int) -> None:
        instance = self._begin(number)
        stops = self._stops(instance)
        for step, stop in enumerate(stops[1:]):
            self._serve(instance, int(stops[step]), int(stop), step)
            self.note(instance, step)
        self.end(instance)

    def apart(self, policy: ApartSplit, workers: int) -> None:
        """Run each instance from one decision to the next, in several processes that each ask a copy of the policy."""
        with TemporaryDirectory() as folder:

            def work(number: int) -> None:
                policy.notes()
                self.moves.clear()
                self.steered(policy, [number], quiet=True)
                (Path(folder) / str(number)).write_bytes(pickle.dumps((self.moves, policy.notes())))

            numbers = range(self.config.instances)
            # The first one here: it compiles what has to be before processes begin.
            self.steered(policy, numbers[:1])
            in_processes(work, numbers[1:], workers=workers, look=self.tell)
            for number in numbers[1:]:
                # Written by a process of our own, a moment ago, into a folder that nobody else may enter.
                moves, notes = pickle.loads((Path(folder) / str(number)).read_bytes())
                self.moves += moves
                policy.join(notes)
        self._sort_moves()

    def one_by_one(self, policy: SplitPolicy) -> None:
        """Run each instance from its first decision to its last: its state stays in the processor's caches."""
        for number in range(self.config.instances):
            self.steered(policy, [number])
        self._sort_moves()

    def _sort_moves(self) -> None:
        self.moves.sort(key=lambda move: (move.at_ms, move.instance))

    def steered(self, policy: SplitPolicy, numbers: Sequence[int], *, quiet: bool = False) -> None:
        """Run some instances from one decision to the next."""
        instances = [self._begin(number) for number in numbers]
        stops = [self._stops(instance) for instance in instances]
        planned: Callable[[float, int], list[int | None]] | None = getattr(policy, "planned", None)
        look = self._looking(instances, stops, policy.interval_ms)
        for step, end in enumerate(self.ends.tolist()):
            for instance, places in zip(instances, stops, strict=True):
                self._serve(instance, int(places[step]), int(places[step + 1]), step)
                self.note(instance, step)
            if not quiet:
                self.tell()
            if step + 1 < len(self.ends):
                wanted = policy.decide(end, look(step)) if planned is None else planned(end, len(instances))
                for instance, places, emb_bytes in zip(instances, stops, wanted, strict=True):
                    self.move(instance, int(places[step + 1]), emb_bytes, end)
        for instance in instances:
            self.end(instance)

    def _looking(
        self, instances: Sequence[Instance], stops: Sequence[Sequence[int]], interval_ms: float
    ) -> Callable[[int], list[FleetObservation]]:
        """Return what observes all of some instances over a step, one step after the other."""
        watched = Watched(log=self.log, config=self.config, tables=self.tables, fleet=self.fleet)
        asked = [asked_of(watched, instance) for instance in instances]
        before = [(instance.ints.copy(), instance.floats.copy()) for instance in instances]

        def look(step: int) -> list[FleetObservation]:
            seen = [
                observe(
                    watched, instance, before[number], slice(places[step], places[step + 1]), interval_ms=interval_ms, asked=mine
                )
                for number, (instance, places, mine) in enumerate(zip(instances, stops, asked, strict=True))
            ]
            before[:] = [(instance.ints.copy(), instance.floats.copy()) for instance in instances]
            return seen

        return look

    def result(self, *, window_ms: float, measured_from_ms: float) -> FleetResult:
        """Put the outcome together."""
        columns = empty_columns(self.jobs)
        main = [columns[name] for name in ("latency_ms", "service_ms", "kv_hit_tokens", "rows_asked", "rows_missed")]
        first, instance = self.placement.first[:-1], self.placement.instance
        scatter(first.copy(), instance, self.requests, *main)
        if self.config.host_bytes:
            scatter_lower(first.copy(), instance, self.requests, columns["host_hit_tokens"], columns["ssd_hit_tokens"])
        if self.ahead is not None:
            chosen = self.ahead.events.is_request
            columns, instance = {name: column[chosen] for name, column in columns.items()}, instance[chosen]
        counts = {} if self.ahead is None else dict(self.ahead.counts(self.counted.sum(axis=0)))
        return self.made(columns, instance=instance, counts=counts, window_ms=window_ms, measured_from_ms=measured_from_ms)

    def _begin(self, number: int) -> Instance:
        return instance_of(
            number,
            config=self.config,
            requests=self.requests,
            placement=self.placement,
            tables=self.tables,
            fleet=self.fleet,
            seed=self.seed,
        )

    def _stops(self, instance: Instance) -> list[int]:
        """Return where in the instance's order each step begins, and where the last one ends."""
        return [0, *np.searchsorted(instance.requests.arrival_ms, self.ends, side="left").tolist()]

    def _serve(self, instance: Instance, first: int, stop: int, step: int) -> None:
        if self.config.batching is not None:
            self.run_together(instance, first, stop, self.until_ms(step))
        elif self.ahead is None:
            self.run_alone(instance, first, stop)
        else:
            self.ahead.serve(instance, first, stop, run=self.run_alone, physics=self.physics, fleet=self.fleet)
        self.served[instance.number] += stop - first
