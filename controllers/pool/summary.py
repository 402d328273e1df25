"""Sums up the instances of a pool for its status: counts, spread of the split, worst P99, share of good requests.

Only fresh measurements count; where there is none the field is left out. The numbers are sticky (see `controllers.rounding`),
because the mean of many noisy instances is noisy too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from contract.agent import Enforcement
from controllers.pool.observe import Observation
from controllers.pool.readiness import instance_condition
from controllers.rounding import steady_points, steady_share
from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.resources import POOL_LABEL
from crds import GRInstance

LONGEST_SELECTOR = 1024


def summary(seen: Observation) -> dict[str, Any]:
    """The status fields of the pool that are not conditions, as the API spells them."""
    name, published = seen.pool.metadata.name, seen.pool.status
    models = [each.model for each in seen.instances if each.model is not None]
    fields: dict[str, Any] = {
        "replicas": len(seen.instances) if seen.world is None else sum(not pod.terminating for pod in seen.world.pods),
        "selector": _selector(seen, name),
        "instances": _counts(seen, models),
    }
    shares = [m.status.split.accepted.emb_percent for m in models if m.status.split and m.status.split.accepted]
    if shares:
        old = published.emb_percent.mean if published.emb_percent else None
        fields["embPercent"] = {"min": min(shares), "mean": steady_points(sum(shares) / len(shares), old), "max": max(shares)}
    latencies = [m.status.p99_ms for m in models if m.status.p99_ms is not None]
    if latencies:
        fields["p99Ms"] = max(latencies, key=float)
    good = [float(m.status.slo_percent) for m in models if m.status.slo_percent is not None]
    if good:
        fields["sloPercent"] = steady_share(sum(good) / len(good), published.slo_percent)
    strategies = Counter(m.status.strategy_in_force for m in models if m.status.strategy_in_force)
    if strategies:
        fields["strategyInForce"] = min(strategies, key=lambda strategy: (-strategies[strategy], strategy))
    if seen.world is not None and seen.world.fronts:
        fields["inferencePools"] = [dict(front) for front in seen.world.fronts]
    return fields


def _selector(seen: Observation, name: str) -> str:
    """What selects the pods of the pool; pools without pods, and labels that are too long for the field, have our label."""
    adopted = seen.pool.spec.instances.adopted
    labels = "" if adopted is None else ",".join(f"{key}={value}" for key, value in sorted(adopted.match_labels.items()))
    return labels if 0 < len(labels) <= LONGEST_SELECTOR else f"{POOL_LABEL}={name}"


def _counts(seen: Observation, models: list[GRInstance]) -> Mapping[str, int]:
    ready = sum(instance_condition(each).status == "True" for each in seen.instances)
    settled = sum(
        (find_condition(conditions_of(each.stored), "SplitSettled") or {}).get("status") == "True" for each in seen.instances
    )
    pods: dict[str, int] = {}
    if seen.world is not None:
        version = seen.pool.spec.model.version
        pods["draining"] = sum(model.spec.drain is not None for model in models)
        pods["updated"] = sum(model.spec.source.model_version in (version, None) for model in models)
    return {
        **pods,
        "total": len(seen.instances),
        "ready": ready,
        "settled": settled,
        "unreachable": sum(m.status.agent is not None and not m.status.agent.reachable for m in models),
        "shadow": sum(m.spec.intent is not None and m.spec.intent.enforcement is Enforcement.SHADOW for m in models),
    }
