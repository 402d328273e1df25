"""What table to publish for a pool, and what to say about it, as a pure function over `policies.routing`.

The generation grows by one with each change and never falls, not even when somebody deletes the table: followers take only
higher ones, so the pool's status remembers the last. A paused pool keeps its table to the letter; clients still walk past
dead instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contract.keys import SLOTS
from controllers.announce import Announcement, announcements, moved_on
from controllers.holder import PREDECESSOR_SECONDS, Holder
from controllers.lookup import Found, NotFound, Unreadable
from controllers.pace import wait_before_write
from controllers.routing.members import members_of, not_observed_yet, seconds_of_grace_left, view_in_doubt
from controllers.routing.observe import Observation
from controllers.routing.wire import milliseconds, move_fields, moves_of, percent, table_fields, table_of
from controllers.runtime.conditions import Condition, Status, conditions_of, find_condition, set_conditions, timestamp
from controllers.words import few
from crds import RoutingPolicySpec
from crds.routing_table import MAX_TABLE_INSTANCES
from policies.routing.table import ChurnBudget, Table, TablePlan, TableReason, plan_table
from policies.routing.warmup import FULL_WEIGHT_PERCENT

WARMING_SECONDS = 10.0
FIRST_LOOK_SECONDS = 5.0
YOUNG_SECONDS = 300.0
"""So long a new pool's caches count as cold: users move freely then, or a pool that fills slowly would stay lopsided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to carry out.

    Attributes
    ----------
    apply_table
        Whether the table object has to be made, or taken over.
    table_status
        The whole status of the table, or None when it stands as it should.
    pool_status
        The loop's whole part of the pool's status, or None.
    """

    apply_table: bool = False
    table_status: Mapping[str, Any] | None = None
    pool_status: Mapping[str, Any] | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float | None = None


def decide(seen: Observation, now: datetime) -> Plan:
    """Choose for what was seen."""
    previous = table_of(seen.table.status) if seen.table is not None and seen.holder in (Holder.POOL, Holder.ORPHAN) else None
    if previous is not None and not previous.owners:
        previous = None  # the tombstone of an earlier pool of this name: whoever comes now moves nobody
    held = hold(seen, previous) or _first_table(seen, previous, now)
    if held is not None:
        return _plan(seen, held, None, now)
    assert isinstance(seen.policy, Found)
    policy: RoutingPolicySpec = seen.policy.spec
    planned = plan_table(
        previous,
        members_of(seen, policy, previous, now),
        budget=_budget(seen, policy, now),
        history=moves_of(seen.table.status) if seen.table is not None else (),
        now_ms=milliseconds(now),
    )
    if planned.reason is TableReason.NOBODY_READY:
        return _plan(seen, _nobody("no instance is ready", previous), None, now)
    return _plan(seen, None, planned, now)


def _budget(seen: Observation, policy: RoutingPolicySpec, now: datetime) -> ChurnBudget:
    born = seen.pool.metadata.creation_timestamp
    young = born is not None and (now - born).total_seconds() < YOUNG_SECONDS
    return ChurnBudget(
        max_moved_percent=100.0 if young else float(policy.churn.max_moved_percent),
        window_ms=policy.churn.window_seconds * 1000.0,
    )


def hold(seen: Observation, previous: Table | None) -> Condition | None:
    """The condition that goes with leaving the table alone, or None to go on."""
    policy = seen.policy
    if seen.holder is Holder.STRANGER:
        name = seen.pool.metadata.name
        return _published(
            "False", "NameTaken", f"GRRoutingTable {name} belongs to somebody else; delete it and grfleet makes its own"
        )
    if seen.pool.spec.paused:
        return _published("False", "PausedByUser", "the last table stays; set spec.paused to false to continue")
    if isinstance(policy, NotFound):
        where = f"no RoutingPolicy {policy.name} in namespace {policy.namespace}"
        return _published("False", "PolicyNotFound", f"{where}; create it or correct spec.policies.routing of the pool")
    if isinstance(policy, Unreadable):
        return _published(
            "False", "PolicyInvalid", f"RoutingPolicy {policy.namespace}/{policy.name} cannot be read: {policy.why}"
        )
    if not seen.instances:
        return _nobody("the pool has no instance", previous)
    if len(seen.instances) > MAX_TABLE_INSTANCES:
        return _published("False", "TableTooLarge", f"{len(seen.instances)} instances; a table holds {MAX_TABLE_INSTANCES}")
    doubt = view_in_doubt(seen, previous)
    return _published("False", "ViewInDoubt", doubt) if doubt is not None else None


def _nobody(why: str, previous: Table | None) -> Condition:
    then = "the last table stays" if previous is not None else "the first table follows the first ready instance"
    return _published("False", "NoInstances", f"{why}; {then}")


def _first_table(seen: Observation, previous: Table | None, now: datetime) -> Condition | None:
    """Wait a moment with the very first table until all instances have been heard of."""
    if previous is not None or seen.pool.status.table_generation is not None:
        return None
    missing = not_observed_yet(seen, now)
    if not missing:
        return None
    return _published("Unknown", "Pending", f"the first table waits until {missing} more instances have been observed")


def _plan(seen: Observation, held: Condition | None, planned: TablePlan | None, now: datetime) -> Plan:
    """Turn a hold or a planned table into writes."""
    if seen.holder is Holder.PREDECESSOR:
        return Plan(requeue_after=PREDECESSOR_SECONDS)
    generation, fields = _table_fields(seen, planned, now)
    conditions = (held or _verdict(seen, planned, generation), _churn(planned))
    pool_status, announce, wait = _pool_status(seen, conditions, _of_the_pool(seen, planned, generation), now)
    return Plan(
        apply_table=planned is not None and seen.holder in (Holder.NOBODY, Holder.ORPHAN),
        table_status=_table_status(seen, fields, conditions, now),
        pool_status=pool_status,
        announce=announce,
        requeue_after=_requeue_after(seen, planned, wait, now),
    )


def _of_the_pool(seen: Observation, planned: TablePlan | None, generation: int | None) -> int | None:
    """The generation as far as it is this pool's: that of a stranger's table says nothing of it, and that of a tombstone, left by
    an earlier pool of this name, would say that users are somewhere already."""
    standing = seen.table is not None and seen.holder is not Holder.STRANGER and bool(seen.table.status.instances)
    return generation if planned is not None or standing else None


def _table_fields(seen: Observation, planned: TablePlan | None, now: datetime) -> tuple[int | None, dict[str, Any]]:
    """Generation and fields of the table to stand; without a plan those that stand."""
    old: dict[str, Any] = dict((seen.stored_table or {}).get("status") or {})
    old.pop("conditions", None)
    old.pop("observedGeneration", None)
    if planned is None:
        return old.get("generation"), old
    assert isinstance(seen.policy, Found)
    secret = seen.policy.spec.user_key_secret
    key_id = secret.name if secret is not None else ""
    instances = {each.metadata.name: each for each in seen.instances}
    fields = table_fields(planned.table, instances, key_id=key_id, policy=seen.policy.spec)
    if all(old.get(name) == value for name, value in fields.items()):
        return old.get("generation"), old
    generation = max(int(old.get("generation") or 0), seen.pool.status.table_generation or 0) + 1
    before = seen.table.status.recent_moves if seen.table is not None else ()
    fields["generation"] = generation
    fields["movedPercent"] = percent(planned.moved_percent)
    fields["publishedAt"] = timestamp(now)
    moves = move_fields(planned.history, before, generation)
    if moves:
        fields["recentMoves"] = moves
    return generation, fields


def _table_status(
    seen: Observation, fields: Mapping[str, Any], conditions: tuple[Condition, ...], now: datetime
) -> dict[str, Any] | None:
    """The table's whole status when it differs from the one that stands; nothing is said on a table that is not ours."""
    if seen.holder is Holder.STRANGER or "generation" not in fields:
        return None
    stored: Mapping[str, Any] = seen.stored_table or {}
    observed = int(stored.get("metadata", {}).get("generation", 1))
    before = conditions_of(stored) if stored else []
    items = set_conditions(before, conditions, observed_generation=observed, now=now)
    status = {**fields, "observedGeneration": observed, "conditions": items}
    return status if status != stored.get("status") else None


