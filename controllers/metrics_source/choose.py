"""Which source of measurements an operator uses: a Prometheus server if it was told one, else the agents that it asks anyway."""

from __future__ import annotations

from controllers.agent_book import Statuses
from controllers.metrics_source.agents import AgentsSource
from controllers.metrics_source.port import MetricsSource
from controllers.metrics_source.prometheus import PrometheusMetrics, connect_to
from controllers.runtime.clock import Clock
from controllers.runtime.settings import Settings


def source_for(settings: Settings, *, statuses: Statuses, clock: Clock) -> MetricsSource:
    """The source that the settings name.

    Parameters
    ----------
    statuses
        What the agents said last, as the allocation loop hears it.
    """
    if settings.prometheus_url:
        return PrometheusMetrics(connect_to(settings.prometheus_url))
    return AgentsSource(statuses, clock=clock)
