"""Every metric of the operator process, with controller-runtime's and client-go's names where those exist.

One object owns one registry, so that tests and several operators in a process never share counters. The names, labels
and meanings are listed in docs/metrics.md.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

RESULTS = ("success", "requeue", "requeue_after", "error", "conflict", "terminal")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The registry and its metrics; label values known beforehand are created with 0 at once."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=registry, buckets=_SECONDS)

        self.reconcile_total = counter("controller_runtime_reconcile_total", "Reconciliations by result.", "controller", "result")
        self.reconcile_errors = counter("controller_runtime_reconcile_errors_total", "Reconciliations that failed.", "controller")
        self.terminal_errors = counter(
            "controller_runtime_terminal_reconcile_errors_total",
            "Reconciliations that failed in a way that repeating cannot help.",
            "controller",
        )
        self.panics = counter(
            "controller_runtime_reconcile_panics_total", "Reconciliations that raised something unexpected.", "controller"
        )
        self.reconcile_seconds = histogram(
            "controller_runtime_reconcile_time_seconds", "Duration of a reconciliation.", "controller"
        )
        self.workers = gauge("controller_runtime_max_concurrent_reconciles", "Configured workers.", "controller")
        self.active_workers = gauge("controller_runtime_active_workers", "Workers at work.", "controller")

        self.queue_depth = gauge("workqueue_depth", "Keys that wait.", "name")
        self.queue_adds = counter("workqueue_adds_total", "Keys added.", "name")
        self.queue_retries = counter("workqueue_retries_total", "Keys added again after a failure.", "name")
        self.queue_seconds = histogram("workqueue_queue_duration_seconds", "How long a key waited.", "name")
        self.work_seconds = histogram("workqueue_work_duration_seconds", "How long a key was worked on.", "name")
        self.unfinished_seconds = gauge("workqueue_unfinished_work_seconds", "Sum of the ages of the work in progress.", "name")
        self.longest_seconds = gauge("workqueue_longest_running_processor_seconds", "Age of the oldest work in progress.", "name")

        self.leader = gauge("leader_election_master_status", "1 while this process holds the Lease.", "name")
        self.requests = counter(
            "rest_client_requests_total", "Requests to the API server by verb, resource and code.", "verb", "resource", "code"
        )
        self.watch_requests = counter(
            "grfleet_watch_requests_total", "List and watch requests of the watch library.", "resource", "code"
        )
        self.watch_age = gauge(
            "grfleet_watch_age_seconds", "Time since the watch or a list of a resource last brought bytes.", "resource"
        )
        self.watch_events = counter("grfleet_watch_events_total", "Changes taken into the store.", "resource", "type")
        self.objects = gauge("grfleet_store_objects", "Objects in the store.", "resource")
        self.pools = gauge("grfleet_pools", "Pools by condition and its status.", "condition", "status")
        self.sweeps = counter("grfleet_sweeps_total", "Whole lists that were compared with the store.", "resource")
        self.ghosts = counter(
            "grfleet_sweep_ghosts_total", "Objects dropped by a sweep because their deletion got lost.", "resource"
        )
        self.events_posted = counter("grfleet_events_total", "Events by outcome.", "outcome")
        self.agent_calls = counter("grfleet_agent_calls_total", "Calls of the operator to agents by outcome.", "call", "outcome")
        self.measure_seconds = histogram(
            "grfleet_measure_seconds", "How long it took to measure a pool, by what was found.", "state"
        )

    def prepare_controller(self, controller: str, workers: int) -> None:
        """Create all series of one controller with 0, so that rates are right from the first failure on."""
        for result in RESULTS:
            self.reconcile_total.labels(controller, result)
        for metric in (self.reconcile_errors, self.terminal_errors, self.panics, self.reconcile_seconds):
            metric.labels(controller)
        self.active_workers.labels(controller).set(0)
        self.workers.labels(controller).set(workers)

    def exposition(self) -> bytes:
        """The text that ``/metrics`` answers."""
        return generate_latest(self.registry)