def _pool_status(
    seen: Observation, conditions: tuple[Condition, ...], generation: int | None, now: datetime
) -> tuple[dict[str, Any] | None, tuple[Announcement, ...], float | None]:
    """(status, announcements, seconds to wait) for the pool."""
    before = conditions_of(seen.stored)
    items = set_conditions(before, conditions, observed_generation=seen.pool.metadata.generation, now=now)
    highest = max(generation or 0, seen.pool.status.table_generation or 0)
    status: dict[str, Any] = {"conditions": items}
    if highest:
        status["tableGeneration"] = highest
    olds = [dict(old) for each in items if (old := find_condition(before, each["type"])) is not None]
    same_table = seen.pool.status.table_generation == status.get("tableGeneration")
    if olds == items and same_table:
        return None, (), None
    hurry = moved_on(olds, items) or not same_table
    wait = wait_before_write(seen.write_ages_s, transition=hurry)
    if wait:
        return None, (), wait
    return status, announcements(before, conditions), None


def _verdict(seen: Observation, planned: TablePlan | None, generation: int | None) -> Condition:
    assert planned is not None, "without a plan the table is held, and the hold has a condition"
    owners = [owner for owner in planned.table.owners if not owner.draining]
    words = f"generation {generation}, {len(owners)} instances"
    if planned.deferred_slots:
        return _published("False", "BudgetExhausted", f"{words}; more users move in the next windows of churn.windowSeconds")
    warming = [owner.name for owner in owners if owner.weight_percent < FULL_WEIGHT_PERCENT]
    if warming:
        return _published("False", "Warming", f"{words}; warming: {few(warming)}")
    leaving = [owner.name for owner in planned.table.owners if owner.draining]
    if leaving:
        return _published("False", "Draining", f"{words}; draining: {few(leaving)}")
    return _published("True", "Published", words)


