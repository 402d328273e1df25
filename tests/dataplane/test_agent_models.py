"""The models that an agent holds: only what its intent names, only the right bytes, two at most, nothing after a restart."""

from __future__ import annotations

import pickle

import httpx
import msgspec
import numpy as np
import pytest
from dataplane_world import World
from example_models import model_bytes
from hypothesis import given
from hypothesis import strategies as st

from contract import agent
from contract.agent import MAX_MODEL_BYTES, ModelAnswer, ModelStatus
from contract.agent_client import AgentClient
from dataplane.agent.server import route_of
from dataplane.http.server import serving
from policies.allocation.features import FEATURES
from policies.allocation.model_file import SHAPES, digest_of

GOOD = model_bytes(seed=1)
OTHER = model_bytes(seed=2)
THIRD = model_bytes(seed=3)


def learned(world: World, data: bytes, **spec: object) -> str:
    """An intent that names the model with these bytes."""
    digest = digest_of(data)
    world.intend(strategy="Learned", modelRef={"name": "m", "sha256": digest, "featureSpec": "split-features-1"}, **spec)
    return digest


def offer(world: World, digest: str, data: bytes) -> ModelAnswer:
    """As the server does it."""
    return world.agent.unwanted_model(digest) or world.agent.offer_model(digest, data)


def test_an_agent_takes_the_model_that_its_intent_names_and_says_so() -> None:
    world = World()
    digest = learned(world, GOOD)
    assert world.agent.status().model_in_force is None
    answer = offer(world, digest, GOOD)
    assert (answer.status, answer.models) == (ModelStatus.HELD, [digest])
    status = world.agent.status()
    assert (status.models, status.model_in_force, status.strategy_in_force) == ((digest,), digest, "Learned")
    assert offer(world, digest, b"whatever").status is ModelStatus.UNCHANGED


def test_a_digest_that_no_intent_names_is_not_taken() -> None:
    world = World()
    digest = digest_of(GOOD)
    assert offer(world, digest, GOOD).status is ModelStatus.NOT_WANTED  # no intent at all
    learned(world, OTHER)
    answer = offer(world, digest, GOOD)
    assert (answer.status, answer.reason, answer.models) == (ModelStatus.NOT_WANTED, "NotWanted", [])
    world.intend(strategy="MissRatioCurve", modelRef={"name": "m", "sha256": digest})
    assert offer(world, digest, GOOD).status is ModelStatus.NOT_WANTED  # nothing will run it
    assert world.agent.status().models == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "NotAModel"),
        (b"\x00" * 4096, "NotAModel"),
        (pickle.dumps({"w1": [1.0]}), "NotAModel"),
        (GOOD[:-7], "NotAModel"),
        (model_bytes(format=2), "UnknownFormat"),
        (model_bytes(featureSpec="split-features-9"), "UnknownFeatures"),
        (b"x" * (MAX_MODEL_BYTES + 1), "TooLarge"),
    ],
    ids=["empty", "zeros", "a pickle", "cut off", "too new", "other features", "too large"],
)
async def test_bytes_that_are_no_model_are_refused_with_a_reason_and_nothing_is_held(data: bytes, reason: str) -> None:
    world = World()
    digest = learned(world, data)  # whoever made the AllocatorModel named exactly these bytes
    answer = offer(world, digest, data)
    assert (answer.status, answer.reason, answer.models) == (ModelStatus.REFUSED, reason, [])
    status = world.agent.status()
    assert (status.models, status.model_in_force, status.strategy_in_force) == ((), None, "MissRatioCurve")
    assert reason in status.message
    await world.rounds(3)
    assert world.reason == "ModelMissing" or not world.frozen


@given(st.binary(max_size=600), st.integers(0, 8))
def test_no_bytes_whatever_bring_an_agent_down(noise: bytes, at: int) -> None:
    world = World()
    for data in (noise, GOOD[: at * 40] + noise, GOOD[:8] + noise + GOOD[8:]):
        answer = offer(world, learned(world, data), data)
        assert answer.status is ModelStatus.REFUSED or (data == GOOD and answer.status is not ModelStatus.NOT_WANTED)


def test_other_bytes_under_the_digest_are_refused_and_the_right_ones_are_still_taken() -> None:
    world = World()
    digest = learned(world, GOOD)
    assert offer(world, digest, OTHER).reason == "DigestMismatch"
    assert "DigestMismatch" in world.agent.status().message
    assert offer(world, digest, GOOD).status is ModelStatus.HELD
    assert "DigestMismatch" not in world.agent.status().message


def test_two_models_are_kept_and_going_back_to_the_first_needs_no_delivery() -> None:
    world = World()
    first = learned(world, GOOD)
    offer(world, first, GOOD)
    second = learned(world, OTHER)
    assert world.agent.status().model_in_force is None  # the first is held and no longer asked for
    offer(world, second, OTHER)
    learned(world, GOOD)
    assert world.agent.status().model_in_force == first
    third = learned(world, THIRD)
    offer(world, third, THIRD)
    assert world.agent.status().models == (first, third)  # the second was named longest ago


def test_an_intent_without_a_model_lets_the_anchor_decide_and_keeps_the_bytes() -> None:
    world = World()
    digest = learned(world, GOOD)
    offer(world, digest, GOOD)
    world.intend(strategy="Learned")
    status = world.agent.status()
    assert (status.models, status.model_in_force, status.strategy_in_force) == ((digest,), None, "MissRatioCurve")
    learned(world, GOOD)
    assert world.agent.status().model_in_force == digest


