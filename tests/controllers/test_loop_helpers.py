"""The small tools that the loops share: sticky rounding, paces, policy look-up, announcements, the signing key."""

from __future__ import annotations

import base64
import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_objects import condition_item, instance_object, pool_object
from pydantic import ValidationError

from contract import signing
from controllers.allocation.intent import intent_for
from controllers.announce import announcements
from controllers.lookup import Found, NotFound, Unreadable, find_policy
from controllers.pace import Restraint, WriteTimes, wait_before_write
from controllers.parsed import ParsedObjects
from controllers.rounding import steady_latency, steady_points, steady_share
from controllers.runtime.conditions import Condition
from controllers.runtime.errors import AlreadyExists, Terminal
from controllers.runtime.resources import INSTANCES, SECRETS, Key
from controllers.runtime.store import Store
from controllers.signing_key import SECRET_NAME, SigningKey, private_key_of
from controllers.wake import pools_naming
from crds import GRInstance, GRServingPool, HBMPolicy, HBMPolicySpec, explain_invalid
from crds.instance import PolicySource


@pytest.mark.parametrize(
    ("value", "text"),
    [(41.7, "42"), (4.17, "4.2"), (0.417, "0.42"), (417.0, "420"), (12_345.0, "12000"), (0.0, "0"), (99.6, "100")],
)
def test_latencies_have_two_significant_digits(value: float, text: str) -> None:
    assert steady_latency(value, None) == text


def test_missing_stays_missing() -> None:
    assert steady_points(None, 5) is None
    assert steady_latency(None, "5") is None
    assert steady_share(None, "5") is None


@given(value=st.floats(0.02, 1e6), noise=st.floats(-0.45, 0.45))
def test_noise_of_less_than_half_a_digit_never_changes_a_published_latency(value: float, noise: float) -> None:
    published = steady_latency(value, None)
    assert published is not None
    digit = 10.0 ** (len(str(int(value))) - 2) if value >= 1 else float(published) / 100
    assert steady_latency(max(0.0, value + noise * digit), published) == published


@given(value=st.floats(0, 100), published=st.integers(0, 100))
def test_points_are_never_more_than_one_point_off(value: float, published: int) -> None:
    shown = steady_points(value, published)
    assert shown is not None
    assert abs(shown - value) <= 1
    assert 0 <= shown <= 100


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=200))
def test_no_more_than_six_writes_fall_into_any_minute(arrivals: list[tuple[float, bool]]) -> None:
    times, written, now = WriteTimes(), [], 0.0
    for gap, transition in arrivals:
        now += gap
        if wait_before_write(times.ages("x", now_s=now), transition=transition) == 0:
            times.note("x", now_s=now)
            written.append(now)
    for later, earlier in zip(written[6:], written, strict=False):
        assert later - earlier >= 60 - 1e-6
    for earlier, later in itertools.pairwise(written):
        assert later - earlier >= 1 - 1e-6


def test_a_look_that_took_long_is_not_repeated_soon() -> None:
    restraint = Restraint()
    restraint.note("x", began_s=10.0, ended_s=10.05)
    assert restraint.seconds_left("x", now_s=12.0) == pytest.approx(3.05)
    assert restraint.seconds_left("x", now_s=19.0) == 0
    restraint.note("x", began_s=100.0, ended_s=160.0)  # the machine slept in the middle of it
    assert restraint.seconds_left("x", now_s=160.0) == Restraint.LONGEST_SECONDS
    assert restraint.seconds_left("y", now_s=12.0) == 0


def test_looks_at_many_pools_that_change_at_once_take_a_twentieth_of_a_core_together() -> None:
    restraint = Restraint()
    for number in range(40):
        restraint.note(number, began_s=100.0, ended_s=100.003)
    assert restraint.seconds_left(7, now_s=100.003) == pytest.approx(40 * 20 * 0.003)
    restraint.forget(0)
    assert restraint.seconds_left(7, now_s=100.003) == pytest.approx(39 * 20 * 0.003)
    restraint.note(7, began_s=120.0, ended_s=120.003)  # the others have come to rest
    assert restraint.seconds_left(7, now_s=120.003) == pytest.approx(0.3)


