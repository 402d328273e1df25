"""What a fault rule says: which requests or watch events it is about, on which of them it acts, and what it does.

A rule counts everything that it matches. Of those it leaves the first `skip` alone, then acts with `probability`, drawn
from its own seed, until it has acted `times` times. So a plan of rules gives the same faults for the same sequence of
requests, and a test can aim at one exact write.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests a rule is about; what is not given matches everything.

    Parameters
    ----------
    methods
        HTTP methods.
    path
        Regular expression, searched in the path with its query.
    user_agent
        Regular expression, searched in the header.
    watch
        True for watches only, False for everything else only.
    events, name
        For actions on a watch: types of events, and a regular expression searched in ``namespace/name`` of their object.
    """

    methods: frozenset[str] | None = None
    path: str = ""
    user_agent: str = ""
    watch: bool | None = None
    events: frozenset[str] | None = None
    name: str = ""

    def request(self, *, method: str, path: str, user_agent: str, watch: bool) -> bool:
        """Whether a request is meant."""
        return (
            (self.methods is None or method in self.methods)
            and (self.watch is None or self.watch == watch)
            and re.search(self.path, path) is not None
            and re.search(self.user_agent, user_agent) is not None
        )

    def event(self, *, type_: str, name: str) -> bool:
        """Whether an event of a matching watch is meant."""
        return (self.events is None or type_ in self.events) and re.search(self.name, name) is not None


def writes(path: str = "", *, user_agent: str = "") -> Match:
    """Every request that could change something, by path; Leases are not among them unless the path names them."""
    guard = "" if "leases" in path else r"^(?!.*/leases)"
    return Match(methods=WRITES, path=f"{guard}.*{path}" if guard else path, user_agent=user_agent)


def lists(path: str = "", *, user_agent: str = "") -> Match:
    """Every request for the first page of a list, by path."""
    first = rf"^(?!.*[?&]continue=).*{path}.*[?&]limit="
    return Match(methods=frozenset({"GET"}), watch=False, path=first, user_agent=user_agent)


def continuations(path: str = "", *, user_agent: str = "") -> Match:
    """Every request for a further page of a list, by path; with `Answer(status=410)` its continuation has expired."""
    return Match(methods=frozenset({"GET"}), watch=False, path=f"{path}.*[?&]continue=", user_agent=user_agent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Wait before the request is forwarded; `jitter_seconds` is the width of a uniform addition."""

    seconds: float
    jitter_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer with an error as the API server words it, without forwarding anything."""

    status: int
    retry_after_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Forward a list that asks for pages with a smaller limit, so that a few objects make several pages."""

    limit: int = 1


@dataclass(frozen=True, slots=True)
class ResetBefore:
    """Reset the connection; the API server never sees the request."""


@dataclass(frozen=True, slots=True)
class ResetAfter:
    """Forward the request, then reset the connection: it is done, and the client does not know."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the request until :meth:`FaultProxy.release`, then forward it, even if the client has gone meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call a function of the test, before the request is forwarded or after it was done and before the answer goes back.

    The function runs in the proxy's thread and must not block; while it runs nothing else passes.
    """

    function: Callable[[], None]
    after: bool = True


@dataclass(frozen=True, slots=True)
class Freeze:
    """Forward nothing more on this watch and keep the connection. It never thaws; a new watch may."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Lose the event."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Deliver the event twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorder:
    """Deliver the event after the one that follows it; in its place after all if none follows within `patience_seconds`.

    An API server keeps the order of all events of a watch, so this is worse than what a real one does: whoever stands it
    has not come to depend on an order that a stand-in or a bug between may lose.
    """

    patience_seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamError:
    """Send an ERROR event with this code (410: the resourceVersion is too old) and end the watch."""

    code: int = 410


@dataclass(frozen=True, slots=True)
class Cut:
    """Reset the connection of the watch, in the middle of an event if one is at hand."""


RequestAction = Latency | Answer | Page | ResetBefore | ResetAfter | Hold | Call
EventAction = Drop | Duplicate | Reorder
StreamAction = Freeze | StreamError | Cut
Action = RequestAction | EventAction | StreamAction


class Rule:
    """One fault and its book-keeping; safe to read from any thread.

    Parameters
    ----------
    skip
        So many matching requests or events pass unharmed first.
    times
        The rule acts at most so often; None is for ever.
    probability
        Chance in 0..1 that it acts on one that it could act on, drawn from `seed`.
    """

    def __init__(
        self, match: Match, action: Action, *, skip: int = 0, times: int | None = None, probability: float = 1.0, seed: int = 0
    ) -> None:
        self.match, self.action = match, action
        self._skip, self._times, self._probability = skip, times, probability
        self._rng = random.Random(seed)
        self._changed = threading.Condition()
        self._seen = self._hits = 0

    @property
    def seen(self) -> int:
        """How many requests or events matched while the rule was in force."""
        return self._seen

    @property
    def hits(self) -> int:
        """How often it acted."""
        return self._hits

    def take(self) -> bool:
        """Count one that matches; whether to act on it."""
        with self._changed:
            self._seen += 1
            if self._seen <= self._skip or (self._times is not None and self._hits >= self._times):
                return False
            if self._rng.random() >= self._probability:
                return False
            self._hits += 1
            self._changed.notify_all()
            return True

    def draw(self, width: float) -> float:
        """A number in 0..width from the rule's own seed."""
        return self._rng.uniform(0.0, width)

    def wait_for_hits(self, hits: int = 1, *, timeout_seconds: float) -> None:
        """Wait until it has acted so often.

        Raises
        ------
        TimeoutError
            It has not in time; the message says how many matched.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= hits, timeout_seconds):
                raise TimeoutError(f"{self.action} acted {self._hits} times of {hits}; {self._seen} matched {self.match}")


def first_to_act(rules: Iterable[Rule], matches: Callable[[Match], bool]) -> Rule | None:
    """The first rule that acts. Each rule that matches before it has counted the request or event."""
    return next((rule for rule in rules if matches(rule.match) and rule.take()), None)
