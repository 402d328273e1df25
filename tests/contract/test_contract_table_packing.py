"""Packing of the routing table, and what a reader refuses."""

import base64

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.keys import SLOTS
from contract.table import (
    NOBODY,
    USER_KEY_HEADER,
    RoutingTable,
    TableLimits,
    key_header_of,
    limits_of,
    pack_slots,
    unpack_slots,
)


@given(seed=st.integers(0, 1 << 30), instances=st.integers(1, 4096))
@settings(max_examples=30, deadline=None)
def test_owners_survive_packing(seed: int, instances: int) -> None:
    owners = [NOBODY if (slot * seed) % 7 == 0 else (slot * seed) % instances for slot in range(SLOTS)]
    assert unpack_slots(pack_slots(owners), instances=instances) == owners


@pytest.mark.parametrize("owners", [[], [0] * (SLOTS - 1), [0] * (SLOTS + 1), [-1] * SLOTS, [NOBODY + 1] * SLOTS])
def test_what_is_no_table_is_not_packed(owners: list[int]) -> None:
    with pytest.raises(ValueError, match="slots"):
        pack_slots(owners)


@pytest.mark.parametrize("packed", ["", "%%%", "AAAA", base64.b64encode(bytes(2 * SLOTS + 2)).decode(), pack_slots([3] * SLOTS)])
def test_a_hostile_table_is_a_violation(packed: str) -> None:
    with pytest.raises(ProtocolViolation, match="slots"):
        unpack_slots(packed, instances=3)


def test_a_packed_table_fits_the_field_of_the_wire_model() -> None:
    assert len(pack_slots([NOBODY] * SLOTS)) < 11_000


def decoded(**said: object) -> RoutingTable:
    document = {"generation": 1, "instances": [], "slots": pack_slots([NOBODY] * SLOTS), **said}
    return msgspec.json.decode(msgspec.json.encode(document), type=RoutingTable)


def test_a_table_without_limits_is_one_of_before_and_stays_so_on_the_wire() -> None:
    older = decoded()
    assert limits_of(older) == TableLimits() == limits_of(None)
    assert b"limits" not in msgspec.json.encode(older)
    some = decoded(limits={"hotUsersMax": 5, "ofALaterOperator": 1})
    assert limits_of(some) == TableLimits(hot_users_max=5)
    assert decoded(**msgspec.to_builtins(some)) == some


@pytest.mark.parametrize("named", ["host", "content-length", "transfer-encoding", "x-gr-instance", "x-gr-key-id"])
def test_a_header_that_others_need_never_carries_the_user_key(named: str) -> None:
    assert key_header_of(TableLimits(key_header=named)) == USER_KEY_HEADER
    assert key_header_of(TableLimits(key_header="x-member")) == "x-member"
    assert key_header_of(TableLimits()) == USER_KEY_HEADER


@pytest.mark.parametrize("limits", [{"keyHeader": "a b"}, {"keyHeader": "x\n"}, {"hotUsersMax": -1}, {"boundedLoadPercent": 99}])
def test_limits_that_no_operator_writes_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(limits=limits)
