"""Translates between a GRRoutingTable and the values of the table plan.

The churn budget outlives the process that spends it, so the moves inside the window stand in the table itself, with wall-
clock stamps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from contract.errors import ProtocolViolation
from contract.keys import SLOTS
from contract.table import NOBODY as NOBODY_ON_WIRE
from contract.table import InstanceState, pack_slots, unpack_slots
from controllers.runtime.conditions import timestamp
from crds import GRInstance, GRRoutingTableStatus, RoutingPolicySpec
from policies.routing.table import NOBODY, Move, Owner, Table
from policies.routing.warmup import FULL_WEIGHT_PERCENT

MAX_MOVES = 64


def table_of(status: GRRoutingTableStatus) -> Table | None:
    """The published table; None when there is none or it cannot be read."""
    if status.generation is None or status.slots is None:
        return None
    try:
        slots = unpack_slots(status.slots, instances=len(status.instances))
    except ProtocolViolation:
        return None
    owners = tuple(
        Owner(
            name=i.name,
            uid=i.uid,
            weight_percent=i.weight_percent,
            filling=i.state is InstanceState.WARMING,
            draining=i.state is InstanceState.DRAINING,
        )
        for i in status.instances
    )
    return Table(generation=status.generation, owners=owners, slots=tuple(NOBODY if s == NOBODY_ON_WIRE else s for s in slots))


def moves_of(status: GRRoutingTableStatus) -> list[Move]:
    """The moves that stand in the table, on the clock of :func:`milliseconds`."""
    return [
        Move(at_ms=milliseconds(move.time), slots=round(float(move.moved_percent) * SLOTS / 100.0))
        for move in status.recent_moves
    ]


def table_fields(table: Table, instances: Mapping[str, GRInstance], *, key_id: str, policy: RoutingPolicySpec) -> dict[str, Any]:
    """What followers act on: key id, instances, slots and limits, as the API spells them."""
    rows = [
        {
            "name": owner.name,
            "uid": owner.uid,
            "address": instances[owner.name].spec.source.service_url,
            "weightPercent": owner.weight_percent,
            "state": _state(owner).value,
        }
        for owner in table.owners
    ]
    slots = pack_slots([NOBODY_ON_WIRE if slot == NOBODY else slot for slot in table.slots])
    return {"keyId": key_id, "instances": rows, "slots": slots, "limits": _limits(policy)}


def _limits(policy: RoutingPolicySpec) -> dict[str, Any]:
    return {
        "boundedLoadPercent": policy.bounded_load.percent,
        "boundedLoadFloor": policy.bounded_load.floor,
        "hotUsersMax": policy.hot_users.max,
        "hotUserSeconds": policy.hot_users.ttl_seconds,
        "keyHeader": policy.key_header,
    }


def _state(owner: Owner) -> InstanceState:
    if owner.draining:
        return InstanceState.DRAINING
    return InstanceState.WARMING if owner.filling or owner.weight_percent < FULL_WEIGHT_PERCENT else InstanceState.READY


def move_fields(history: Sequence[Move], before: Sequence[Any], generation: int) -> list[dict[str, Any]]:
    """The moves of the window as the API spells them; `before` are the published ones, which keep their generations."""
    generations = {milliseconds(move.time): move.generation for move in before}
    moves = list(history)
    while len(moves) > MAX_MOVES:  # the two oldest become one with the later stamp: the budget is never spent twice
        moves[0:2] = [Move(at_ms=moves[1].at_ms, slots=moves[0].slots + moves[1].slots)]
    return [
        {
            "time": timestamp(datetime.fromtimestamp(move.at_ms / 1000.0, UTC)),
            "generation": generations.get(move.at_ms, generation),
            "movedPercent": percent(100.0 * min(move.slots, SLOTS) / SLOTS),
        }
        for move in moves
    ]


def milliseconds(moment: datetime) -> float:
    """Wall clock in whole seconds, as milliseconds: what survives being written to the API."""
    return float(int(moment.timestamp())) * 1000.0


def percent(value: float) -> str:
    """A percent with up to three decimals as the API writes it."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
