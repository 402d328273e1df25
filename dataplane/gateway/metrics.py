"""What a gateway's agent tells Prometheus about itself; docs/metrics.md lists every name with its labels.

The numbers are taken from the agent when they are asked for, so the loop pays nothing for them. What HAProxy does with requests
is in its own metrics.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from dataclasses import dataclass, field

from dataplane.gateway.tables import Held, HeldServer
from dataplane.instruments import Counter, Gauge, Registry
from dataplane.tables_seen import TableMetrics, TablesSeen

SERVER_STATES = ("ready", "down", "draining", "maintenance")
RESULTS = ("settled", "older", "waiting", "refused", "unavailable", "failed")
WRITES = ("servers", "slots", "users", "names")


def state_of(server: HeldServer) -> str:
    """One of `SERVER_STATES`."""
    if server.in_maintenance:
        return "maintenance"
    if not server.up:
        return "down"
    return "draining" if server.draining else "ready"


@dataclass
class GatewayCounts:
    """What the agent has done since it started."""

    rounds: int = 0
    commands: int = 0
    restarts_seen: int = 0
    reloads: int = 0
    results: Tally[str] = field(default_factory=Tally)
    writes: Tally[str] = field(default_factory=Tally)


@dataclass(frozen=True, kw_only=True)
class GatewayView:
    """What is shown of an agent at one moment."""

    tables: TablesSeen
    held: Held | None
    hot_users: int
    haproxy_answers: bool
    refused_rows: int
    haproxy_starts: int
    haproxy_outdated: bool
    reloads: int
    results: Tally[str]
    writes: Tally[str]


class GatewayMetrics:
    """All instruments of one gateway agent."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._tables = TableMetrics("gateway", registry=registry)
        self._held_generation = Gauge(
            "grfleet_gateway_held_generation", "Generation that HAProxy held at the last look", registry=registry
        )
        self._refused_rows = Gauge(
            "grfleet_gateway_refused_rows", "Instances of the table that HAProxy cannot hold", registry=registry
        )
        self._answers = Gauge("grfleet_gateway_haproxy_up", "1 while HAProxy answers the agent", registry=registry)
        self._starts = Counter(
            "grfleet_gateway_haproxy_restarts_total", "Starts and reloads of HAProxy after the first", registry=registry
        )
        self._outdated = Gauge(
            "grfleet_gateway_haproxy_outdated",
            "1 while HAProxy runs on another configuration than the written one",
            registry=registry,
        )
        self._reloads = Counter("grfleet_gateway_reloads_total", "Reloads of HAProxy that the agent asked for", registry=registry)
        self._servers = Gauge("grfleet_gateway_servers", "Servers of HAProxy by state", ("state",), registry=registry)
        self._slots = Gauge("grfleet_gateway_slots", "Slots with an owner in HAProxy's table", registry=registry)
        self._users = Gauge("grfleet_gateway_hot_users", "Hot users in HAProxy's table", registry=registry)
        self._reconciles = Counter("grfleet_gateway_reconciles_total", "Rounds by result", ("result",), registry=registry)
        self._writes = Counter(
            "grfleet_gateway_writes_total", "Commands that changed HAProxy, by what they changed", ("kind",), registry=registry
        )

    def text(self, view: GatewayView) -> bytes:
        """Return everything in the Prometheus text format, as of `view`."""
        held = view.held
        states = Tally(state_of(server) for server in held.servers.values()) if held is not None else Tally[str]()
        self._tables.show(view.tables)
        self._held_generation.set(held.generation if held is not None else math.nan)
        self._refused_rows.set(view.refused_rows)
        self._answers.set(view.haproxy_answers)
        self._starts.labels().set(view.haproxy_starts)
        self._outdated.set(view.haproxy_outdated)
        self._reloads.labels().set(view.reloads)
        self._slots.set(sum(1 for owner in held.slots.values() if owner) if held is not None else math.nan)
        self._users.set(view.hot_users)
        for state in SERVER_STATES:
            self._servers.labels(state=state).set(states[state] if held is not None else math.nan)
        for result in RESULTS:
            self._reconciles.labels(result=result).set(view.results[result])
        for kind in WRITES:
            self._writes.labels(kind=kind).set(view.writes[kind])
        return self.registry.text()
