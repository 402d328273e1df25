"""Finds the policy that a pool names: its own namespace, then for `default` only the operator's, then the model defaults.

A named policy that does not exist is never replaced by another one: whoever wrote the name meant something by it. The caller
keeps what was in force and says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ValidationError

from controllers.runtime.resources import Key, Object
from crds import explain_invalid
from crds.instance import PolicySource
from crds.types import ApiModel

DEFAULT = "default"
Spec = TypeVar("Spec", bound=ApiModel)


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
