"""What is signed, and what happens to an intent while the operator's own key is unusable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from loop_objects import NOW, agent_status, instance_object, pool_object

from contract import signing
from contract.agent import Intent, IntentAnswer, IntentAudience, IntentStatus, intent_audience
from controllers.allocation.agents import Agents
from controllers.allocation.decide import Plan, decide
from controllers.allocation.execute import execute
from controllers.allocation.intent import intent_for
from controllers.allocation.memory import Memory
from controllers.allocation.observe import Observation
from controllers.allocation.sightings import Answered
from controllers.lookup import Found
from controllers.model_bytes import ModelBytes
from controllers.runtime.conditions import find_condition
from controllers.runtime.errors import NotLeader, Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import key_of
from controllers.signing_key import SigningKey
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.instance import PolicySource
from dataplane.agent.intent import IntentBook

POLICY = Found(spec=HBMPolicySpec(), name="mine", namespace="team", generation=3, source=PolicySource.POOL)


class BrokenKey(SigningKey):
    async def private(self, ctx: Context) -> bytes:
        raise Terminal("SigningKeyUnusable", "Secret ours/key: entry private.key must hold 32 bytes")


class OwnKey(SigningKey):
    async def private(self, ctx: Context) -> bytes:
        return bytes(range(32))


class Recorder:
    """Agents that take everything."""

    def __init__(self) -> None:
        self.taken: list[Intent] = []

    async def push(self, uid: str, url: str, intent: Intent) -> IntentAnswer:
        self.taken.append(intent)
        return IntentAnswer(status=IntentStatus.ACCEPTED, uid=intent.uid, generation=intent.generation)


def observed(*, pod_uid: str | None = None, **more: Any) -> Observation:
    pool = pool_object(entries=("a",))
    intent = intent_for(GRServingPool.parse(pool), POLICY).to_wire()
    stored = instance_object("pool-a", pool, intent=intent, generation=2)
    if pod_uid is not None:
        stored["spec"]["source"] |= {"kind": "Pod", "podName": "pool-a", "podUID": pod_uid}
    sighting = Answered(status=agent_status(generation=1))
    return Observation(
        instance=GRInstance.parse(stored), pool=GRServingPool.parse(pool), stored=stored, policy=POLICY, sighting=sighting, **more
    )


async def test_without_a_usable_key_the_status_says_so_and_the_push_is_tried_again() -> None:
    seen, memory = observed(), Memory()
    clock = SimpleNamespace(now=lambda: NOW, monotonic=lambda: 100.0)
    ctx = cast(Context, SimpleNamespace(fence=SimpleNamespace(check=lambda: None), clock=clock))
    plan = decide(seen, NOW)
    assert plan.push is not None

    await execute(plan, seen, cast(Agents, None), memory, BrokenKey(), ModelBytes(), ctx)

    pushed = memory.last_push(key_of(seen.stored))
    assert pushed is not None
    later = decide(observed(refusal=pushed.refusal, push_age_s=9.0), NOW)
    assert later.status is not None
    condition = find_condition(later.status["conditions"], "PolicyHealthy")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "IntentNotAccepted")
    assert "private.key must hold 32 bytes" in condition["message"]
    assert later.push is not None


@pytest.mark.parametrize(
    ("pod_uid", "named"), [(None, ""), ("8f14e45f-ceea-467f-9d2a-0a1b2c3d4e5f", "8f14e45f-ceea-467f-9d2a-0a1b2c3d4e5f")]
)
async def test_whom_an_intent_is_for_is_signed_with_it(pod_uid: str | None, named: str) -> None:
    seen, agents = observed(pod_uid=pod_uid), Recorder()
    clock = SimpleNamespace(now=lambda: NOW, monotonic=lambda: 100.0)
    ctx = cast(Context, SimpleNamespace(fence=SimpleNamespace(check=lambda: None), clock=clock))

    await execute(decide(seen, NOW), seen, cast(Agents, agents), Memory(), OwnKey(), ModelBytes(), ctx)

    (intent,) = agents.taken
    assert signing.is_authentic(intent, signing.public_key(bytes(range(32))))
    namespace = seen.instance.metadata.namespace
    assert intent_audience(intent.spec) == IntentAudience(namespace=namespace, pod_uid=named)
    book = IntentBook(public_key=None, namespace=namespace, pod_uid=named)
    assert book.offer(intent, now_s=NOW.timestamp()).status is IntentStatus.ACCEPTED
    elsewhere = IntentBook(public_key=None, namespace="another")
    assert elsewhere.offer(intent, now_s=NOW.timestamp()).status is IntentStatus.INVALID


async def test_a_former_leader_hands_no_intent_over() -> None:
    seen, agents = observed(), Recorder()

    def check() -> None:
        raise NotLeader

    clock = SimpleNamespace(now=lambda: NOW, monotonic=lambda: 100.0)
    ctx = cast(Context, SimpleNamespace(fence=SimpleNamespace(check=check), clock=clock))
    with pytest.raises(NotLeader):
        await execute(decide(seen, NOW), seen, cast(Agents, agents), Memory(), OwnKey(), ModelBytes(), ctx)
    assert agents.taken == []


async def test_an_intent_is_written_into_the_very_object_that_was_read() -> None:
    """So that the late word of a former leader is refused by the API server."""
    seen, written = observed(), []

    async def apply(resource: Any, body: Any, **guards: Any) -> Any:
        written.append(guards)
        return seen.stored

    store = SimpleNamespace(upsert=lambda resource, stored: None)
    ctx = cast(Context, SimpleNamespace(kube=SimpleNamespace(apply=apply), store=store))
    await execute(Plan(intent={}), seen, cast(Agents, None), Memory(), OwnKey(), ModelBytes(), ctx)
    (guards,) = written
    metadata = seen.stored["metadata"]
    assert (guards["resource_version"], guards["uid"]) == (metadata["resourceVersion"], metadata["uid"])
