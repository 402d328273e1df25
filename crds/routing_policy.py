"""RoutingPolicy: how users find the instance that holds their state, and how few of them may move at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from crds.kind import AGE, Column, Kind
from crds.types import ApiModel, DataKey, HeaderName, ObjectName, Percent, Resource, Seconds


class SecretKey(ApiModel):
    """One key of a Secret in the namespace of the policy."""

    name: ObjectName
    """Name of the Secret."""
    key: DataKey = "key"
    """Key in the Secret's data; its value needs at least 16 bytes."""


class BoundedLoad(ApiModel):
    """The bound on the load of one instance."""

    percent: Annotated[int, Strict(), Field(ge=101, le=1000)] = 125
    """An instance takes no further user while its load is above this percent of the mean load."""
    floor: Annotated[int, Strict(), Field(ge=0, le=100_000)] = 8
    """Requests in flight below which the bound is not applied, so that a quiet fleet moves nobody."""


class Churn(ApiModel):
    """The budget for moving users between instances that are both alive."""

    max_moved_percent: Annotated[int, Strict(), Field(ge=1, le=100)] = 10
    """Highest share of slots, in percent, that may move in one window; the users of a lost instance move at once and count."""
    window_seconds: Annotated[int, Strict(), Field(ge=1, le=86_400)] = 60
    """Length of the window in seconds."""


class Warmup(ApiModel):
    """How a new instance is brought to its full share of users."""

    max_seconds: Seconds = 300
    """Seconds after which the instance gets its full share, warm or not."""
    hit_percent: Percent = 80
    """The instance counts as warm when its KV hit rate reaches this percent of the pool's mean."""


class HotUsers(ApiModel):
    """The bounded table of users that are placed one by one."""

    max: Annotated[int, Strict(), Field(ge=0, le=1_000_000)] = 100_000
    """Most entries in the table; 0 turns the table off."""
    ttl_seconds: Annotated[int, Strict(), Field(ge=1, le=86_400)] = 300
    """Seconds after which an entry that was not used goes."""


class Drain(ApiModel):
    """How an instance leaves."""

    deadline_seconds: Annotated[int, Strict(), Field(ge=0, le=86_400)] = 60
    """Seconds that a draining instance gets to finish its requests, after it has left the table."""


class RoutingPolicySpec(ApiModel):
    """Affinity, load bound, churn budget, warm-up and drain."""

    user_key_secret: SecretKey | None = None
    """The key of the keyed hash that stands for a user id everywhere behind the edge. Omitted: callers send keys they have
    hashed themselves, and the table names no key id. Another key means a cold fleet."""
    key_header: HeaderName = "x-gr-user-key"
    """Request header, in lower case, that carries the user key; one that HTTP itself needs, such as host, is not used."""
    bounded_load: BoundedLoad = BoundedLoad()
    """The bound on the load of one instance."""
    churn: Churn = Churn()
    """The budget for moving users between live instances."""
    warmup: Warmup = Warmup()
    """How a new instance is brought to its full share of users."""
    hot_users: HotUsers = HotUsers()
    """The bounded table of users that are placed one by one."""
    drain: Drain = Drain()
    """How an instance leaves."""


class RoutingPolicy(Resource):
    """How users find the instance that holds their state, and how few of them move at once. Pools name one in
    spec.policies.routing."""

    spec: RoutingPolicySpec = RoutingPolicySpec()
    """Affinity, load bound, churn budget, warm-up and drain."""


KIND = Kind(
    name="RoutingPolicy",
    plural="routingpolicies",
    short_names=("rtp",),
    model=RoutingPolicy,
    description="How users find the instance that holds their state.",
    columns=(
        Column("Max-Moved%", ".spec.churn.maxMovedPercent", "Share of slots that may move in a window.", "integer"),
        Column("Window", ".spec.churn.windowSeconds", "Length of the window, seconds.", "integer"),
        Column("Load%", ".spec.boundedLoad.percent", "Load bound in percent of the mean.", "integer"),
        Column("Drain", ".spec.drain.deadlineSeconds", "Drain deadline, seconds.", "integer"),
        Column("Key-Secret", ".spec.userKeySecret.name", "Secret with the user key.", priority=1),
        AGE,
    ),
    selectable_fields=(".spec.userKeySecret.name",),
    not_yet=(
        "`drain` of an entry taken from `instances.external`: it leaves the table at once, whatever it has in flight",
        "`userKeySecret`: its name becomes the key id of the table; the operator never reads the key",
    ),
    example={
        "userKeySecret": {"name": "user-key"},
        "churn": {"maxMovedPercent": 5, "windowSeconds": 60},
        "drain": {"deadlineSeconds": 120},
    },
)
