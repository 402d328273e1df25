"""Asked once at start: does the API server serve what we watch, and may we do what we are going to do?

An operator that misses one verb of one kind looks healthy and does half its work. This one says what is missing, in
words that tell the administrator what to do, and does not start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controllers.runtime.errors import Forbidden, KindMissing
from controllers.runtime.kube import KubeApi
from controllers.runtime.rbac import RULES, Rule, Scope, grants
from controllers.runtime.resources import ACCESS_REVIEWS, ResourceType
from controllers.runtime.settings import Settings
from crds.registry import KINDS
from crds.schema import structural_schema
from crds.types import GROUP, VERSION

_AT_ONCE = 8
_FIELDS_SHOWN = 3


async def preflight(
    kube: KubeApi, resources: Iterable[ResourceType], settings: Settings, *, rules: Iterable[Rule] = RULES
) -> list[str]:
    """What is missing, one sentence each; empty if all is well. Raises Transient while the API server is not there."""
    watched = list(resources)
    missing = await _missing_kinds(kube, watched)
    if missing:
        return missing  # without the kinds every further answer would only be noise
    older = await _older_kinds(kube)
    if older:
        return older  # the rules may well be of that release too
    problems = await _unreadable(kube, watched, settings)
    known = set(problems)
    problems += [problem for problem in await _missing_grants(kube, rules, settings) if problem not in known]
    return problems


async def _missing_kinds(kube: KubeApi, resources: list[ResourceType]) -> list[str]:
    served = {gv: await kube.served(*gv) for gv in sorted({(each.group, each.version) for each in resources})}
    return [
        f"the API server does not serve {each.plural}.{each.group}/{each.version} ({each.kind}): "
        "install the CustomResourceDefinitions of this release"
        for each in resources
        if each.plural not in served[(each.group, each.version)]
    ]


async def _older_kinds(kube: KubeApi) -> list[str]:
    """Kinds without a field of ours: whatever we write there the API server would refuse, and drop what people write there."""
    served = await kube.schemas(GROUP, VERSION)
    sentences = []
    for kind in KINDS:
        lacking = list(_lacking(structural_schema(kind.model), served[kind.name])) if kind.name in served else []
        if lacking:
            shown = ", ".join(lacking[:_FIELDS_SHOWN]) + (
                f" and {len(lacking) - _FIELDS_SHOWN} more" * (len(lacking) > _FIELDS_SHOWN)
            )
            sentences.append(
                f"the CustomResourceDefinition of {kind.name} is older than this operator and lacks {shown}: "
                "install the CustomResourceDefinitions of this release"
            )
    return sentences


def _lacking(ours: Mapping[str, Any], served: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the fields that the served schema does not have, the uppermost of each branch."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, below in (ours.get("properties") or {}).items():
        if not path and name not in ("spec", "status"):
            continue
        here = f"{path}.{name}" if path else name
        there = (served.get("properties") or {}).get(name)
        if there is None:
            yield here
        else:
            yield from _lacking(below, there, here)
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(ours.get(word), Mapping) and isinstance(served.get(word), Mapping):
            yield from _lacking(ours[word], served[word], f"{path}{mark}")


async def _unreadable(kube: KubeApi, resources: list[ResourceType], settings: Settings) -> list[str]:
    """A real list of one object each: RBAC may say yes where the storage says no."""
    problems: list[str] = []
    scopes: list[str | None] = [*settings.watched_namespaces] or [None]
    for resource in resources:
        for scope in scopes:
            try:
                async for _ in kube.list(resource, scope, limit=1):
                    break
            except Forbidden:
                problems.append(_sentence("list", resource.group, resource.plural, scope))
            except KindMissing:
                problems.append(f"{resource} vanished while it was being checked")
    return problems


async def _missing_grants(kube: KubeApi, rules: Iterable[Rule], settings: Settings) -> list[str]:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def denied(rule: Rule, verb: str, namespace: str | None) -> str | None:
        async with turn:
            review = await kube.create(ACCESS_REVIEWS, _review(rule, verb, namespace), field_manager="grfleet-preflight")
        if review.get("status", {}).get("allowed"):
            return None
        return _sentence(verb, rule.group, rule.resource, namespace)

    served: list[str | None] = [*settings.watched_namespaces] or [None]
    questions = [
        denied(rule, verb, namespace)
        for rule, verb in grants(rules)
        for namespace in (served if rule.scope is Scope.SERVED else [settings.operator_namespace])
    ]
    return [answer for answer in await asyncio.gather(*questions) if answer]


def _review(rule: Rule, verb: str, namespace: str | None) -> dict[str, Any]:
    plural, _, subresource = rule.resource.partition("/")
    attributes = {"group": rule.group, "resource": plural, "subresource": subresource, "verb": verb}
    if namespace:
        attributes["namespace"] = namespace
    return {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {"name": ""},
        "spec": {"resourceAttributes": attributes},
    }


def _sentence(verb: str, group: str, resource: str, namespace: str | None) -> str:
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    plural, _, subresource = resource.partition("/")
    full = f"{plural}.{group}" if group else plural
    name = f"{full}/{subresource}" if subresource else full
    return f"RBAC does not allow this ServiceAccount to {verb} {name} {where}: bind the operator's role"
