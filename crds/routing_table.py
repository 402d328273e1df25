"""GRRoutingTable: the published table that gateways and clients follow.

It is an observation of what the routing loop decided, so all of it is status: a generation, the instances fenced by uid, and 4096
slots packed into one string in the form of contract.table. It holds no user. The table of a deleted pool loses its instances and
stays for a week.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, Strict

from contract.table import InstanceState
from crds.kind import AGE, Column, Kind, condition_path
from crds.pool_instances import MAX_REPLICAS
from crds.types import (
    ApiModel,
    Conditions,
    HeaderName,
    Int64,
    ObjectName,
    Percent,
    PercentString,
    Resource,
    Rule,
    ServiceUrl,
    Time,
    Uid,
)

MAX_TABLE_INSTANCES = 2 * MAX_REPLICAS  # all that a pool may want, and as many beside them in a rolling update
PACKED_SLOTS_LENGTH = 10_924  # base64 of 4096 two-byte indices


class GRRoutingTableSpec(ApiModel):
    """Whose table it is."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(cel="self.poolRef == oldSelf.poolRef", message="poolRef cannot change", field_path=".poolRef"),
    )

    pool_ref: ObjectName
    """Name of the GRServingPool in the same namespace."""


class TableInstance(ApiModel):
    """One instance that slots may point at."""

    name: ObjectName
    """Name of the GRInstance."""
    uid: Uid
    """Uid of the GRInstance; an answer that carries another one comes from a successor and is not trusted."""
    address: ServiceUrl
    """Where the instance serves requests."""
    weight_percent: Percent
    """Weight in placing slots: 100 is a full share, less while warming up. A draining one keeps what it had and owns no slots."""
    state: InstanceState
    """Ready or Warming; Draining while it leaves, without slots; Unreachable is not used yet."""


class Move(ApiModel):
    """One change of the table that moved slots."""

    time: Time
    """When the generation was published."""
    generation: Int64
    """The generation that moved them."""
    moved_percent: PercentString
    """Share of the slots that moved, in percent."""


class TableLimits(ApiModel):
    """What the RoutingPolicy asks of gateways, pickers and clients; flags of theirs win."""

    bounded_load_percent: Annotated[int, Strict(), Field(ge=101, le=1000)] | None = None
    """`boundedLoad.percent` of the policy."""
    bounded_load_floor: Annotated[int, Strict(), Field(ge=0, le=100_000)] | None = None
    """`boundedLoad.floor` of the policy."""
    hot_users_max: Annotated[int, Strict(), Field(ge=0, le=1_000_000)] | None = None
    """`hotUsers.max` of the policy."""
    hot_user_seconds: Annotated[int, Strict(), Field(ge=1, le=86_400)] | None = None
    """`hotUsers.ttlSeconds` of the policy."""
    key_header: HeaderName | None = None
    """`keyHeader` of the policy."""


class GRRoutingTableStatus(ApiModel):
    """The table in force."""

    observed_generation: Int64 | None = None
    """The metadata.generation that the table was computed from."""
    generation: Int64 | None = None
    """Number of the table; grows by one with each change."""
    published_at: Time | None = None
    """When this generation was published."""
    key_id: Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z0-9._-]*$")] | None = None
    """Which pool key the user keys are hashed with, the name of its Secret; another id means a cold fleet."""
    limits: TableLimits | None = None
    """What the RoutingPolicy asks of those who follow the table."""
    # Atomic: one writer and an order that means something; as a list map, what the API server notes of each row's owner would
    # double the size of the object.
    instances: Annotated[
        tuple[TableInstance, ...],
        Field(max_length=MAX_TABLE_INSTANCES, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = ()
    """Instances in the order that slots refer to. None at all, with a generation: the tombstone of a
    deleted pool, which empties gateways and clients."""
    slots: Annotated[str, Field(max_length=PACKED_SLOTS_LENGTH)] | None = None
    """Base64 of 4096 little-endian 16-bit indices into instances, 65535 for none: slot = xxh32(userKey) mod 4096."""
    moved_percent: PercentString | None = None
    """Share of the slots, in percent, that this generation moved against the one before."""
    recent_moves: Annotated[tuple[Move, ...], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"})] = ()
    """Moves inside the churn window, oldest first; what a new leader needs to keep the budget."""
    conditions: Conditions = ()
    """TablePublished, ChurnLimited."""


class GRRoutingTable(Resource):
    """The routing table of one pool. Written by grfleet; gateways and clients watch it."""

    spec: GRRoutingTableSpec
    """Whose table it is."""
    status: GRRoutingTableStatus = GRRoutingTableStatus()
    """The table in force."""


KIND = Kind(
    name="GRRoutingTable",
    plural="grroutingtables",
    short_names=("grt",),
    model=GRRoutingTable,
    description="The published routing table of a pool.",
    columns=(
        Column("Pool", ".spec.poolRef", "Pool of the table."),
        Column("Generation", ".status.generation", "Number of the table.", "integer"),
        Column("Moved%", ".status.movedPercent", "Share of the slots that the last change moved."),
        Column("Published", condition_path("TablePublished"), "Whether the table is up to date."),
        Column("Reason", condition_path("TablePublished", "reason"), "Why Published has its value."),
        Column("Published-At", ".status.publishedAt", "When the generation was published.", "date", priority=1),
        Column("Key", ".status.keyId", "Pool key that users are hashed with.", priority=1),
        AGE,
    ),
    selectable_fields=(".spec.poolRef",),
)
