"""Finds the policy that a pool names: its own namespace, then for `default` only the operator's, then the model defaults.

A named policy that does not exist is never replaced by another one: whoever wrote the name meant something by it. The caller
keeps what was in force and says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ValidationError

from controllers.parsed import ParsedObjects
from controllers.runtime.loop import Context
from controllers.runtime.resources import HBM_POLICIES, PRE_INFERENCE_POLICIES, ROUTING_POLICIES, Key, Object, ResourceType
from crds import (
    GRServingPool,
    HBMPolicy,
    HBMPolicySpec,
    PreInferencePolicy,
    PreInferencePolicySpec,
    RoutingPolicy,
    RoutingPolicySpec,
    explain_invalid,
)
from crds.instance import PolicySource
from crds.types import ApiModel

DEFAULT = "default"
Spec = TypeVar("Spec", bound=ApiModel)
_HBM_DEFAULTS, _ROUTING_DEFAULTS, _PRE_INFERENCE_DEFAULTS = HBMPolicySpec(), RoutingPolicySpec(), PreInferencePolicySpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[Spec]):
    """A policy in force. Namespace and generation are None for the built-in defaults."""

    spec: Spec
    name: str
    source: PolicySource
    namespace: str | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """The named policy is in none of the places where it may be."""

    name: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """The policy exists, but this operator cannot read it: written for another version of the API."""

    name: str
    namespace: str
    why: str


Lookup = Found[Spec] | NotFound | Unreadable


def find_policy(
    name: str,
    *,
    namespace: str,
    operator_namespace: str,
    get: Callable[[Key], Object | None],
    read: Callable[[Object], Spec],
    defaults: Spec,
) -> Lookup[Spec]:
    """Resolve a policy name.

    Parameters
    ----------
    namespace
        Namespace of the pool that names it.
    get
        Reads a policy object of the wanted kind, usually from the store.
    read
        Parses such an object and returns its spec; may raise pydantic.ValidationError.
    """
    obj, where, source = get(Key(namespace, name)), namespace, PolicySource.POOL
    if obj is None and name == DEFAULT:
        obj, where, source = get(Key(operator_namespace, name)), operator_namespace, PolicySource.OPERATOR
    if obj is None:
        if name == DEFAULT:
            return Found(spec=defaults, name=name, source=PolicySource.DEFAULTS)
        return NotFound(name=name, namespace=namespace)
    try:
        spec = read(obj)
    except ValidationError as error:
        return Unreadable(name=name, namespace=where, why=explain_invalid(error))
    return Found(spec=spec, name=name, source=source, namespace=where, generation=int(obj["metadata"].get("generation", 0)))


def hbm_policy_of(ctx: Context, pool: GRServingPool, *, parsed: ParsedObjects) -> Lookup[HBMPolicySpec]:
    """The HBMPolicy that the pool names."""
    name = pool.spec.policies.hbm
    return _of_pool(ctx, pool, name, HBM_POLICIES, lambda obj: parsed.read(HBMPolicy, obj).spec, _HBM_DEFAULTS)


def routing_policy_of(ctx: Context, pool: GRServingPool, *, parsed: ParsedObjects) -> Lookup[RoutingPolicySpec]:
    """The RoutingPolicy that the pool names."""
    name = pool.spec.policies.routing
    return _of_pool(ctx, pool, name, ROUTING_POLICIES, lambda obj: parsed.read(RoutingPolicy, obj).spec, _ROUTING_DEFAULTS)


def pre_inference_policy_of(ctx: Context, pool: GRServingPool, *, parsed: ParsedObjects) -> Lookup[PreInferencePolicySpec]:
    """The PreInferencePolicy that the pool names."""
    name = pool.spec.policies.pre_inference
    return _of_pool(
        ctx, pool, name, PRE_INFERENCE_POLICIES, lambda obj: parsed.read(PreInferencePolicy, obj).spec, _PRE_INFERENCE_DEFAULTS
    )


def _of_pool(
    ctx: Context, pool: GRServingPool, name: str, kind: ResourceType, read: Callable[[Object], Spec], defaults: Spec
) -> Lookup[Spec]:
    return find_policy(
        name,
        namespace=pool.metadata.namespace,
        operator_namespace=ctx.settings.operator_namespace,
        get=lambda key: ctx.store.get(kind, key),
        read=read,
        defaults=defaults,
    )