def _churn(planned: TablePlan | None) -> Condition:
    """Whether the churn budget holds users back; what moves because it must is not held back, but uses the budget up."""
    if planned is None:
        return Condition("ChurnLimited", "Unknown", "TableHeld", "no table is being planned; see TablePublished")
    if not planned.deferred_slots:
        return Condition("ChurnLimited", "False", "WithinBudget", "")
    share = percent(round(100.0 * planned.deferred_slots / SLOTS, 1))
    return Condition("ChurnLimited", "True", "MovesDeferred", f"{share} percent of the users wait for the next windows")


def _requeue_after(seen: Observation, planned: TablePlan | None, wait: float | None, now: datetime) -> float | None:
    """When to look again without an event: for a delayed write, a spent budget, a warming instance, the end of a grace."""
    waits = [wait] if wait is not None else []
    if planned is None and seen.pool.status.table_generation is None and not_observed_yet(seen, now):
        waits.append(FIRST_LOOK_SECONDS)
    if planned is not None:
        if planned.deferred_slots and planned.history and isinstance(seen.policy, Found):
            window_ms = seen.policy.spec.churn.window_seconds * 1000.0
            waits.append(max(1.0, (planned.history[0].at_ms + window_ms - milliseconds(now)) / 1000.0))
        elif planned.deferred_slots:
            waits.append(1.0)
        if any(owner.weight_percent < FULL_WEIGHT_PERCENT and not owner.draining for owner in planned.table.owners):
            waits.append(WARMING_SECONDS)
        graces = [seconds_of_grace_left(each, started=seen.started, now=now) for each in seen.instances]
        waits += [grace + 1.0 for grace in graces if grace]
    return min(waits) if waits else None


def _published(status: Status, reason: str, message: str) -> Condition:
    return Condition("TablePublished", status, reason, message)