async def test_a_model_that_is_held_decides_from_the_next_round_on_and_the_record_says_what_it_said() -> None:
    world = World()
    digest = learned(world, GOOD, learned={"clampPercent": 7})
    for _ in range(75):
        world.touch_skewed_users()
        await world.rounds()
    assert world.reason == "ModelMissing"
    offer(world, digest, GOOD)
    for _ in range(3):
        world.touch_skewed_users()
        await world.rounds()
    record = world.agent.decisions_after(0, limit=1000).decisions[-1]
    assert (world.reason, record.layer) == ("LearnedTarget", "Base")
    assert -1.0 <= record.inputs["round"]["guest"]["action"] <= 1.0
    assert record.inputs["intent"]["learned"] | {"residual": None} == {
        "model_sha256": digest,
        "clamp_percent": 7.0,
        "residual": None,
    }


async def test_a_load_that_training_never_saw_leaves_the_anchor_to_decide_and_names_what_is_strange() -> None:
    world = World()
    narrow = model_bytes(
        arrays={"low": np.full(SHAPES["low"], -1e-9, np.float32), "high": np.full(SHAPES["high"], 1e-9, np.float32)}
    )
    offer(world, learned(world, narrow), narrow)
    for _ in range(75):
        world.touch_skewed_users()
        await world.rounds()
    assert world.reason == "OutOfDistribution"
    assert any(feature in world.agent.status().message for feature in FEATURES)


def test_a_restarted_agent_holds_nothing() -> None:
    world = World()
    digest = learned(world, GOOD)
    offer(world, digest, GOOD)
    world.agent = world.new_agent()
    assert world.agent.status().models == ()
    learned(world, GOOD)
    assert offer(world, digest, GOOD).status is ModelStatus.HELD


@pytest.fixture
async def served():  # type: ignore[no-untyped-def]  # an async generator; the type is longer than it helps
    world = World()
    async with serving(route_of(world.agent), "http://127.0.0.1:0") as url:
        yield world, url


async def test_the_client_hands_over_a_model_and_reads_every_verdict(served: tuple[World, str]) -> None:
    world, url = served
    digest = learned(world, GOOD)
    async with AgentClient(url) as client:
        assert (await client.put_model(digest_of(OTHER), OTHER)).status is ModelStatus.NOT_WANTED
        assert (await client.put_model(digest, OTHER)).reason == "DigestMismatch"
        assert (await client.put_model(digest, GOOD)).status is ModelStatus.HELD
        assert (await client.put_model(digest, GOOD)).status is ModelStatus.UNCHANGED
        assert (await client.status()).models == (digest,)


async def test_a_body_above_the_limit_is_refused_whether_or_not_it_says_how_long_it_is(served: tuple[World, str]) -> None:
    world, url = served
    digest = learned(world, GOOD)

    async def endless():  # type: ignore[no-untyped-def]  # as above
        for _ in range(64):
            yield b"x" * 8192

    async with httpx.AsyncClient() as http:
        for body in (b"x" * (MAX_MODEL_BYTES + 1), endless()):
            response = await http.put(f"{url}{agent.PREFIX}/model/{digest}", content=body)
            assert response.status_code == 400
            assert msgspec.json.decode(response.content, type=ModelAnswer).reason == "TooLarge"
    assert world.agent.status().models == ()


@pytest.mark.parametrize("digest", ["ABC", "g" * 64, "A" * 64, "0" * 65])
async def test_a_path_that_is_no_digest_is_not_found(served: tuple[World, str], digest: str) -> None:
    _, url = served
    async with httpx.AsyncClient() as http:
        assert (await http.put(f"{url}{agent.PREFIX}/model/{digest}", content=GOOD)).status_code == 404


FILES = tuple(model_bytes(seed) for seed in range(4))
STEPS = st.one_of(
    st.tuples(st.just("intend"), st.sampled_from([None, 0, 1, 2, 3]), st.just(0)),
    st.tuples(st.just("offer"), st.integers(0, 3), st.integers(0, 3)),  # the bytes of one under the digest of the other
    st.tuples(st.just("junk"), st.integers(0, 3), st.integers(0, 40)),
)


@given(st.lists(STEPS, max_size=25))
def test_whatever_comes_in_whatever_order_only_the_named_model_decides_and_only_by_its_own_bytes(
    steps: list[tuple[str, int | None, int]],
) -> None:
    world, named = World(), None
    digests = [digest_of(data) for data in FILES]
    delivered: set[str] = set()  # right bytes that came while they were wanted
    for what, one, other in steps:
        if what == "intend":
            named = digests[one] if one is not None else None
            ref = {} if named is None else {"modelRef": {"name": "m", "sha256": named}}
            world.intend(strategy="Learned", **ref)
        else:
            assert one is not None
            data = FILES[other] if what == "offer" else FILES[one][: 8 * other]
            answer = offer(world, digests[one], data)
            if data == FILES[one] and digests[one] == named:
                delivered.add(digests[one])
                assert answer.status in (ModelStatus.HELD, ModelStatus.UNCHANGED)
            elif digests[one] != named and digests[one] not in delivered:
                assert answer.status is ModelStatus.NOT_WANTED
        status = world.agent.status()
        assert len(status.models) <= 2
        assert set(status.models) <= delivered
        assert status.model_in_force in (None, named)
        if status.model_in_force is not None:
            assert status.model_in_force in status.models
        if named in status.models:
            assert status.model_in_force == named
