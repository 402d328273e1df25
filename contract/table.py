"""The published routing table: generation, instances fenced by uid, and 4096 slots packed into one string.

A slot holds an index into `instances` as a little-endian u16, 0xFFFF for "nobody"; the packed form is base64, so that it fits a
Kubernetes status field and reads the same in every language.
"""

import base64
import binascii
import enum
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from contract.engine import Count, Name, Wire
from contract.errors import ProtocolViolation
from contract.keys import SLOTS

NOBODY = 0xFFFF


class InstanceState(enum.StrEnum):
    """How far an instance may be used; only Ready and Warming ones own slots."""

    READY = "Ready"
    WARMING = "Warming"
    DRAINING = "Draining"
    UNREACHABLE = "Unreachable"


class TableInstance(Wire, frozen=True, kw_only=True):
    """One row of the table: an instance fenced by its uid, where it serves, and its share of a full weight."""

    name: Name
    uid: Name
    address: Name
    weight_percent: Annotated[int, Meta(ge=0, le=100)]
    state: InstanceState


class RoutingTable(Wire, frozen=True, kw_only=True):
    """What the routing loop publishes and every gateway and client follows."""

    generation: Count
    instances: Annotated[list[TableInstance], Meta(max_length=4096)]
    slots: Annotated[str, Meta(max_length=11_000)]
    key_id: Name = ""


def pack_slots(owners: Sequence[int]) -> str:
    """Return the packed form of 4096 instance indices (NOBODY where a slot has no owner).

    Raises
    ------
    ValueError
        When there are not exactly 4096 slots or an index does not fit 16 bits.
    """
    if len(owners) != SLOTS:
        raise ValueError(f"slots: {len(owners)} given, {SLOTS} needed")
    array = np.asarray(owners, dtype=np.int64)
    if array.min() < 0 or array.max() > NOBODY:
        raise ValueError("slots: an index lies outside 0..65535")
    return base64.b64encode(array.astype("<u2").tobytes()).decode()


def unpack_slots(packed: str, *, instances: int) -> list[int]:
    """Return the 4096 indices of a packed table, each below `instances` or NOBODY.

    Raises
    ------
    ProtocolViolation
        When the string is not such a table.
    """
    try:
        raw = base64.b64decode(packed, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ProtocolViolation("slots: not base64") from error
    if len(raw) != 2 * SLOTS:
        raise ProtocolViolation(f"slots: {len(raw)} bytes, {2 * SLOTS} expected")
    array = np.frombuffer(raw, dtype="<u2")
    if np.any((array >= instances) & (array != NOBODY)):
        raise ProtocolViolation(f"slots: an index is not below the {instances} instances of the table")
    return [int(owner) for owner in array]
