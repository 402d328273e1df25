"""What an agent tells Prometheus about itself and its split; docs/metrics.md lists every name with its labels.

A private registry, so that several agents can live in one process in tests. Bytes and seconds, no users, bounded labels.
"""

from dataplane.instruments import Counter, Gauge, Histogram, Registry

_DECIDE_BUCKETS = (25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 0.25)
_TICK_BUCKETS = (1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 1.0, 5.0)


class AgentMetrics:
    """All instruments of one agent."""

    def __init__(self) -> None:
        self.registry = registry = Registry()

        def by_cache(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("cache",), registry=registry)

        self.target = by_cache("grfleet_agent_split_target_bytes", "Bytes the agent wants a cache to have")
        self.accepted = by_cache("grfleet_agent_split_accepted_bytes", "Limit of a cache in force at the engine")
        self.used = by_cache("grfleet_agent_split_used_bytes", "Bytes a cache holds")
        self.overage = Gauge("grfleet_agent_split_overage_bytes", "Bytes still above a limit", registry=registry)
        self.backlog = Gauge("grfleet_agent_refill_backlog_bytes", "Bytes that refill still owes", registry=registry)
        self.revision = Gauge("grfleet_agent_split_revision", "Revision of the split in force", registry=registry)
        self.decisions = Counter(
            "grfleet_agent_decisions_total", "Decisions by strategy and reason", ("strategy", "reason"), registry=registry
        )
        self.writes = Counter(
            "grfleet_agent_split_writes_total", "Split changes sent to the engine by its answer", ("status",), registry=registry
        )
        self.limit_slots = Gauge("grfleet_agent_limit_slots", "Pre-inference slots that the engine enforces", registry=registry)
        self.limit_bytes = Gauge(
            "grfleet_agent_limit_bytes",
            "Bytes that the engine enforces for prefixes and for tiers below HBM",
            ("tier",),
            registry=registry,
        )
        self.limits_writes = Counter(
            "grfleet_agent_limits_writes_total", "Limits sent to the engine by its answer", ("status",), registry=registry
        )
        self.draining = Gauge("grfleet_agent_draining", "1 while the engine was told to drain", registry=registry)
        self.idle_seconds = Gauge(
            "grfleet_agent_idle_seconds", "Seconds since a request was in flight or came, NaN when not known", registry=registry
        )
        self.reachable = Gauge("grfleet_agent_engine_reachable", "1 when the last observation succeeded", registry=registry)
        self.engine_starts = Counter("grfleet_agent_engine_starts_total", "Engine processes seen", registry=registry)
        self.rejected = Counter(
            "grfleet_agent_observations_rejected_total", "Observations not used, by reason", ("reason",), registry=registry
        )
        self.samples = Counter("grfleet_agent_samples_total", "Access samples read from the engine", registry=registry)
        self.samples_lost = Counter(
            "grfleet_agent_samples_lost_total", "Access samples lost before they were read", registry=registry
        )
        self.generation = Gauge(
            "grfleet_agent_intent_generation", "Generation of the intent in force, 0 without one", registry=registry
        )
        self.intents = Counter("grfleet_agent_intents_total", "Intents received by verdict", ("status",), registry=registry)
        self.models = Counter(
            "grfleet_agent_models_total", "Allocator models received by verdict", ("status",), registry=registry
        )
        self.model_in_force = Gauge(
            "grfleet_agent_model_in_force", "1 while the intent names a model that the agent holds", registry=registry
        )
        self.frozen = Gauge("grfleet_agent_frozen", "1 while the agent refuses to move the split", registry=registry)
        self.decide_seconds = Histogram(
            "grfleet_agent_decide_seconds", "Time of one decision, curves included", registry=registry, buckets=_DECIDE_BUCKETS
        )
        self.tick_seconds = Histogram(
            "grfleet_agent_tick_seconds",
            "Time of one whole round, engine calls included",
            registry=registry,
            buckets=_TICK_BUCKETS,
        )
        self.hit = by_cache("grfleet_agent_hit_percent", "Hits percent of what was asked in the last window")
        self.p99 = Gauge(
            "grfleet_agent_p99_milliseconds", "P99 latency of the last window on the engine's clock", registry=registry
        )

    def text(self) -> bytes:
        """Return everything in the Prometheus text format."""
        return self.registry.text()
