"""What the routing kernel knows: state of a user on an instance, facts of an instance, and where a hot user is sent.

Users are named by userKey only. Facts and residency are bound to one start of one instance by (uid, start id): what was known
of a process that is gone says nothing of its successor. A float that is NaN is unknown, which is never read as zero.
"""

from __future__ import annotations

import math

import msgspec


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one user on one instance.

    Attributes
    ----------
    user_key, instance_uid, start_id
        Whose state, and where.
    kv_tokens_hbm, kv_tokens_host, kv_tokens_ssd
        History tokens by the fastest tier that holds them: each token counts once.
    seen_ms
        When it was reported, or when the request was routed, on the reader's clock.
    speculative
        Nobody has reported it yet: a request was sent there, and the state is expected to be left behind.
    """

    user_key: str
    instance_uid: str
    start_id: str
    kv_tokens_hbm: int = 0
    kv_tokens_host: int = 0
    kv_tokens_ssd: int = 0
    seen_ms: float
    speculative: bool = False


class InstanceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as the router sees it.

    Attributes
    ----------
    name, uid, start_id
        Who it is; `start_id` names the start of its engine.
    ready, draining
        Whether it answers, and whether it is about to go.
    weight_percent
        Its share of a full weight; 0 is given nothing.
    in_flight
        Requests that it has in hand.
    ms_per_token_recompute, ms_per_token_host, ms_per_token_ssd
        What one history token costs when it is in no tier, on the host, on the SSD.
    emb_overlap
        Share (0..1) of the rows of a request that its EMB cache holds, for the users that are scored.
    ms_per_row, rows_per_request
        What one missed row costs, and how many rows a request asks for.
    refilling
        Whether its EMB cache is being refilled, which takes a part of the link.
    queue_ms
        Work that waits before a request that comes now. Where a table of overrides is made from it, a slow average (tens of
        seconds): users sent by the queue of a moment come in a herd.
    """

    name: str
    uid: str
    start_id: str
    ready: bool = True
    draining: bool = False
    weight_percent: int = 100
    in_flight: float = math.nan
    ms_per_token_recompute: float = math.nan
    ms_per_token_host: float = math.nan
    ms_per_token_ssd: float = math.nan
    emb_overlap: float = math.nan
    ms_per_row: float = math.nan
    rows_per_request: float = math.nan
    refilling: bool = False
    queue_ms: float = math.nan

    @property
    def eligible(self) -> bool:
        """Whether a user may be sent there."""
        return self.ready and not self.draining and self.weight_percent > 0


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """A user that is sent elsewhere than its slot says.

    Attributes
    ----------
    saved_ms
        What that saves a request of the user, when it was last weighed.
    until_ms
        When it ends unless it is renewed.
    """

    user_key: str
    instance_uid: str
    saved_ms: float
    until_ms: float


class LoadBound(msgspec.Struct, frozen=True, kw_only=True):
    """The bound on the load of one instance, as in `RoutingPolicy.spec.boundedLoad`.

    Attributes
    ----------
    percent
        Of the mean load of those that may serve, by weight.
    floor
        Load in requests in flight below which nobody is refused.
    """

    percent: float = 125.0
    floor: float = 8.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the table of hot users may be.

    Attributes
    ----------
    most
        Greatest number of overrides.
    ttl_ms
        How long an override outlives the last that was known of its user.
    margin_ms
        What a move must save, at least; keeps users where they are under noise.
    most_wait_ms
        What waits counts up to so much above the shortest queue, about a request's work. A longer queue is overload, which the
        bound answers to: users that leave their caches for it make more work of it.
    bound
        Bound on the load, overrides included.
    load_per_user
        Requests in flight that one user brings along; when absent, what is in flight is shared out among all users known,
        one for each at most.
    fresh_ms, half_life_ms
        Residency counts in full up to that age; then its confidence halves each half-life.
    speculative_ms
        How long a routed request counts as residency that nobody has reported.
    refill_slowdown
        How many times longer the host link takes while it refills.
    """

    most: int = 100_000
    ttl_ms: float = 300_000.0
    margin_ms: float = 1.0
    most_wait_ms: float = 20.0
    bound: LoadBound = LoadBound()
    load_per_user: float | None = None
    fresh_ms: float = 10_000.0
    half_life_ms: float = 60_000.0
    speculative_ms: float = 2_000.0
    refill_slowdown: float = 1.25