def policy(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "HBMPolicy", "metadata": {"name": name, "namespace": namespace, "generation": 4}, "spec": spec}


def look_up(name: str, *policies: dict[str, Any]) -> Any:
    objects = {Key(p["metadata"]["namespace"], p["metadata"]["name"]): p for p in policies}
    return find_policy(
        name,
        namespace="team",
        operator_namespace="grfleet-system",
        get=objects.get,
        read=lambda obj: HBMPolicy.parse(obj).spec,
        defaults=HBMPolicySpec(),
    )


def test_a_policy_is_found_in_the_namespace_of_the_pool_first() -> None:
    near, far = policy("default", "team", {"strategy": "Static"}), policy("default", "grfleet-system", {})
    found = look_up("default", near, far)
    assert (found.source, found.namespace, found.generation) == (PolicySource.POOL, "team", 4)
    assert found.spec.strategy == "Static"


def test_only_the_name_default_is_looked_up_beside_the_operator_and_then_in_the_built_in_defaults() -> None:
    far = policy("default", "grfleet-system", {})
    assert look_up("default", far).source is PolicySource.OPERATOR
    assert look_up("default") == Found(spec=HBMPolicySpec(), name="default", source=PolicySource.DEFAULTS)
    assert look_up("mine", policy("mine", "grfleet-system", {})) == NotFound(name="mine", namespace="team")


def test_a_policy_of_another_version_is_unreadable_and_says_where() -> None:
    found = look_up("mine", policy("mine", "team", {"strategy": "Oracle"}))
    assert isinstance(found, Unreadable)
    assert "strategy" in found.why


def test_a_policy_named_default_concerns_pools_of_every_namespace_and_others_only_their_own() -> None:
    def pool(name: str, namespace: str, hbm: str | None) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": namespace}, "spec": {"policies": {"hbm": hbm}} if hbm else {}}

    pools = [pool("a", "one", None), pool("b", "two", "default"), pool("c", "two", "mine")]
    store: Any = SimpleNamespace(
        all=lambda resource, namespace: [p for p in pools if namespace in (None, p["metadata"]["namespace"])]
    )
    assert list(pools_naming(Key("system", "default"), store, field="hbm")) == [Key("one", "a"), Key("two", "b")]
    assert list(pools_naming(Key("two", "mine"), store, field="hbm")) == [Key("two", "c")]
    assert list(pools_naming(Key("one", "mine"), store, field="hbm")) == []


def test_an_object_is_parsed_once_for_each_version_and_the_memory_is_bounded() -> None:
    parsed = ParsedObjects(kept=2)
    stored = policy("mine", "team", {"strategy": "Static"})
    first = parsed.read(HBMPolicy, stored)
    assert parsed.read(HBMPolicy, stored) is first
    changed = policy("mine", "team", {"strategy": "HillClimb"})
    assert parsed.read(HBMPolicy, changed).spec.strategy == "HillClimb"
    for name in "abc":
        parsed.read(HBMPolicy, policy(name, "team", {}))
    assert parsed.read(HBMPolicy, stored) is not first


def test_what_the_store_keeps_once_for_several_instances_is_parsed_once_and_each_model_is_as_if_parsed_alone() -> None:
    parsed, pool = ParsedObjects(), pool_object()
    wanted = intent_for(GRServingPool.parse(pool), Found(spec=HBMPolicySpec(), name="default", source=PolicySource.DEFAULTS))
    store = Store([INSTANCES])
    for name in ("pool-a", "pool-b"):
        store.upsert(INSTANCES, instance_object(name, pool, intent=wanted.to_wire()))
    models = [parsed.read(GRInstance, stored) for stored in store.all(INSTANCES)]
    assert models == [GRInstance.parse(stored) for stored in store.all(INSTANCES)]
    assert models[0].spec.intent is models[1].spec.intent
    assert models[0].spec.intent == wanted


