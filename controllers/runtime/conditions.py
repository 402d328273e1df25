"""Conditions as a pure function of the old ones and what is true now.

Each condition type has exactly one field manager, which applies only its own items; ``lastTransitionTime`` moves only
when ``status`` does, so that a steady state is written once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from crds.reasons import check_condition
from crds.types import rfc3339

Status = Literal["True", "False", "Unknown"]

_LONGEST_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Condition:
    """What a loop found, without times.

    Raises
    ------
    KeyError, ValueError
        If ``crds.reasons`` does not list the reason for that type and status. Long messages are cut instead, because
        they can contain text from elsewhere.
    """

    type: str
    status: Status
    reason: str
    message: str = ""

    def __post_init__(self) -> None:
        check_condition(self.type, self.status, self.reason)
        if len(self.message) > _LONGEST_MESSAGE:
            object.__setattr__(self, "message", self.message[: _LONGEST_MESSAGE - 1] + "…")


def set_condition(
    existing: Iterable[Mapping[str, Any]], condition: Condition, *, observed_generation: int, now: datetime
) -> dict[str, Any]:
    """The status item for ``condition``; it keeps the old transition time unless ``status`` changed."""
    old = find_condition(existing, condition.type)
    same = old is not None and old.get("status") == condition.status and old.get("lastTransitionTime")
    return {
        "type": condition.type,
        "status": condition.status,
        "observedGeneration": observed_generation,
        "lastTransitionTime": old["lastTransitionTime"] if same and old is not None else timestamp(now),
        "reason": condition.reason,
        "message": condition.message,
    }


def set_conditions(
    existing: Iterable[Mapping[str, Any]],
    conditions: Iterable[Condition],
    *,
    observed_generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Items for all conditions of one field manager, sorted by type: what it puts into its status apply.

    Conditions of other managers in ``existing`` are not repeated. Raises ValueError if a type occurs twice.
    """
    before = list(existing)
    items = [set_condition(before, each, observed_generation=observed_generation, now=now) for each in conditions]
    if len({item["type"] for item in items}) != len(items):
        raise ValueError("a condition type occurs twice")
    return in_order(items)


def standing_items(existing: Iterable[Mapping[str, Any]], types: Collection[str]) -> list[dict[str, Any]]:
    """The items of these types as they stand, in the order of `set_conditions`, so that both can be compared."""
    return in_order(dict(item) for item in existing if item.get("type") in types)


def in_order(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorted by type."""
    return sorted(items, key=lambda item: str(item["type"]))


def find_condition(conditions: Iterable[Mapping[str, Any]], type_: str) -> Mapping[str, Any] | None:
    """The item of that type, or None."""
    return next((item for item in conditions if item.get("type") == type_), None)


def conditions_of(obj: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The conditions in an object's status; empty if it has none."""
    return list((obj.get("status") or {}).get("conditions") or ())


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as the API writes times."""
    return rfc3339(moment)
