"""What a picker tells Prometheus and probes: `/metrics`, `/healthz` and `/readyz`; docs/metrics.md lists every name.

The numbers are read from the picker when they are asked for, so a pick pays for an increment and nothing else.
"""

from __future__ import annotations

from dataplane.http.server import Route
from dataplane.instruments import Counter, Gauge, Registry
from dataplane.picker.picker import Picker
from dataplane.probes import HotUsersFace, routes
from dataplane.tables_seen import TableMetrics


class PickerMetrics:
    """All instruments of one picker."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._picks = Counter(
            "grfleet_picker_picks_total", "Requests that were given an endpoint, by what chose it", ("by",), registry=registry
        )
        self._refused = Counter("grfleet_picker_refused_total", "Requests that were turned away", ("reason",), registry=registry)
        self._retried = Counter(
            "grfleet_picker_retried_total", "Answers that came from another endpoint than the first named", registry=registry
        )
        self._broken = Counter(
            "grfleet_picker_broken_streams_total", "Streams with something else than the protocol", registry=registry
        )
        self._open = Gauge("grfleet_picker_open_requests", "Requests that the gateway tells of now", registry=registry)
        self._most = Gauge(
            "grfleet_picker_most_in_flight", "Requests in flight on the instance that has most of them", registry=registry
        )
        self._instances = Gauge(
            "grfleet_picker_instances", "Instances of the table in force that can be an endpoint", registry=registry
        )
        self._refused_rows = Gauge("grfleet_picker_refused_rows", "Instances of the table that cannot", registry=registry)
        self._users = Gauge("grfleet_picker_hot_users", "Hot users in force", registry=registry)
        self._tables = TableMetrics("picker", registry=registry)

    def text(self, picker: Picker) -> bytes:
        """Return everything in the Prometheus text format, as of now."""
        counts, fleet = picker.counts, picker.chooser.fleet
        for by, count in counts.picks.items():
            self._picks.labels(by=by).set(count)
        for reason, count in counts.refused.items():
            self._refused.labels(reason=reason).set(count)
        self._retried.labels().set(counts.retried)
        self._broken.labels().set(counts.broken)
        self._open.set(counts.streams)
        self._most.set(max((each.in_flight for each in fleet.members), default=0))
        self._instances.set(len(fleet.members))
        self._refused_rows.set(len(fleet.refused))
        self._users.set(len(picker.chooser.users))
        self._tables.show(picker.tables)
        return self.registry.text()


def route_of(picker: Picker, hot_users: HotUsersFace | None = None) -> Route:
    """Return the routes of one picker."""
    metrics = PickerMetrics()
    return routes(picker, lambda: metrics.text(picker), hot_users)
