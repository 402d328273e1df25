"""What a gateway's agent tells Prometheus of hot users: overrides, and how old the reports are that they rest on.

docs/metrics.md lists every name with its labels. No label holds a user or an instance, so the number of series is fixed.
"""

from __future__ import annotations

import math

from dataplane.hot_users.residents import ResidentsView
from dataplane.instruments import Counter, Gauge, Registry

OUTCOMES = ("taken", "old", "fenced", "missing", "restarted")


class ResidencyMetrics:
    """All instruments of the hot users of one gateway."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._overrides = Gauge(
            "grfleet_gateway_overrides", "Hot users that are sent elsewhere than their slot says", registry=registry
        )
        self._known = Gauge(
            "grfleet_gateway_resident_users", "Users' states that reports name, of all instances", registry=registry
        )
        self._refused = Gauge(
            "grfleet_gateway_overrides_refused",
            "Overrides that the bound on load did not let, in the last round",
            registry=registry,
        )
        self._refusals = Counter(
            "grfleet_gateway_bound_breaches_total",
            "Overrides that would have broken the bound on load and were refused, summed over rounds",
            registry=registry,
        )
        self._most = Gauge(
            "grfleet_gateway_overrides_limit", "Most overrides that the table, or a flag, allows now", registry=registry
        )
        self._moves = Counter(
            "grfleet_gateway_user_moves_total", "Users that overrides moved for what it saves", registry=registry
        )
        self._oldest = Gauge(
            "grfleet_gateway_oldest_report_seconds",
            "Age of the oldest report among the instances, +Inf without one",
            registry=registry,
        )
        self._youngest = Gauge(
            "grfleet_gateway_youngest_report_seconds", "Age of the youngest report, +Inf without one", registry=registry
        )
        self._silent = Gauge(
            "grfleet_gateway_silent_instances",
            "Instances whose agent has not reported for ten seconds, or never",
            registry=registry,
        )
        self._reports = Counter("grfleet_gateway_reports_total", "Reports by what became of them", ("result",), registry=registry)
        self._round = Gauge("grfleet_gateway_residency_round_seconds", "Time that the last round computed", registry=registry)

    def text(self, view: ResidentsView) -> bytes:
        """Return everything in the Prometheus text format, as of `view`."""
        ages = view.age_s.values()
        self._overrides.set(view.overrides)
        self._known.set(view.users_known)
        self._refused.set(view.refused)
        self._refusals.labels().set(view.refusals)
        self._most.set(view.most)
        self._moves.labels().set(view.moved)
        self._oldest.set(max(ages, default=math.inf))
        self._youngest.set(min(ages, default=math.inf))
        self._silent.set(view.silent)
        for result in OUTCOMES:
            self._reports.labels(result=result).set(view.reports.get(result, 0))
        self._round.set(view.round_s)
        return self.registry.text()
