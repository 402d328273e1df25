"""Carries out what concerns pods, Deployment and PodDisruptionBudget, and remembers what the API server made of it.

spec.replicas is never left among the fields that we apply: at birth the Deployment is applied with it, so that no pod too many or
too few is ever made; then the scale subresource takes the field over, and an apply without it gives it up. A process that dies in
between leaves a Deployment of the right size, and the next look does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controllers.holder import Holder, holder_of
from controllers.pool.actions import ApplyDeployment, MarkPod, OpenGate, ScaleDeployment
from controllers.pool.pod_world import Applied, Refusal, digest_of, outcome_of
from controllers.pool.rollout import state_of
from controllers.runtime.conditions import find_condition, timestamp
from controllers.runtime.errors import Forbidden, KindMissing, ReconcileError, Terminal
from controllers.runtime.kube import ABSENT
from controllers.runtime.loop import Context
from controllers.runtime.projection import DELETION_COST
from controllers.runtime.resources import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    GATE,
    PODS,
    Key,
    Object,
    identity,
    key_of,
    uid_of,
)
from controllers.runtime.ssa import owns
from crds.reasons import FieldManager

WorkloadAction = OpenGate | MarkPod | ApplyDeployment | ScaleDeployment

REFUSAL_SECONDS = 60.0
"""A body that was refused is tried again after this time: quotas and admission rules change without a word."""
BUDGET_SECONDS = 600.0
"""A PodDisruptionBudget is looked at again after this time; nobody watches them."""

_ABOUT_THE_BODY = (
    "unable to convert unstructured object",  # a quantity that is none, for instance: 500
    "denied the request",  # a webhook chooses its status code
    "denied request",  # so does a ValidatingAdmissionPolicy
    "failed calling webhook",
    "request is too large",  # etcd's word, 500: the fields' owners make a Deployment larger than the pool that asks for it
    "message larger than max",
)
"""Words of answers that look like troubles of the server and would be met again by the same body, with nothing said about it."""


class Refused(Exception):
    """The API server does not take the Deployment; what it said is in the memory by now."""


@dataclass(slots=True)
class _Remembered:
    refusal: tuple[Refusal, float] | None = None
    applied: Applied | None = None
    budget: tuple[str, float] | None = None
    state: tuple[tuple[Any, ...], float] | None = None


class WorkloadMemory:
    """What the API server answered, by pool. Forgetting it costs a request for each pool, or a moment, and nothing else."""

    def __init__(self) -> None:
        self._pools: dict[Key, _Remembered] = {}

    def forget(self, key: Key) -> None:
        """The pool is gone."""
        self._pools.pop(key, None)

    def clear(self) -> None:
        """Trust nothing: this process leads anew."""
        self._pools.clear()

    def refusal(self, key: Key, *, now_s: float) -> Refusal | None:
        """The refusal that still holds."""
        found = self._of(key).refusal
        return None if found is None or now_s - found[1] >= REFUSAL_SECONDS else found[0]

    def seconds_to_retry(self, key: Key, *, now_s: float) -> float | None:
        """When a refused body is worth another try; None when no refusal holds: then nothing is waited for."""
        found = self._of(key).refusal
        left = 0.0 if found is None else found[1] + REFUSAL_SECONDS - now_s
        return left if left > 0.0 else None

    def refused(self, key: Key, refusal: Refusal, *, now_s: float) -> None:
        """The API server did not take a body."""
        self._of(key).refusal = (refusal, now_s)

    def applied(self, key: Key) -> Applied | None:
        """The last apply."""
        return self._of(key).applied

    def note_applied(self, key: Key, applied: Applied) -> None:
        """The API server took a body."""
        remembered = self._of(key)
        remembered.applied, remembered.refusal = applied, None

    def budget_stands(self, key: Key, digest: str, *, now_s: float) -> bool:
        """Whether this very budget was found in place a short while ago."""
        found = self._of(key).budget
        return found is not None and found[0] == digest and now_s - found[1] < BUDGET_SECONDS

    def note_budget(self, key: Key, digest: str, *, now_s: float) -> None:
        """This budget is in place."""
        self._of(key).budget = (digest, now_s)

    def quiet_seconds(self, key: Key, deployment: Object | None, *, now_s: float) -> float:
        """For how long each look at the Deployment has found the same spec and the same counts."""
        if deployment is None:
            return 0.0
        remembered, state = self._of(key), state_of(deployment)
        if remembered.state is None or remembered.state[0] != state:
            remembered.state = (state, now_s)
        return now_s - remembered.state[1]

    def _of(self, key: Key) -> _Remembered:
        return self._pools.setdefault(key, _Remembered())


async def carry_out(action: WorkloadAction, ctx: Context, memory: WorkloadMemory) -> None:
    """Do one thing.

    Raises
    ------
    Refused
        See the class.
    """
    if isinstance(action, OpenGate):
        await _open_gate(action, ctx)
    elif isinstance(action, MarkPod):
        await _mark(action, ctx)
    elif isinstance(action, ScaleDeployment):
        await _scale(_latest(action.current, ctx), action.replicas, ctx)
    else:
        try:
            await _apply(action, ctx, memory)
        except ReconcileError as error:
            refusal = _refusal(error, action.digest)
            if refusal is None:
                raise
            memory.refused(key_of(action.body), refusal, now_s=ctx.clock.monotonic())
            raise Refused from error


async def ensure_budget(body: Mapping[str, Any], pool: Object, ctx: Context, memory: WorkloadMemory) -> None:
    """Put the PodDisruptionBudget in place unless it was found there a short while ago.

    One of somebody else is left alone; one of a deleted pool of this name is about to be collected, so the next look tries again.
    """
    key, digest, now_s = key_of(body), digest_of(body), ctx.clock.monotonic()
    if memory.budget_stands(key, digest, now_s=now_s):
        return
    current = await ctx.kube.get(DISRUPTION_BUDGETS, key)
    holder = holder_of(current, pool)
    if holder in (Holder.NOBODY, Holder.POOL):
        await ctx.kube.apply(
            DISRUPTION_BUDGETS,
            body,
            field_manager=FieldManager.POOL,
            current=current,
            resource_version=ABSENT if current is None else None,
            uid=None if current is None else uid_of(current),
        )
    if holder is not Holder.PREDECESSOR:
        memory.note_budget(key, digest, now_s=now_s)


async def _apply(action: ApplyDeployment, ctx: Context, memory: WorkloadMemory) -> None:
    key, current = key_of(action.body), action.current
    if current is None:
        born = {**action.body, "spec": {**action.body["spec"], "replicas": action.replicas}}
        current = await ctx.kube.apply(DEPLOYMENTS, born, field_manager=FieldManager.POOL, resource_version=ABSENT)
        ctx.store.upsert(DEPLOYMENTS, current)
    version = str(current["metadata"]["resourceVersion"])
    if _size_to_hand_over(current):
        version = await _scale(current, int(current["spec"]["replicas"]), ctx)
    answer = await ctx.kube.apply(  # guarded: a former leader's late word must not bring an older template back
        DEPLOYMENTS, action.body, field_manager=FieldManager.POOL, uid=uid_of(current), resource_version=version
    )
    ctx.store.upsert(DEPLOYMENTS, answer)
    kept = ctx.store.get(DEPLOYMENTS, key)
    if kept is not None:
        memory.note_applied(key, Applied(body=action.digest, outcome=outcome_of(kept)))


def _size_to_hand_over(current: Object) -> bool:
    """Whether spec.replicas is among the fields that we applied, and the scale has not taken it over yet."""
    applied, scaled = (
        owns(current, ("spec", "replicas"), field_manager=FieldManager.POOL, subresource=s) for s in (None, "scale")
    )
    return applied and not scaled


def _latest(seen: Object, ctx: Context) -> Object:
    """The Deployment as this plan has left it; another size than the one that was judged is not what was seen."""
    latest = ctx.store.get(DEPLOYMENTS, key_of(seen))
    same = latest is not None and uid_of(latest) == uid_of(seen) and latest["spec"]["replicas"] == seen["spec"]["replicas"]
    return latest if same and latest is not None else seen


async def _scale(current: Object, replicas: int, ctx: Context) -> str:
    """Guarded by the version that was looked at: the judgement holds for that Deployment only. Returns the next version."""
    version = current["metadata"]["resourceVersion"]
    answer = await ctx.kube.apply_scale(
        DEPLOYMENTS, key_of(current), replicas, field_manager=FieldManager.POOL, resource_version=version
    )
    return str(answer["metadata"]["resourceVersion"])


async def _open_gate(action: OpenGate, ctx: Context) -> None:
    pod, now = action.pod, timestamp(ctx.clock.now())
    before = find_condition((pod.get("status") or {}).get("conditions") or (), GATE)
    item = {
        "type": GATE,
        "status": "True",
        "reason": "FullShare",
        "message": "the routing table gives the instance its full share of users",
        "lastTransitionTime": now if before is None or before.get("status") != "True" else before["lastTransitionTime"],
    }
    answer = await ctx.kube.apply_status(
        PODS,
        {**identity(PODS, key_of(pod)), "status": {"conditions": [item]}},
        field_manager=FieldManager.POOL,
        resource_version=pod["metadata"]["resourceVersion"],
    )
    ctx.store.upsert(PODS, answer)


async def _mark(action: MarkPod, ctx: Context) -> None:
    pod = action.pod
    body = identity(PODS, key_of(pod))
    if action.deletion_cost is not None:
        body["metadata"]["annotations"] = {DELETION_COST: action.deletion_cost}
    version = pod["metadata"]["resourceVersion"]
    answer = await ctx.kube.apply(PODS, body, field_manager=FieldManager.POOL, uid=uid_of(pod), resource_version=version)
    ctx.store.upsert(PODS, answer)


def _refusal(error: ReconcileError, digest: str) -> Refusal | None:
    """What to say about it, or None when it passes by itself or is about the operator's own permissions."""
    if isinstance(error, Forbidden):
        if "exceeded quota" in error.message:
            return Refusal(digest=digest, reason="QuotaExceeded", message=error.message)
        if "denied the request" not in error.message and "is forbidden: User " in error.message:
            return None
        return Refusal(digest=digest, reason="DeploymentRefused", message=error.message)
    about_the_body = isinstance(error, Terminal) or any(words in error.message for words in _ABOUT_THE_BODY)
    if isinstance(error, KindMissing) or not about_the_body:
        return None
    return Refusal(digest=digest, reason="DeploymentRefused", message=error.message)
