"""Packing of the routing table, and what a reader refuses."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.keys import SLOTS
from contract.table import NOBODY, pack_slots, unpack_slots


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
