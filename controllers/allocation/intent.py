"""Makes the intent of an instance from its pool and the policy in force, and what is pushed from the instance as it stands. Pure;
the result has integers, strings and booleans only, so that it can be signed.

What an agent is told is a function of the instance's spec alone: the same generation always gives the same words, or an agent
would refuse them. So whatever comes from the pool, sizes of lower tiers included, goes into the stored intent first. A paused
pool keeps the intent that it has, with the word `paused` in it: a policy edited meanwhile takes effect when it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from controllers.lookup import Found, Lookup
from controllers.model_lookup import ModelFound, ModelLookup
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.instance import Intent, IntentLearned, IntentRefill, ModelRef, PolicyRef
from crds.serving_pool import Memory
from crds.types import parse_quantity


def intent_for(
    pool: GRServingPool, policy: Found[HBMPolicySpec], *, prefix_bytes: int = 0, model: ModelRef | None = None
) -> Intent:
    """The intent of an instance of `pool` under `policy`.

    Parameters
    ----------
    prefix_bytes
        HBM bytes reserved for prefixes on this instance; the split does not get them.
    model
        The verified model to run; None where the strategy needs none or there is none.
    """
    return _made(pool.spec.memory, pool.spec.slo.p99_ms, pool.spec.paused, policy, prefix_bytes, model)


def _made(
    memory: Memory, p99_ms: int, paused: bool, policy: Found[HBMPolicySpec], prefix_bytes: int, model: ModelRef | None
) -> Intent:
    spec = policy.spec
    return Intent(
        strategy=spec.strategy,
        enforcement=spec.effective_enforcement(),
        bounds=spec.bounds,
        step=spec.step,
        refill=IntentRefill(max_link_percent=spec.refill.max_link_percent, max_bytes_per_second=spec.refill.max_bytes()),
        learned=IntentLearned(clamp_percent=spec.learned.clamp_percent, residual=spec.learned.residual),
        recovery=spec.recovery,
        usable_bytes=memory.usable_bytes(prefix_bytes=prefix_bytes),
        host_bytes=parse_quantity(memory.host_bytes) or None,
        ssd_bytes=parse_quantity(memory.ssd_bytes) or None,
        p99_ms=p99_ms,
        model_ref=model,
        paused=paused,
        policy_ref=PolicyRef(name=policy.name, namespace=policy.namespace, generation=policy.generation, source=policy.source),
    )


@lru_cache(maxsize=1024)
def _on_the_wire(
    memory: Memory, p99_ms: int, paused: bool, policy: Found[HBMPolicySpec], prefix_bytes: int, model: ModelRef | None
) -> Mapping[str, Any]:
    """Each look at an instance asks for its intent. Those of a pool share it, and making one takes longer than such a look."""
    return MappingProxyType(_made(memory, p99_ms, paused, policy, prefix_bytes, model).to_wire())


def wanted_intent(
    pool: GRServingPool,
    instance: GRInstance,
    stored: Mapping[str, Any] | None,
    policy: Lookup[HBMPolicySpec],
    model: ModelLookup = None,
) -> Mapping[str, Any] | None:
    """The intent that should stand in the instance, on the wire; None to leave alone what stands there.

    Parameters
    ----------
    stored
        The intent that stands in the instance now, as the API server returned it.
    model
        What became of the model that the policy names; one that may not run leaves the intent, and the anchor decides.
    """
    if pool.spec.paused and stored is not None:
        return {**stored, "paused": True}
    if not isinstance(policy, Found):
        return (
            None if stored is None or stored.get("paused", False) == pool.spec.paused else {**stored, "paused": pool.spec.paused}
        )
    prefix = instance.spec.pre_infer.bytes if instance.spec.pre_infer is not None else 0
    ref = model.ref if isinstance(model, ModelFound) else None
    return _on_the_wire(pool.spec.memory, pool.spec.slo.p99_ms, pool.spec.paused, policy, prefix, ref)


def pushed_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the agent is told of the spec of an instance that has an intent: that, its pre-inference capacity, and to drain.

    Parameters
    ----------
    spec
        spec of the instance on the wire, as the API server numbered it.
    """
    told = dict(spec["intent"])
    capacity = spec.get("preInfer")
    if capacity is not None:
        tiers = {name: told.get(name, 0) for name in ("hostBytes", "ssdBytes")}
        told["preInfer"] = {"slots": capacity["slots"], "bytes": capacity["bytes"], **tiers}
    if spec.get("drain") is not None:
        told["draining"] = True
    return told


def audience_of(instance: GRInstance) -> dict[str, str]:
    """Whom the intent of an instance is for. Signed with it and no part of what it orders: an agent compares orders only."""
    return {"namespace": instance.metadata.namespace, "podUid": instance.spec.source.pod_uid or ""}
