"""The published routing table: generation, instances fenced by uid, and 4096 slots packed into one string.

A slot holds an index into `instances` as a little-endian u16, 0xFFFF for "nobody"; the packed form is base64, so that it fits a
Kubernetes status field and reads the same in every language.
"""

import base64
import binascii
import enum
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from contract.engine import Count, Name, Wire
from contract.errors import ProtocolViolation
from contract.keys import SLOTS

NOBODY = 0xFFFF
Address = Annotated[str, Meta(max_length=512)]
"""As long as `serviceURL` of an instance may be: one longer address would cost the followers the whole table."""


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
    address: Address
    weight_percent: Annotated[int, Meta(ge=0, le=100)]
    state: InstanceState


USER_KEY_HEADER = "x-gr-user-key"
"""Request header that carries the user key where the table names no other."""
KEY_ID_HEADER = "x-gr-key-id"
"""Request header with the name of the pool key that the user key is made with."""
INSTANCE_HEADER = "x-gr-instance"
"""Answer header with the name of the instance that served; on a request, the choice that its caller wants kept."""
_HEADERS_OF_HTTP = (
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
_HEADERS_OF_OTHERS = frozenset((*_HEADERS_OF_HTTP, INSTANCE_HEADER, KEY_ID_HEADER))


class TableLimits(Wire, frozen=True, kw_only=True):
    """What the pool's RoutingPolicy asks of gateways, pickers and clients; what it does not say is for each to choose.

    Attributes
    ----------
    bounded_load_percent, bounded_load_floor
        Bound on the load of one instance in percent of its share, and the requests in flight below which it refuses nobody.
    hot_users_max, hot_user_seconds
        Most users that are sent elsewhere than their slot says, and for how long after the last that is known of them.
    key_header
        Request header, in lower case, that carries the user key.
    """

    bounded_load_percent: Annotated[int, Meta(ge=100, le=1000)] | None = None
    bounded_load_floor: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    hot_users_max: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    hot_user_seconds: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    key_header: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")] | None = None


class RoutingTable(Wire, frozen=True, kw_only=True):
    """What the routing loop publishes and every gateway and client follows; one of an older operator says no limits."""

    generation: Count
    instances: Annotated[list[TableInstance], Meta(max_length=4096)]
    slots: Annotated[str, Meta(max_length=11_000)]
    key_id: Name = ""
    limits: TableLimits | msgspec.UnsetType = msgspec.UNSET


def limits_of(table: RoutingTable | None) -> TableLimits:
    """Return what a table says of limits, those that say nothing where it says none."""
    return table.limits if table is not None and isinstance(table.limits, TableLimits) else TableLimits()


def check_rows(rows: Sequence[TableInstance]) -> None:
    """Refuse rows of which two are one instance: which of them a name, or a uid, means could not be said.

    Raises
    ------
    ProtocolViolation
        When two have one name or one uid.
    """
    if len({row.name for row in rows}) < len(rows) or len({row.uid for row in rows}) < len(rows):
        raise ProtocolViolation("instances: two rows have one name or one uid")


def can_carry_a_key(header: str) -> bool:
    """Whether a header may carry the user key: one that HTTP or grfleet itself needs would be overwritten by it."""
    return header not in _HEADERS_OF_OTHERS


def key_header_of(limits: TableLimits) -> str:
    """Return the header that carries the user key; `USER_KEY_HEADER` where they name none, or one that cannot."""
    named = limits.key_header
    return named if named is not None and can_carry_a_key(named) else USER_KEY_HEADER


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
