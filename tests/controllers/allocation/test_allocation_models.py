"""How a model gets from a policy into intents and agents: who names it, when its bytes are handed over, what is said then."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from example_models import model_bytes
from loop_objects import NOW, agent_status, condition_item, instance_object, pool_object

from contract import signing
from contract.agent import Intent, ModelAnswer, ModelStatus, intent_spec
from contract.errors import ProtocolViolation, Unreachable
from controllers.agent_book import AgentBook
from controllers.allocation.agents import Agents
from controllers.allocation.decide import REFUSED_MODEL_SECONDS, REPEAT_MODEL_SECONDS, PushModel, decide
from controllers.allocation.execute import execute
from controllers.allocation.intent import intent_for
from controllers.allocation.memory import Memory
from controllers.allocation.observe import Observation
from controllers.allocation.sightings import Answered
from controllers.allocation.verdicts import MODEL_SECONDS, policy_healthy
from controllers.lookup import Found
from controllers.model_bytes import ModelBytes
from controllers.model_lookup import ModelFound, ModelLookup, ModelUnusable, model_of
from controllers.parsed import ParsedObjects
from controllers.runtime.clock import FakeClock
from controllers.runtime.errors import Forbidden, NotLeader
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, HBM_POLICIES, INSTANCES, POOLS, Key, key_of
from controllers.runtime.store import EventType, Store, WatchEvent
from controllers.signing_key import SigningKey
from controllers.wake import instances_for, pools_of_model
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.hbm_policy import Learned
from crds.instance import ModelRef, PolicySource
from policies.allocation.model_file import digest_of

DATA = model_bytes(1)
DIGEST = digest_of(DATA)
REF = ModelRef(name="split-1", sha256=DIGEST, feature_spec="split-features-1")
FOUND = ModelFound(ref=REF, namespace="team")
POLICY = Found(
    spec=HBMPolicySpec(strategy="Learned", learned=Learned(model="split-1")),
    name="mine",
    namespace="team",
    generation=3,
    source=PolicySource.POOL,
)


def model_object(*, verified: tuple[str, str] | None = ("True", "Verified"), digest: str = DIGEST) -> dict[str, Any]:
    status = {"conditions": [condition_item("Verified", *verified)]} if verified is not None else {}
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "AllocatorModel",
        "metadata": {"name": "split-1", "namespace": "team", "uid": "uid-m", "generation": 1, "resourceVersion": "5"},
        "spec": {"configMapKeyRef": {"name": "b"}, "sha256": digest, "featureSpec": "split-features-1"},
        "status": status,
    }


def policy_object(name: str = "mine", *, model: str = "split-1", namespace: str = "team") -> dict[str, Any]:
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "HBMPolicy",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 3, "resourceVersion": "7"},
        "spec": {"strategy": "Learned", "learned": {"model": model}},
    }


def lookup(stored: dict[str, Any] | None, policy: Any = POLICY) -> ModelLookup:
    store = Store((ALLOCATOR_MODELS,))
    if stored is not None:
        store.upsert(ALLOCATOR_MODELS, stored)
    return model_of(store, policy, parsed=ParsedObjects())


def observed(
    model: ModelLookup = FOUND, *, stored_model: ModelRef | None = REF, models: tuple[str, ...] = (), **more: Any
) -> Observation:
    """An instance whose agent holds its intent, which names `stored_model`."""
    pool = pool_object(entries=("a",))
    intent = intent_for(GRServingPool.parse(pool), POLICY, model=stored_model).to_wire()
    stored = instance_object("pool-a", pool, intent=intent)
    held = bool(models) and stored_model is not None and stored_model.sha256 in models
    said = {"strategy_in_force": "Learned" if held else "MissRatioCurve", "reason": "LearnedTarget" if held else "ModelMissing"}
    more.setdefault("sighting", Answered(status=agent_status(models=models, **said)))
    return Observation(
        instance=GRInstance.parse(stored), stored=stored, pool=GRServingPool.parse(pool), policy=POLICY, model=model, **more
    )


def healthy(seen: Observation) -> tuple[str, str]:
    condition = policy_healthy(seen)
    return condition.status, condition.reason


# -- which model an intent names -----------------------------------------------------------------------------------------------


def test_a_verified_model_of_the_policys_namespace_is_named_with_its_digest() -> None:
    assert lookup(model_object()) == FOUND


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (None, "ModelMissing"),
        (model_object(verified=None), "ModelMissing"),
        (model_object(verified=("False", "DigestMismatch")), "ModelRefused"),
        (model_object(verified=("False", "UnknownFeatures")), "ModelRefused"),
        (model_object(digest="no digest"), "ModelRefused"),
    ],
)
def test_a_model_that_may_not_run_is_not_named_and_the_reason_is_told(stored: dict[str, Any] | None, reason: str) -> None:
    found = lookup(stored)
    assert isinstance(found, ModelUnusable)
    assert found.reason == reason
    assert "team/split-1" in found.why


@pytest.mark.parametrize("strategy", ["Static", "HillClimb", "MissRatioCurve"])
def test_other_strategies_name_no_model_whatever_the_policy_says_of_one(strategy: str) -> None:
    spec = HBMPolicySpec(strategy=strategy, learned=Learned(model="split-1"))
    assert lookup(model_object(), Found(spec=spec, name="p", namespace="team", source=PolicySource.POOL)) is None
    assert lookup(model_object(), Found(spec=HBMPolicySpec(), name="default", source=PolicySource.DEFAULTS)) is None


def test_the_intent_of_a_learned_policy_names_the_model_and_can_be_signed_and_read() -> None:
    plan = decide(observed(stored_model=None), NOW)
    assert plan.intent is not None
    assert plan.intent["modelRef"] == {"name": "split-1", "sha256": DIGEST, "featureSpec": "split-features-1"}
    signing.payload(Intent(uid="u", generation=1, issued=1, expires=2, spec=dict(plan.intent)))
    ref = intent_spec(dict(plan.intent)).model_ref
    assert ref is not None
    assert ref.sha256 == DIGEST


def test_a_model_that_may_run_no_longer_leaves_the_intent_so_that_the_anchor_decides_everywhere() -> None:
    plan = decide(observed(ModelUnusable(reason="ModelRefused", why="DigestMismatch")), NOW)
    assert plan.intent is not None
    assert "modelRef" not in plan.intent
    assert plan.intent["strategy"] == "Learned"


def test_a_paused_pool_keeps_the_model_in_its_intents() -> None:
    seen = observed(ModelUnusable(reason="ModelRefused", why="DigestMismatch"))
    paused = pool_object(entries=("a",), paused=True)
    plan = decide(
        Observation(
            instance=seen.instance, stored=seen.stored, pool=GRServingPool.parse(paused), policy=POLICY, model=seen.model
        ),
        NOW,
    )
    assert plan.intent is not None
    assert plan.intent["modelRef"]["sha256"] == DIGEST


# -- when bytes are handed over ------------------------------------------------------------------------------------------------


def test_bytes_are_handed_over_when_the_agent_holds_the_intent_and_lacks_the_model() -> None:
    assert decide(observed(), NOW).push_model == PushModel(where=Key("team", "split-1"), sha256=DIGEST)


@pytest.mark.parametrize(
    "seen",
    [
        observed(models=(DIGEST,)),
        observed(None, stored_model=None),
        observed(sighting=Answered(status=agent_status(generation=0))),  # it holds an older intent: it would refuse
        observed(holder="team/other"),
        observed(model_push_age_s=REPEAT_MODEL_SECONDS - 1),
        observed(model_push_age_s=REFUSED_MODEL_SECONDS - 1, model_refusal="NotAModel"),
    ],
    ids=["held", "none named", "older intent", "another's agent", "just tried", "refused lately"],
)
def test_bytes_are_not_handed_over_without_need_or_too_often(seen: Observation) -> None:
    assert decide(seen, NOW).push_model is None


@pytest.mark.parametrize(
    "seen",
    [
        observed(model_push_age_s=REPEAT_MODEL_SECONDS),
        observed(model_push_age_s=REFUSED_MODEL_SECONDS, model_refusal="NotAModel"),
        observed(models=("0" * 64, "1" * 64)),
    ],
    ids=["no answer", "refused a while ago", "others are held"],
)
def test_they_are_handed_over_anew_after_a_while(seen: Observation) -> None:
    assert decide(seen, NOW).push_model is not None


# -- what is said --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (observed(models=(DIGEST,)), ("True", "ShadowOnly")),
        (observed(), ("Unknown", "Pending")),
        (observed(model_push_age_s=3.0, model_wait_s=MODEL_SECONDS - 1), ("Unknown", "Pending")),
        (observed(model_push_age_s=3.0, model_wait_s=MODEL_SECONDS + 1), ("False", "ModelMissing")),
        (observed(model_push_age_s=3.0, model_refusal="WrongShape: w1"), ("False", "ModelRefused")),
        # It was refused, and is held since: the intent had changed in between, or the answer was lost on its way.
        (observed(models=(DIGEST,), model_push_age_s=900.0, model_refusal="NotWanted: no intent"), ("True", "ShadowOnly")),
        (observed(ModelUnusable(reason="ModelMissing", why="none"), stored_model=None), ("False", "ModelMissing")),
        (observed(ModelUnusable(reason="ModelRefused", why="bad"), stored_model=None), ("False", "ModelRefused")),
        (
            observed(
                models=(DIGEST,),
                sighting=Answered(status=agent_status(strategy_in_force="Learned", reason="OutOfDistribution", models=(DIGEST,))),
            ),
            ("False", "OutOfDistribution"),
        ),
    ],
)
def test_policy_healthy_says_what_became_of_the_model(seen: Observation, expected: tuple[str, str]) -> None:
    assert healthy(seen) == expected


# -- carrying it out -----------------------------------------------------------------------------------------------------------


class Port:
    """One agent."""

    def __init__(self, *answers: ModelAnswer | Exception) -> None:
        self.answers = list(answers)
        self.taken: list[tuple[str, bytes]] = []

    async def status(self) -> Any:
        return agent_status()

    async def put_model(self, sha256: str, data: bytes) -> ModelAnswer:
        self.taken.append((sha256, data))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        """Nothing to close."""


class Site:
    """What `execute` works with, around one agent."""

    def __init__(self, port: Port, *, leads: bool = True, data: bytes | None = DATA) -> None:
        self.clock, self.memory, self.models, self.counted = FakeClock(), Memory(), ModelBytes(), []
        if data is not None:
            self.models.keep(DIGEST, data)
        self.agents = Agents(
            clock=self.clock,
            rng=random.Random(0),
            connect=lambda url: cast(Any, port),
            book=AgentBook(),
            count=lambda call, outcome: self.counted.append((call, outcome)),
        )

        def check() -> None:
            if not leads:
                raise NotLeader

        self.ctx = cast(
            Context, SimpleNamespace(fence=SimpleNamespace(check=check), clock=self.clock, store=Store((ALLOCATOR_MODELS,)))
        )

    async def push(self) -> None:
        seen = observed(sighting=Answered(status=agent_status(strategy_in_force="MissRatioCurve", reason="ModelMissing")))
        plan = decide(seen, NOW)
        assert plan.push_model is not None
        only = type(plan)(push_model=plan.push_model)
        await execute(only, seen, self.agents, self.memory, SigningKey(), self.models, self.ctx)


def held() -> ModelAnswer:
    return ModelAnswer(status=ModelStatus.HELD, models=[DIGEST])


async def test_a_model_that_is_taken_has_the_agent_asked_at_once() -> None:
    port = Port(held())
    site = Site(port)
    await site.agents.look("uid-pool-a", "http://a:81")
    await site.push()
    assert port.taken == [(DIGEST, DATA)]
    assert site.counted[-1] == ("model", "held")
    assert site.agents.seconds_to_next("uid-pool-a") == 0.0


async def test_a_former_leader_hands_nothing_over() -> None:
    port = Port(held())
    with pytest.raises(NotLeader):
        await Site(port, leads=False).push()
    assert port.taken == []


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (ModelAnswer(status=ModelStatus.REFUSED, models=[], reason="NotAModel", message="no header"), "NotAModel: no header"),
        (ModelAnswer(status=ModelStatus.NOT_WANTED, models=[], reason="NotWanted", message="none"), "NotWanted: none"),
        (ProtocolViolation("PUT /model: status 404 is none of an agent"), "update the agent"),
        (Unreachable("PUT /model: TimeoutError"), None),
    ],
)
async def test_what_an_agent_did_not_take_is_remembered_with_its_words(answer: Any, refusal: str | None) -> None:
    site = Site(Port(answer))
    await site.push()
    last = site.memory.last_model(key_of(observed().stored))
    assert last is not None
    assert not last.taken
    assert last.refusal is None if refusal is None else refusal in (last.refusal or "")


async def test_bytes_that_are_not_at_hand_cost_no_call_and_the_wait_is_counted_from_its_beginning() -> None:
    port = Port()
    site = Site(port, data=None)
    for _ in range(4):
        await site.push()
        await site.clock.advance(11.0)
    last = site.memory.last_model(key_of(observed().stored))
    assert last is not None
    assert (port.taken, last.at_s - last.since_s) == ([], 33.0)


async def test_a_source_that_cannot_be_read_does_not_keep_the_loop_from_its_agent() -> None:
    port, refused = Port(), []
    site = Site(port, data=None)
    site.ctx.store.upsert(ALLOCATOR_MODELS, model_object())

    async def get(resource: Any, key: Key) -> Any:
        refused.append(key)
        raise Forbidden("Forbidden", "get configmaps team/b: no")

    site.ctx.kube = SimpleNamespace(get=get)  # type: ignore[misc]  # a namespace, frozen only by its type
    await site.push()
    assert (port.taken, refused) == ([], [Key("team", "b")])
    assert site.memory.last_model(key_of(observed().stored)) is not None


# -- who is woken --------------------------------------------------------------------------------------------------------------


def woken(event: WatchEvent) -> tuple[set[Key], set[Key]]:
    """Instances and pools that the event concerns, in a namespace with one pool under the policy and one under another."""
    store = Store((ALLOCATOR_MODELS, HBM_POLICIES, POOLS, INSTANCES))
    for pool, policy in (("pool", "mine"), ("other", "another")):
        made = pool_object(pool, entries=("a",), policies={"hbm": policy})
        store.upsert(POOLS, made)
        store.upsert(INSTANCES, instance_object(f"{pool}-a", made))
    store.upsert(HBM_POLICIES, policy_object())
    store.upsert(HBM_POLICIES, policy_object("another", model="split-2"))
    store.upsert(HBM_POLICIES, policy_object(namespace="elsewhere"))
    return set(instances_for(event, store)), set(pools_of_model(event, store))


@pytest.mark.parametrize(
    ("type_", "new", "old"),
    [
        (EventType.ADDED, model_object(), None),
        (EventType.MODIFIED, model_object(), model_object(verified=None)),
        (EventType.MODIFIED, model_object(verified=("False", "DigestMismatch")), model_object()),
        (EventType.DELETED, model_object(), model_object()),
    ],
)
def test_a_model_that_comes_goes_or_changes_its_word_wakes_whom_its_policy_concerns(
    type_: EventType, new: dict[str, Any], old: dict[str, Any] | None
) -> None:
    event = WatchEvent(type_, ALLOCATOR_MODELS, key_of(new), new, old)
    assert woken(event) == ({Key("team", "pool-a")}, {Key("team", "pool")})


def test_a_count_of_instances_or_a_resync_wakes_nobody() -> None:
    counted = model_object()
    counted["status"] = {**counted["status"], "instances": 4}
    for event in (
        WatchEvent(EventType.MODIFIED, ALLOCATOR_MODELS, key_of(counted), counted, model_object()),
        WatchEvent(EventType.RESYNC, ALLOCATOR_MODELS, key_of(counted), counted, None),
    ):
        assert woken(event) == (set(), set())