def test_a_part_that_cannot_be_read_is_named_as_a_field_of_its_object() -> None:
    stored = instance_object("pool-a", pool_object(), intent={"strategy": "Guess"})
    with pytest.raises(ValidationError) as found:
        ParsedObjects().read(GRInstance, stored)
    assert "spec.intent.strategy" in explain_invalid(found.value)


def test_events_are_for_transitions_and_first_problems_only() -> None:
    ready = Condition("Ready", "True", "AllInstancesReady", "2 of 2 instances are ready")
    lost = Condition("Ready", "False", "SomeInstancesNotReady", "1 of 2")
    none = Condition("Ready", "False", "NoInstanceReady", "0 of 2")
    stands = [condition_item("Ready", "True", "AllInstancesReady")]
    broken = [condition_item("Ready", "False", "SomeInstancesNotReady")]
    assert announcements([], [ready]) == ()
    assert [word.level for word in announcements([], [lost])] == ["Warning"]
    assert announcements(stands, [ready]) == ()
    assert [word.reason for word in announcements(stands, [lost])] == ["SomeInstancesNotReady"]
    assert announcements(broken, [lost]) == ()
    assert announcements([condition_item("Ready", "Unknown", "Pending")], [ready]) == ()
    assert [word.reason for word in announcements(broken, [none])] == ["NoInstanceReady"]
    assert [(word.level, word.reason) for word in announcements(broken, [ready])] == [("Normal", "AllInstancesReady")]
    assert announcements([], [none, Condition("TablePublished", "False", "NoInstances", "the first table follows")]) == ()
    assert [word.reason for word in announcements([], [Condition("InstancesReady", "False", "NoneFound")])] == ["NoneFound"]
    moving = Condition("SplitSettled", "False", "SomeMoving", "1 of 2")
    assert announcements([condition_item("SplitSettled", "True", "Settled")], [moving]) == ()


class SecretServer:
    """The two calls on Secrets; `rival` is created by another replica just before ours."""

    def __init__(self, *, rival: bytes | None = None) -> None:
        self.secret: dict[str, Any] | None = None
        self.rival = rival
        self.reads = 0

    async def get(self, resource: Any, key: Key) -> Any:
        assert (resource, key) == (SECRETS, Key("grfleet-system", SECRET_NAME))
        self.reads += 1
        return self.secret

    async def create(self, resource: Any, body: Any, *, field_manager: str) -> Any:
        if self.rival is not None:
            self.secret = secret_with(self.rival)
            raise AlreadyExists("AlreadyExists", "secret")
        self.secret = body
        return body


def secret_with(raw: bytes) -> dict[str, Any]:
    return {
        "metadata": {"name": SECRET_NAME, "namespace": "grfleet-system"},
        "data": {"private.key": base64.b64encode(raw).decode()},
    }


def context(server: SecretServer) -> Any:
    return SimpleNamespace(kube=server, settings=SimpleNamespace(operator_namespace="grfleet-system"))


async def test_the_leader_makes_the_signing_key_once_and_keeps_it() -> None:
    server, key = SecretServer(), SigningKey()
    private = await key.private(context(server))
    assert await key.private(context(server)) == private
    assert server.reads == 1
    assert server.secret is not None
    assert private_key_of(server.secret) == private
    assert base64.b64decode(await key.public(context(server))) == signing.public_key(private)


async def test_a_key_that_exists_or_that_a_rival_made_first_is_used() -> None:
    raw = random.Random(5).randbytes(32)
    server = SecretServer()
    server.secret = secret_with(raw)
    assert await SigningKey().private(context(server)) == raw
    assert await SigningKey().private(context(SecretServer(rival=raw))) == raw


@pytest.mark.parametrize("data", [{}, {"private.key": "no base64!"}, {"private.key": base64.b64encode(b"short").decode()}])
def test_a_secret_without_a_usable_key_is_refused_with_the_remedy(data: dict[str, str]) -> None:
    with pytest.raises(Terminal, match="delete the Secret to have a new key made"):
        private_key_of({"metadata": {"name": SECRET_NAME, "namespace": "x"}, "data": data})
