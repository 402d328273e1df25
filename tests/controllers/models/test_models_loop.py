"""The models loop: what it says of the bytes that an AllocatorModel points at, who runs them, when it reads them again."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from example_models import model_bytes
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import instance_object, pool_object

from controllers.model_bytes import KEPT, RETRY_SECONDS, ModelBytes, binary_of
from controllers.models.controller import ModelsLoop
from controllers.models.observe import BROKEN_RECHECK_SECONDS, RECHECK_SECONDS
from controllers.models.verify import api_scores, verify
from controllers.parsed import ParsedObjects
from controllers.runtime.clock import FakeClock
from controllers.runtime.conditions import find_condition
from controllers.runtime.errors import Transient
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, CONFIG_MAPS, INSTANCES, Key, Object, ResourceType, key_of
from controllers.runtime.ssa import already_applied
from controllers.runtime.store import EventType, Store, WatchEvent
from crds import AllocatorModel, AllocatorModelSpec
from crds.allocator_model import ConfigMapKeyRef
from crds.reasons import reasons_of
from policies.allocation.model_file import SHAPES, ModelRefusal, Score, digest_of

WHERE = Key("team", "split-1")
SOURCE = Key("team", "bytes")
GOOD = model_bytes(1, scores=({"name": "trend-gain", "value": 12.5, "unit": "percent"},))


def model_object(data: bytes = GOOD, *, features: str = "split-features-1", generation: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": "AllocatorModel",
        "metadata": {"name": "split-1", "namespace": "team", "uid": "uid-m", "generation": generation, "resourceVersion": "5"},
        "spec": {
            "configMapKeyRef": {"name": "bytes", "key": "model.safetensors"},
            "sha256": digest_of(data),
            "featureSpec": features,
        },
    }


def config_map(data: bytes | None = GOOD, *, key: str = "model.safetensors") -> dict[str, Any]:
    binary = {} if data is None else {"binaryData": {key: base64.b64encode(data).decode()}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bytes", "namespace": "team"}, **binary}


def running(name: str, data: bytes = GOOD, *, namespace: str = "team") -> dict[str, Any]:
    """An instance whose intent names the model."""
    made = instance_object(f"pool-{name}", pool_object())
    made["spec"]["intent"] = {
        "modelRef": {"name": "split-1", "sha256": digest_of(data), "featureSpec": "split-features-1"},
        "policyRef": {"name": "p", "namespace": namespace, "generation": 1, "source": "Pool"},
    }
    return made


class Server:
    """An API server as far as this loop needs one."""

    def __init__(self) -> None:
        self.maps: dict[Key, dict[str, Any]] = {SOURCE: config_map()}
        self.down = False
        self.reads = 0
        self.writes = 0

    async def get(self, resource: ResourceType, key: Key, *, subresource: str | None = None) -> Object | None:
        assert resource == CONFIG_MAPS
        self.reads += 1
        if self.down:
            raise Transient("ConnectFailed", "refused")
        return self.maps.get(key)

    async def apply_status(
        self, resource: ResourceType, desired: Object, *, field_manager: str, current: Object, **_: Any
    ) -> Object:
        assert not already_applied(desired, current, field_manager=field_manager, subresource="status")
        self.writes += 1
        version = str(int(current["metadata"]["resourceVersion"]) + 1)
        return {**current, "metadata": {**current["metadata"], "resourceVersion": version}, "status": desired["status"]}


class World:
    """The loop, its store and its clock."""

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        self.clock, self.server, self.store = FakeClock(), Server(), Store((ALLOCATOR_MODELS, INSTANCES))
        self.said: list[tuple[str, str]] = []
        self.held = ModelBytes()
        self.loop = ModelsLoop(ParsedObjects(), self.held)
        events = SimpleNamespace(emit=lambda obj, level, reason, note, **_: self.said.append((level, reason)))
        self.ctx = cast(
            Context,
            SimpleNamespace(store=self.store, kube=self.server, clock=self.clock, events=events, rng=random.Random(0)),
        )
        self.store.upsert(ALLOCATOR_MODELS, stored or model_object())

    async def look(self, *, seconds: float = 0.0) -> float | None:
        """Let time pass, reconcile once, return when the loop wants to come back."""
        if seconds:
            await self.clock.advance(seconds)
        result = await self.loop.reconcile(WHERE, self.ctx)
        return result.requeue_after if result is not None else None

    async def lead(self) -> None:
        await self.loop.start(self.ctx)

    def status(self) -> Mapping[str, Any]:
        stored = self.store.get(ALLOCATOR_MODELS, WHERE)
        assert stored is not None
        AllocatorModel.parse(stored)  # what is written is what the API takes
        status: Mapping[str, Any] = stored.get("status") or {}
        return status

    def word(self, type_: str) -> tuple[str, str] | None:
        item = find_condition(self.status().get("conditions") or (), type_)
        return (item["status"], item["reason"]) if item is not None else None


@pytest.fixture
async def world() -> World:
    made = World()
    await made.lead()
    return made


def spec_of(obj: dict[str, Any]) -> AllocatorModelSpec:
    return AllocatorModel.parse(obj).spec


async def test_right_bytes_are_verified_and_the_status_says_what_is_in_them(world: World) -> None:
    await world.look()
    assert world.word("Verified") == ("True", "Verified")
    assert world.word("InUse") == ("False", "NotNamed")
    status = world.status()
    assert (status["sizeBytes"], status["instances"], status["observedGeneration"]) == (len(GOOD), 0, 1)
    assert status["scores"] == [{"name": "trend-gain", "value": "12.5", "unit": "percent"}]
    assert world.said == [("Normal", "Verified")]


async def test_nothing_is_written_and_little_is_read_while_nothing_changes(world: World) -> None:
    await world.look()
    for _ in range(100):
        await world.look(seconds=10)
    assert world.server.writes == 1
    assert world.server.reads <= 1 + 1000 / RECHECK_SECONDS


async def test_bytes_that_were_replaced_are_noticed_at_once_when_somebody_asks_for_it(world: World) -> None:
    await world.look()
    world.server.maps = {SOURCE: config_map(model_bytes(2))}
    for version, moment in ((100, "noon"), (200, "noon"), (300, "later")):
        stored = world.store.get(ALLOCATOR_MODELS, WHERE)
        assert stored is not None
        named = {**stored["metadata"], "resourceVersion": str(version), "annotations": {"grfleet.dev/read-again": moment}}
        world.store.upsert(ALLOCATOR_MODELS, {**stored, "metadata": named})
        await world.look(seconds=3)
        assert world.word("Verified") == ("False", "DigestMismatch")
    assert world.server.reads == 3  # the same word twice is one request


@pytest.mark.parametrize(
    ("stored", "found", "reason"),
    [
        (model_object(), None, "ConfigMapMissing"),
        (model_object(), config_map(None), "KeyMissing"),
        (model_object(), config_map(key="other"), "KeyMissing"),
        (model_object(), config_map(GOOD[:-1]), "DigestMismatch"),
        (model_object(), config_map(model_bytes(2)), "DigestMismatch"),
        (model_object(b""), config_map(b""), "NotAModel"),
        (model_object(b"\x80\x04K\x01."), config_map(b"\x80\x04K\x01."), "NotAModel"),
        (model_object(features="split-features-0"), config_map(), "OtherFeatures"),
        *(
            (model_object(data), config_map(data), reason)
            for data, reason in (
                (model_bytes(format=7), "UnknownFormat"),
                (model_bytes(featureSpec="split-features-9"), "UnknownFeatures"),
                (model_bytes(arrays={"w1": np.zeros((64, 30), np.float32)}), "WrongShape"),
                (model_bytes(arrays={"w1": np.zeros(SHAPES["w1"])}), "WrongType"),
                (model_bytes(arrays={"b1": np.full(SHAPES["b1"], np.nan, np.float32)}), "NotANumber"),
                (b"x" * (1 << 19), "TooLarge"),
            )
        ),
    ],
)
async def test_whatever_is_not_the_promised_model_is_refused_by_its_reason(
    stored: dict[str, Any], found: dict[str, Any] | None, reason: str
) -> None:
    world = World(stored)
    await world.lead()
    world.server.maps = {SOURCE: found} if found is not None else {}
    await world.look()
    assert world.word("Verified") == ("False", reason)
    assert "scores" not in world.status()
    assert world.said == [("Warning", reason)]


def test_every_fault_of_a_file_is_a_reason_that_the_reference_documents() -> None:
    documented = {reason.name for reason in reasons_of("Verified")}
    assert {refusal.value for refusal in ModelRefusal} <= documented


@given(st.binary(max_size=300))
def test_no_bytes_are_more_than_a_refusal(noise: bytes) -> None:
    for data in (noise, GOOD[:40] + noise):
        assert verify(spec_of(model_object(data)), config_map(data)).condition.status == "False"


@given(
    st.lists(
        st.builds(
            Score,
            name=st.sampled_from(["a", "gain", "A", "x" * 64, "", "-a", "p99 share"]) | st.text(max_size=70),
            value=st.floats(),
            unit=st.text(max_size=40),
        ),
        max_size=40,
    )
)
def test_whatever_scores_a_file_has_the_status_is_one_that_the_api_takes(scores: list[Score]) -> None:
    body = model_object()
    body["status"] = {"scores": api_scores(scores)}
    AllocatorModel.parse(body)


@pytest.mark.parametrize("stands", [None, 5, "%%%%", "é", "AAAA AAAA"])
def test_a_key_that_holds_no_bytes_counts_as_missing(stands: object) -> None:
    ref = ConfigMapKeyRef(name="m")
    assert binary_of({"binaryData": {ref.key: stands}}, ref) is None


@pytest.mark.parametrize(
    "score",
    [
        Score(name="a", value=999_999_999.9999999),
        Score(name="a", value=-999_999_999.9999996),
        Score(name="a", value=1.0, unit="\ud800"),
        Score(name="a", value=1.0, unit="%\x00"),
    ],
)
def test_a_score_that_the_api_would_refuse_or_change_is_left_out(score: Score) -> None:
    assert api_scores([score, Score(name="b", value=999_999_999.0, unit="%")]) == [
        {"name": "b", "value": "999999999", "unit": "%"}
    ]


def test_what_people_call_a_score_becomes_a_name_that_the_api_has() -> None:
    named = [
        Score(name=name, value=-0.5, unit="%") for name in ("In training, steady, model (guarded)", "P99 share", "p99-share", "-")
    ]
    assert [score["name"] for score in api_scores(named)] == ["in-training-steady-model-guarded", "p99-share"]


async def test_bytes_that_come_later_are_found_soon(world: World) -> None:
    world.server.maps.clear()
    again = await world.look()
    assert again is not None
    assert BROKEN_RECHECK_SECONDS <= again <= BROKEN_RECHECK_SECONDS * 1.1
    world.server.maps[SOURCE] = config_map()
    await world.look(seconds=again)
    assert world.word("Verified") == ("True", "Verified")
    assert world.said == [("Warning", "ConfigMapMissing"), ("Normal", "Verified")]


async def test_bytes_replaced_under_the_same_name_are_noticed_and_the_right_ones_welcomed_back(world: World) -> None:
    again = await world.look()
    world.server.maps[SOURCE] = config_map(model_bytes(2))
    assert again is not None
    await world.look(seconds=again)
    assert world.word("Verified") == ("False", "DigestMismatch")
    world.server.maps[SOURCE] = config_map()
    await world.look(seconds=BROKEN_RECHECK_SECONDS * 1.1)
    assert world.word("Verified") == ("True", "Verified")


async def test_an_api_server_that_does_not_answer_changes_no_word(world: World) -> None:
    await world.look()
    world.server.down = True
    with pytest.raises(Transient):
        await world.look(seconds=RECHECK_SECONDS * 1.2)
    assert world.word("Verified") == ("True", "Verified")


async def test_another_source_is_read_at_once(world: World) -> None:
    await world.look()
    moved = model_object(generation=2)
    moved["spec"]["configMapKeyRef"]["name"] = "elsewhere"
    moved["status"] = dict(world.status())
    moved["metadata"]["resourceVersion"] = "90"
    world.store.upsert(ALLOCATOR_MODELS, moved)
    await world.look(seconds=2)
    assert world.word("Verified") == ("False", "ConfigMapMissing")


async def test_instances_are_counted_by_name_digest_and_namespace(world: World) -> None:
    world.store.upsert(INSTANCES, running("a"))
    world.store.upsert(INSTANCES, running("b"))
    world.store.upsert(INSTANCES, running("other-digest", model_bytes(2)))
    world.store.upsert(INSTANCES, running("other-namespace", namespace="elsewhere"))
    await world.look()
    assert world.status()["instances"] == 2
    assert world.word("InUse") == ("True", "NamedByIntents")
    world.store.drop(INSTANCES, Key("team", "pool-a"))
    await world.look(seconds=11)
    world.store.drop(INSTANCES, Key("team", "pool-b"))
    await world.look(seconds=11)
    assert world.word("InUse") == ("False", "NotNamed")
    assert world.said == [("Normal", "Verified"), ("Normal", "NotNamed")]


async def test_a_wave_of_instances_is_at_most_a_write_in_ten_seconds(world: World) -> None:
    await world.look()
    for number in range(60):
        world.store.upsert(INSTANCES, running(f"i{number}"))
        await world.look(seconds=1)
    assert world.server.writes <= 1 + 7
    await world.look(seconds=10)
    assert world.status()["instances"] == 60


def test_an_instance_concerns_the_models_that_its_intent_names_or_named() -> None:
    loop, store = ModelsLoop(ParsedObjects(), ModelBytes()), Store((ALLOCATOR_MODELS, INSTANCES))
    bare, told = instance_object("pool-a", pool_object()), running("a")

    def woken(type_: EventType, obj: dict[str, Any], old: dict[str, Any] | None = None) -> set[Key]:
        return set(loop.keys_for(WatchEvent(type_, INSTANCES, key_of(obj), obj, old), store))

    assert woken(EventType.ADDED, told) == {WHERE}
    assert woken(EventType.MODIFIED, told, bare) == {WHERE}
    assert woken(EventType.MODIFIED, bare, told) == {WHERE}
    assert woken(EventType.DELETED, told) == {WHERE}
    assert woken(EventType.MODIFIED, told, told) == woken(EventType.ADDED, bare) == woken(EventType.RESYNC, told) == set()


async def test_the_bytes_of_a_model_that_runs_are_at_hand_and_those_of_others_are_read_when_needed(world: World) -> None:
    await world.look()
    reads = world.server.reads
    assert await world.held.of(world.ctx, WHERE, digest_of(GOOD)) == GOOD
    assert world.server.reads == reads + 1
    other = World()
    await other.lead()
    other.store.upsert(INSTANCES, running("a"))
    await other.look()
    reads = other.server.reads
    assert await other.held.of(other.ctx, WHERE, digest_of(GOOD)) == GOOD
    assert other.server.reads == reads


async def test_bytes_that_are_not_there_are_not_asked_for_by_every_instance() -> None:
    world = World()
    world.server.maps.clear()
    for _ in range(50):
        assert await world.held.of(world.ctx, WHERE, digest_of(GOOD)) is None
    assert world.server.reads == 1
    world.server.maps[SOURCE] = config_map(model_bytes(2))
    await world.clock.advance(RETRY_SECONDS)
    assert await world.held.of(world.ctx, WHERE, digest_of(GOOD)) is None  # others under the same name are never handed out
    world.server.maps[SOURCE] = config_map()
    await world.clock.advance(RETRY_SECONDS)
    assert await world.held.of(world.ctx, WHERE, digest_of(GOOD)) == GOOD


async def test_only_a_few_models_are_kept() -> None:
    world = World()
    for number in range(3 * KEPT):
        world.held.keep(f"{number:064d}", b"x")
    assert len(world.held._bytes) == KEPT


async def test_a_new_leader_reads_again_and_writes_nothing_when_all_stands(world: World) -> None:
    await world.look()
    await world.lead()
    await world.look(seconds=1)
    assert (world.server.reads, world.server.writes) == (2, 1)


async def test_a_model_that_is_gone_is_forgotten(world: World) -> None:
    await world.look()
    world.store.drop(ALLOCATOR_MODELS, WHERE)
    assert await world.look() is None
