"""Which policy an instance gets while a change of strategy or model is on its way through its pool. Pure.

What stands in `status.rollout` of the pool is a permit: nothing that needs canaries is written into an instance without one. So
a change that comes in is first held by every instance; the second half of the loop, keyed by pool, then opens the rollout. What
needs no canaries needs no permit either and is taken at once, whatever the rollout says: that is the kill switch.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from contract.agent import Enforcement
from controllers.runtime.resources import Object, uid_of
from crds import GRServingPool
from crds.hbm_policy import RolloutPhase
from crds.pool_rollout import PolicyPart, PoolRollout
from policies.rollout import phases
from policies.rollout.risk import Charge, charge_of, needs_canaries

POLICY_FIELDS = ("strategy", "enforcement", "bounds", "step", "refill", "learned", "recovery", "modelRef", "policyRef")
"""What an intent takes from the policy; everything else comes from the pool and from the instance, and never waits."""
TRYING = frozenset(RolloutPhase(phase) for phase in phases.TRYING)
"""Phases in which the canaries have the change, as the API names them."""
GOING_ON = frozenset(RolloutPhase(phase) for phase in phases.GOING_ON)
"""Phases that lead to another one by themselves, as the API names them."""
KEPT = 256

Part = Mapping[str, Any]
T = TypeVar("T")
V = TypeVar("V")
_made: OrderedDict[tuple[int, Callable[[Any], Any]], tuple[Any, Any]] = OrderedDict()


def part_of(intent: Mapping[str, Any]) -> dict[str, Any]:
    """What an intent on the wire takes from the policy."""
    return {name: intent[name] for name in POLICY_FIELDS if name in intent}


def with_part(intent: Mapping[str, Any], part: Part) -> dict[str, Any]:
    """The intent with another policy in it."""
    return {**{name: value for name, value in intent.items() if name not in POLICY_FIELDS}, **part}


def revision_of(intent: Mapping[str, Any]) -> str:
    """Digest of what the policy in an intent asks for, 16 hex digits. Which object asks, and its generation, is no part of it."""
    asked = {name: value for name, value in part_of(intent).items() if name != "policyRef"}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def charge_in(intent: Mapping[str, Any]) -> Charge | None:
    """Who is in charge of the split under an intent; None for what needs no canaries."""
    learned = intent.get("learned") or {}
    residual = learned.get("residual") or {}
    return charge_of(
        strategy=intent["strategy"],
        shadow=intent["enforcement"] == Enforcement.SHADOW,
        model_sha256=(intent.get("modelRef") or {}).get("sha256"),
        clamp_percent=int(learned.get("clampPercent", 0)),
        residual_percent=int(residual.get("maxPercent", 0)) if residual.get("enabled") else 0,
    )


def permitted_intent(pool: GRServingPool, instance: Object, wanted: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The intent that may stand in the instance now, on the wire; None to leave alone what stands there.

    Parameters
    ----------
    instance
        As it is stored.
    wanted
        The intent by pool and policy, as `wanted_intent` makes it; None where the policy cannot be found.
    """
    stored, rollout = instance["spec"].get("intent"), pool.status.rollout
    if pool.spec.paused and stored is not None:
        return wanted
    if wanted is None:
        if stored is None or rollout is None or rollout.phase is not RolloutPhase.WITHDRAWN:
            return None
        return with_part(stored, stable_part(rollout)) if revision_of(stored) == rollout.revision else None
    new = charge_in(wanted)
    if new is None:
        return wanted
    if rollout is None:
        return _unless_riskier(wanted, new, stored, None)
    if rollout.revision == _once(wanted, revision_of):
        has_it = rollout.phase is RolloutPhase.COMPLETE or (rollout.phase in TRYING and is_canary(rollout, instance))
        return wanted if has_it else with_part(wanted, stable_part(rollout))
    if rollout.phase is RolloutPhase.COMPLETE:
        return _unless_riskier(wanted, new, stored, stable_part(rollout))
    stable = stable_part(rollout)
    return with_part(wanted, stable) if needs_canaries(new, charge_in(stable)) else wanted


def is_canary(rollout: PoolRollout, instance: Object) -> bool:
    """Whether this very instance was chosen; a successor of its name was not."""
    name, uid = instance["metadata"]["name"], uid_of(instance)
    return any(member.name == name and member.uid == uid for member in rollout.canaries)


def stable_part(rollout: PoolRollout) -> Mapping[str, Any]:
    """What the others run meanwhile, as it stands in an intent; not to be changed."""
    return _once(rollout.stable, PolicyPart.to_wire)


def permit_of(pool: Object | None) -> object:
    """What `permitted_intent` reads of a stored pool beside its spec: instances are looked at when it changes."""
    return ((pool or {}).get("status") or {}).get("rollout")


def _once(thing: T, make: Callable[[T], V]) -> V:
    """`make(thing)`, once while the very same thing is asked about: all instances of a pool share model and wanted intent."""
    place = (id(thing), make)
    found = _made.get(place)
    if found is None or found[0] is not thing:
        found = _made[place] = (thing, make(thing))
        while len(_made) > KEPT:
            _made.popitem(last=False)
    value: V = found[1]
    return value


def _unless_riskier(
    wanted: Mapping[str, Any], new: Charge, stored: Mapping[str, Any] | None, otherwise: Part | None
) -> Mapping[str, Any] | None:
    """The wanted intent, unless it needs canaries against what stands; an instance that has none takes `otherwise`, or waits."""
    standing = part_of(stored) if stored is not None else otherwise
    if standing is None:
        return None
    return with_part(wanted, standing) if needs_canaries(new, charge_in(standing)) else wanted
