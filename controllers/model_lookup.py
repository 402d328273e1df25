"""Finds the allocator model that a policy of strategy Learned names, in the namespace of the policy, and says whether it may run.

The word is the condition Verified that the models loop writes: it stands in the API, so a restarted operator decides the same
without having read a byte. A digest never changes in an AllocatorModel, so a Verified of an earlier generation still holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from contract.agent import Strategy
from controllers.lookup import Found, Lookup
from controllers.parsed import ParsedObjects
from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.resources import ALLOCATOR_MODELS, HBM_POLICIES, Key, Object, key_of
from controllers.runtime.store import EventType, Store, WatchEvent
from crds import AllocatorModel, HBMPolicySpec, explain_invalid
from crds.instance import ModelRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFound:
    """A verified model: what intents say of it, and the namespace of its AllocatorModel."""

    ref: ModelRef
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUnusable:
    """The policy wants a model that may not run: the reason for PolicyHealthy, and what to do in words."""

    reason: Literal["ModelMissing", "ModelRefused"]
    why: str


ModelLookup = ModelFound | ModelUnusable | None
"""None where the policy asks for no model."""


def model_of(store: Store, policy: Lookup[HBMPolicySpec], *, parsed: ParsedObjects) -> ModelLookup:
    """The model of the policy in force, as the store has it."""
    if not isinstance(policy, Found) or policy.namespace is None or policy.spec.strategy is not Strategy.LEARNED:
        return None
    where = Key(policy.namespace, policy.spec.learned.model or "")
    stored = store.get(ALLOCATOR_MODELS, where)
    if stored is None:
        return ModelUnusable(reason="ModelMissing", why=f"there is no AllocatorModel {where}; create it, or change learned.model")
    try:
        spec = parsed.read(AllocatorModel, stored).spec
    except ValidationError as error:
        return ModelUnusable(reason="ModelRefused", why=f"AllocatorModel {where} cannot be read: {explain_invalid(error)}")
    verified = find_condition(conditions_of(stored), "Verified") or {}
    if verified.get("status") == "True":
        return ModelFound(
            ref=ModelRef(name=where.name, sha256=spec.sha256, feature_spec=spec.feature_spec), namespace=where.namespace
        )
    if verified.get("status") == "False":
        return ModelUnusable(reason="ModelRefused", why=f"AllocatorModel {where}: {verified['reason']}: {verified['message']}")
    return ModelUnusable(reason="ModelMissing", why=f"AllocatorModel {where} has not been verified yet")


def policies_concerned(event: WatchEvent, store: Store) -> Iterator[Key]:
    """Keys of the policies whose model comes, goes, or may run from now on or no longer."""
    if event.type is EventType.RESYNC or (event.type is EventType.MODIFIED and _word(event.old) == _word(event.obj)):
        return
    for policy in store.all(HBM_POLICIES, event.key.namespace):
        if ((policy.get("spec") or {}).get("learned") or {}).get("model") == event.key.name:
            yield key_of(policy)


def _word(stored: Object | None) -> tuple[object, ...]:
    """What `model_of` reads of an AllocatorModel; not the times, and no count of instances."""
    item = find_condition(conditions_of(stored or {}), "Verified") or {}
    spec = (stored or {}).get("spec") or {}
    return (spec.get("sha256"), spec.get("featureSpec"), item.get("status"), item.get("reason"), item.get("message"))
