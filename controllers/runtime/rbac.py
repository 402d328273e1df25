"""The one table of what the operator may do: the chart renders its Roles from it, preflight asks the server about it.

A rule is here because a loop needs it; ``why`` says for what. Nothing is granted by wildcard, and Secrets are never
listed or watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controllers.runtime.resources import (
    ALLOCATOR_MODELS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    HBM_POLICIES,
    INFERENCE_POOLS,
    INSTANCES,
    LEASES,
    PODS,
    POOLS,
    PRE_INFERENCE_POLICIES,
    ROUTING_POLICIES,
    ROUTING_TABLES,
    SECRETS,
)
from crds.types import GROUP


class Scope(StrEnum):
    """Where a rule holds."""

    SERVED = "served"
    """In every namespace that is served: a ClusterRole; or a Role in each named namespace and in the operator's own."""
    OPERATOR = "operator"
    """In the operator's own namespace only: always a Role."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on one resource (``plural`` or ``plural/subresource``) of one API group."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    scope: Scope
    why: str


_WATCH = ("list", "watch")

RULES: tuple[Rule, ...] = (
    Rule(GROUP, POOLS.plural, _WATCH, Scope.SERVED, "pools are what people ask for"),
    Rule(GROUP, f"{POOLS.plural}/status", ("patch",), Scope.SERVED, "conditions and counts of pools"),
    Rule(GROUP, f"{POOLS.plural}/scale", ("patch",), Scope.SERVED, "our scaler, where scaling.mode names it"),
    Rule(
        GROUP, INSTANCES.plural, (*_WATCH, "create", "patch", "delete"), Scope.SERVED, "one object for each pod or external entry"
    ),
    Rule(GROUP, f"{INSTANCES.plural}/status", ("patch",), Scope.SERVED, "the split in force and its conditions"),
    Rule(GROUP, HBM_POLICIES.plural, _WATCH, Scope.SERVED, "policies that pools name"),
    Rule(GROUP, f"{HBM_POLICIES.plural}/status", ("patch",), Scope.SERVED, "where a policy is in force, and its rollout"),
    Rule(GROUP, ROUTING_POLICIES.plural, _WATCH, Scope.SERVED, "policies that pools name"),
    Rule(GROUP, PRE_INFERENCE_POLICIES.plural, _WATCH, Scope.SERVED, "policies that pools name"),
    Rule(GROUP, ALLOCATOR_MODELS.plural, _WATCH, Scope.SERVED, "models that policies name"),
    Rule(GROUP, f"{ALLOCATOR_MODELS.plural}/status", ("patch",), Scope.SERVED, "whether a model was verified"),
    Rule(GROUP, ROUTING_TABLES.plural, (*_WATCH, "create", "patch", "delete"), Scope.SERVED, "the published table"),
    Rule(GROUP, f"{ROUTING_TABLES.plural}/status", ("patch",), Scope.SERVED, "the published table"),
    Rule(
        CONFIG_MAPS.group,
        CONFIG_MAPS.plural,
        ("get", "create", "patch"),
        Scope.SERVED,
        "public key of the intents, model bytes",
    ),
    Rule(
        PODS.group, PODS.plural, (*_WATCH, "patch"), Scope.SERVED, "instances of managed and adopted pools, their deletion cost"
    ),
    Rule(PODS.group, f"{PODS.plural}/status", ("patch",), Scope.SERVED, "the readiness gate of pods that warm up"),
    Rule(DEPLOYMENTS.group, DEPLOYMENTS.plural, (*_WATCH, "create", "patch"), Scope.SERVED, "the pods of managed pools"),
    Rule(DEPLOYMENTS.group, f"{DEPLOYMENTS.plural}/scale", ("patch",), Scope.SERVED, "spec.replicas of managed pools"),
    Rule(
        DISRUPTION_BUDGETS.group,
        DISRUPTION_BUDGETS.plural,
        ("get", "create", "patch"),
        Scope.SERVED,
        "how many pods of a managed pool evictions may take",
    ),
    Rule(
        INFERENCE_POOLS.group,
        INFERENCE_POOLS.plural,
        ("list",),
        Scope.SERVED,
        "Gateway API pools in front of ours, where there are",
    ),
    Rule(EVENTS.group, EVENTS.plural, ("create", "patch"), Scope.SERVED, "Events on transitions"),
    Rule(LEASES.group, LEASES.plural, ("get", "create", "update"), Scope.OPERATOR, "leader election"),
    Rule(SECRETS.group, SECRETS.plural, ("get", "create", "patch"), Scope.OPERATOR, "the key that signs intents"),
)


def policy_rules(scope: Scope, rules: Iterable[Rule] = RULES) -> list[dict[str, Any]]:
    """The ``rules`` list of a Role or ClusterRole for one scope, one entry a resource."""
    return [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in rules
        if rule.scope is scope
    ]


def bound_role(name: str, rules: list[dict[str, Any]], *, account: str, namespace: str, cluster: bool) -> list[dict[str, Any]]:
    """A role with its binding to a ServiceAccount: in the account's namespace, or for the whole cluster."""
    kind = "ClusterRole" if cluster else "Role"
    api = "rbac.authorization.k8s.io"
    metadata = {"name": name, **({} if cluster else {"namespace": namespace})}
    role = {"apiVersion": f"{api}/v1", "kind": kind, "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": api, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    return [role, binding]


def grants(rules: Iterable[Rule] = RULES) -> Iterator[tuple[Rule, str]]:
    """Each rule with each of its verbs."""
    for rule in rules:
        for verb in rule.verbs:
            yield rule, verb
