"""How long servers that left the table have been draining: what is in flight there may finish, within a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dataplane.gateway.tables import Held, Want


@dataclass
class Draining:
    """When each server that leaves was first seen to drain, by server id, on the clock of who asks."""

    since_s: Mapping[int, float] = field(default_factory=dict)

    def overdue(self, held: Held, want: Want, *, now_s: float, limit_s: float) -> frozenset[int]:
        """Look at what HAProxy holds now, and return the servers that have been draining for `limit_s` or longer."""
        staying = {server.id for server in want.servers}
        leaving = {i for i, server in held.servers.items() if i not in staying and server.draining}
        self.since_s = {i: self.since_s.get(i, now_s) for i in leaving}
        return frozenset(i for i, since in self.since_s.items() if now_s - since >= limit_s)
