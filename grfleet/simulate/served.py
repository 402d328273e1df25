"""How instances serve, and who serves whom, where the command line says it: no manifest has it, or nobody has applied it yet.

Requests that run together, a bound on what waits for the link to the host, a routing that decides as time goes by, and instances
that come and go. The run of a policy and that of its baseline have all of it in common.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crds.routing_policy import RoutingPolicySpec
from crds.types import parse_quantity
from grfleet.durations import length_ms
from grfleet.simulate.errors import BadInput
from grfleet.simulate.options import RoutingName
from grfleet.simulate.translate import STANDS_STILL, Fleet
from policies.routing.table import ChurnBudget
from policies.routing.types import LoadBound
from simulator.fleet.config import FleetConfig
from simulator.fleet.routed import checked_lives
from simulator.fleet.routing import Life, RoutingPolicy, TableRouting
from simulator.fleet.routings.choices import BoundedHash, LeastLoaded, RandomRouting, Scored, Terms
from simulator.fleet.routings.overrides import OverrideRouting
from simulator.fleet.routings.work import work_of
from simulator.physics.batching import BatchRules
from simulator.request_log import RequestLog

_BATCHES = re.compile(r"([0-9]{1,4}):([^:]+)")
_LIFE = re.compile(r"([^:=]{1,253}):([^:]+)")
_OPTIONS = {
    "offload_queue_bytes": "--offload-queue",
    "ttl_ms": "--ttl",
    "emb_version_ms": "--emb-versions",
    "max_emb_lag": "--emb-versions",
}
_VERSIONS = re.compile(r"([^:]+)(?::([0-9]{1,6}))?")
_TIMES = {"joins": "joins_ms", "drains": "drains_ms", "dies": "dies_ms", "noticed": "noticed_ms"}


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the command line says of serving; nothing by default.

    Attributes
    ----------
    batching : BatchRules, optional
    offload_queue_bytes : int, optional
        Of each instance; without a bound when absent.
    ttl_ms : float, optional
        State lives as long as there is room for it when absent.
    emb_version_ms : float, optional
        One version of the embeddings is in force throughout when absent.
    max_emb_lag : int, optional
        State of any version serves when absent.
    routing : RoutingName, optional
        Nobody moves when absent.
    lives : tuple of (str, Life)
        Instances, by name or number, that are not there all the time.
    """

    batching: BatchRules | None = None
    offload_queue_bytes: int | None = None
    ttl_ms: float | None = None
    emb_version_ms: float | None = None
    max_emb_lag: int | None = None
    routing: RoutingName | None = None
    lives: tuple[tuple[str, Life], ...] = ()

    def applied(self, fleet: Fleet, policy: RoutingPolicySpec | None) -> Fleet:
        """Return the fleet that serves so.

        Parameters
        ----------
        policy : RoutingPolicySpec, optional
            The RoutingPolicy that the pool names, where a file has it.

        Raises
        ------
        BadInput
            For a queue to a host tier that is not there.
        """
        try:
            config = replace(
                fleet.config,
                batching=self.batching,
                offload_queue_bytes=self.offload_queue_bytes,
                ttl_ms=self.ttl_ms,
                emb_version_ms=self.emb_version_ms,
                max_emb_lag=self.max_emb_lag,
            )
        except ValueError as error:
            named, _, problem = str(error).partition(": ")
            raise BadInput(_OPTIONS.get(named, named), problem) from None
        notes = [each for each in fleet.assumptions if each != STANDS_STILL or self.routing is None]
        if self.routing is RoutingName.TABLE:
            whose = "the defaults of a RoutingPolicy" if policy is None else "churn and warm-up of the RoutingPolicy"
            notes.append(f"routing: the operator's loop, with {whose}; a new table is in force everywhere at once")
        elif self.routing is not None:
            notes.append(f"routing: {self.routing}, as a gateway would that knows what waits and who holds whom (docs/fleet.md)")
        if self.batching is not None:
            edges = ", ".join(str(edge) for edge in self.batching.bucket_edges_tokens)
            notes.append(f"batching: requests of one bucket of new tokens (up to {edges}) run together, padded to its edge")
        if self.emb_version_ms is not None:
            notes.append("embeddings: rows of the cache are replaced in place by those of a new version, at no cost")
        return replace(fleet, config=config, assumptions=tuple(notes))

    def lives_of(self, names: Sequence[str]) -> list[Life] | None:
        """Return when each instance is there, in the order of their names; None where all always are.

        Raises
        ------
        BadInput
            For an instance that the fleet has not, or a time without any.
        """
        if not self.lives:
            return None
        found = [Life()] * len(names)
        for name, life in self.lives:
            place = names.index(name) if name in names else int(name) if name.isdecimal() else len(names)
            if place >= len(names):
                known = f"{names[0]} to {names[-1]}, or 0 to {len(names) - 1}"
                raise BadInput(f"--life {name}", f"there is no such instance; there are {known}")
            found[place] = life
        return found


