"""Keys never leak or collide with versions; signatures bind instance, generation, expiry and spec."""

import base64
import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import keys, signing
from contract.agent import Intent

SECRET = b"a pool key of some length"
PRIVATE = bytes(range(32))
PUBLIC = signing.public_key(PRIVATE)

CANONICAL = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(("content", "secret"), [(SECRET, SECRET), (SECRET + b"\n", SECRET), (SECRET + b"\n\n", SECRET + b"\n")])
def test_one_newline_that_an_editor_left_is_no_part_of_a_secret(content: bytes, secret: bytes) -> None:
    assert keys.secret_in(content) == secret


def intent(**changes: Any) -> Intent:
    base: dict[str, Any] = {"uid": "u", "generation": 3, "issued": 10, "expires": 20, "spec": {"strategy": "Static"}}
    return Intent(**(base | changes))


@given(user=st.text(min_size=1))
def test_a_key_has_128_bits_of_hex_and_a_slot_in_range(user: str) -> None:
    key = keys.user_key(SECRET, user)
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")
    assert 0 <= keys.slot_of(key) < keys.SLOTS


@pytest.mark.parametrize(("secret", "user", "word"), [(b"short", "u", "pool key"), (SECRET, "", "user id")])
def test_a_key_without_a_secret_or_a_user_is_refused(secret: bytes, user: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        keys.user_key(secret, user)


def test_slots_are_spread_evenly_over_many_users() -> None:
    counts = [0] * keys.SLOTS
    for number in range(40_960):
        counts[keys.slot_of(keys.user_key(SECRET, f"user-{number}"))] += 1
    assert max(counts) < 35
    assert counts.count(0) < 5


@given(spec=st.dictionaries(st.text(max_size=5), CANONICAL, max_size=4))
def test_what_was_signed_is_authentic_also_after_a_trip_over_the_wire(spec: dict[str, Any]) -> None:
    signed = signing.sign(intent(spec=spec), PRIVATE)
    arrived = msgspec.json.decode(msgspec.json.encode(signed), type=Intent)
    assert signing.is_authentic(arrived, PUBLIC)


@pytest.mark.parametrize(
    "change", [{"uid": "v"}, {"generation": 4}, {"issued": 11}, {"expires": 21}, {"spec": {"strategy": "Learned"}}]
)
def test_any_change_after_signing_is_noticed(change: dict[str, Any]) -> None:
    signed = signing.sign(intent(), PRIVATE)
    assert not signing.is_authentic(msgspec.structs.replace(signed, **change), PUBLIC)


@pytest.mark.parametrize(
    "signature",
    ["", "not base64!", "AAAA", base64.b64encode(bytes(64)).decode(), "é"],
    ids=["empty", "noise", "short", "zeros", "ü"],
)
def test_garbage_in_place_of_a_signature_is_not_authentic_and_raises_nothing(signature: str) -> None:
    assert not signing.is_authentic(intent(signature=signature), PUBLIC)


def test_a_spec_nested_deeper_than_anything_signed_is_not_authentic_and_raises_nothing() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    signature = base64.b64encode(bytes(64)).decode()
    assert not signing.is_authentic(intent(spec={"deep": deep}, signature=signature), PUBLIC)


def test_another_key_does_not_verify() -> None:
    other = signing.public_key(signing.new_private_key())
    assert not signing.is_authentic(signing.sign(intent(), PRIVATE), other)


def test_the_order_of_fields_does_not_matter() -> None:
    one = signing.payload(intent(spec={"a": 1, "b": {"c": 2, "d": 3}}))
    assert one == signing.payload(intent(spec={"b": {"d": 3, "c": 2}, "a": 1}))


@pytest.mark.parametrize(
    "value", [1.5, float("nan"), {1: "x"}, [0.0], dataclasses.field], ids=["float", "nan", "key", "list", "object"]
)
def test_what_has_no_canonical_form_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(ValueError, match=r"spec\.deep"):
        signing.payload(intent(spec={"deep": value}))
