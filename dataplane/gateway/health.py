"""What a gateway's agent answers to probes, to Prometheus, and to clients that ask for its overrides.

Ready means that HAProxy answers and holds a table, whatever its source or the operator do meanwhile; healthy means that the loop
goes round. A gateway that lost its source goes on serving, so it stays ready.
"""

from __future__ import annotations

from typing import Protocol

from dataplane.gateway.metrics import GatewayMetrics, GatewayView
from dataplane.http.server import Route
from dataplane.probes import Face, HotUsersFace, routes


class GatewayFace(Face, Protocol):
    """What is asked of the agent."""

    def view(self) -> GatewayView: ...


def route_of(face: GatewayFace, hot_users: HotUsersFace | None = None) -> Route:
    """Return the routes of one gateway agent."""
    metrics = GatewayMetrics()
    return routes(face, lambda: metrics.text(face.view()), hot_users)