def batching_of(text: str) -> BatchRules:
    """Return the rules of `8:3ms`: at most eight requests, the first of which waits for three milliseconds.

    Raises
    ------
    ValueError
        For anything else.
    """
    match = _BATCHES.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not REQUESTS:WINDOW, as in 8:3ms")
    return BatchRules(max_requests=int(match[1]), window_ms=length_ms(match[2]))


def queue_of(text: str) -> int:
    """Return the bytes of `2Gi`.

    Raises
    ------
    ValueError
        For anything else.
    """
    try:
        return parse_quantity(text)
    except ValueError:
        raise ValueError(f"{text} is no quantity of bytes; write 512Mi or 2Gi") from None


def versions_of(text: str) -> tuple[float, int | None]:
    """Return milliseconds between two versions and the most that state may be behind of `10m:3`; None for any of `10m`.

    Raises
    ------
    ValueError
        For anything else.
    """
    match = _VERSIONS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not TIME or TIME:VERSIONS, as in 10m:3")
    return length_ms(match[1]), int(match[2]) if match[2] is not None else None


def life_of(text: str) -> tuple[str, Life]:
    """Return the instance and its life of `feed-3:joins=2m,dies=5m`.

    Raises
    ------
    ValueError
        For anything else, or an end before its beginning.
    """
    match = _LIFE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not INSTANCE:joins=TIME,drains=TIME,dies=TIME,noticed=TIME, with one of the times or more")
    times: dict[str, float] = {}
    for part in match[2].split(","):
        name, _, length = part.partition("=")
        if name not in _TIMES or _TIMES[name] in times:
            raise ValueError(f"{part} is none of {', '.join(_TIMES)}, each once at most")
        times[_TIMES[name]] = length_ms(length)
    try:
        return match[1], Life(**times)
    except ValueError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


@dataclass(frozen=True, kw_only=True)
class Router:
    """Makes who serves whom, anew for each run: a policy remembers what it saw."""

    served: Served
    fleet: Fleet
    log: RequestLog
    seed: int
    policy: RoutingPolicySpec | None
    lives: list[Life] | None

    def routing(self, config: FleetConfig) -> Sequence[int] | RoutingPolicy:
        """Return the owners of the slots where nobody moves, or a policy at its beginning."""
        name, spec = self.served.routing, self.policy or RoutingPolicySpec()
        users, instances = self.log.users, config.instances
        if name is None:
            return self.fleet.owners
        if name is RoutingName.TABLE:
            budget = ChurnBudget(max_moved_percent=float(spec.churn.max_moved_percent), window_ms=1e3 * spec.churn.window_seconds)
            return TableRouting(
                budget=budget,
                target_hit_percent=float(spec.warmup.hit_percent),
                warm_ms=1e3 * spec.warmup.max_seconds,
                names=self.fleet.names,
            )
        work = work_of(config, self.log)
        bound = LoadBound(percent=float(spec.bounded_load.percent), floor=float(spec.bounded_load.floor))
        if name is RoutingName.RANDOM:
            return RandomRouting(work, seed=self.seed, users=users, instances=instances)
        if name is RoutingName.LEAST_LOADED:
            return LeastLoaded(work, users=users, instances=instances)
        if name is RoutingName.BOUNDED_HASH:
            return BoundedHash(work, bound=bound, users=users, instances=instances)
        if name is RoutingName.SCORE:
            return Scored(work, terms=Terms(kv=True, emb=True, load=True), bound=bound, users=users, instances=instances)
        return OverrideRouting(work, users=users, instances=instances)


def router_of(
    served: Served,
    fleet: Fleet,
    log: RequestLog,
    *,
    policy: RoutingPolicySpec | None,
    seed: int,
    ahead: bool,
) -> Router:
    """Return who makes the routings of a rehearsal.

    Parameters
    ----------
    ahead : bool
        Whether prefixes are computed ahead, which goes with neither batches nor a routing that decides.

    Raises
    ------
    BadInput
        For options that do not go together, or lives that leave nobody to serve.
    """
    for option, given in (("--batching", served.batching), (f"--routing {served.routing}", served.routing)):
        if ahead and given is not None:
            raise BadInput(
                option,
                "the pool's PreInferencePolicy computes prefixes ahead, which is simulated request by request and under a table"
                " that stands still",
                then="leave the policy out of the file",
            )
    lives = served.lives_of(fleet.names)
    try:
        checked_lives(lives, fleet.config)
    except ValueError as error:
        raise BadInput("--life", str(error).partition(": ")[2]) from None
    return Router(served=served, fleet=fleet, log=log, seed=seed, policy=policy, lives=lives)
