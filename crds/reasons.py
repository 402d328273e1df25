"""The closed list of condition types and of their reasons, each with what it means and what to do about it.

A condition with another reason cannot be built (:func:`check_condition`), and the API reference prints the list, so that whoever
reads a reason in ``kubectl get`` finds the remedy. A type has one field manager; reasons of a type belong to that type only.
"""

from __future__ import annotations

from collections.abc import Iterator

from crds.reason_types import ConditionSpec, ConditionType, FieldManager, Reason
from crds.reasons_policy import POLICY
from crds.reasons_rollout import ROLLOUT
from crds.reasons_serving import SERVING

__all__ = [
    "CONDITIONS",
    "ConditionSpec",
    "ConditionType",
    "FieldManager",
    "Reason",
    "check_condition",
    "find_reason",
    "reasons_of",
]

CONDITIONS: tuple[ConditionSpec, ...] = (*SERVING, *POLICY, *ROLLOUT)


def reasons_of(type_: str) -> Iterator[Reason]:
    """The reasons of a condition type; empty for an unknown type."""
    for condition in CONDITIONS:
        if condition.type == type_:
            yield from condition.reasons


def find_reason(type_: str, name: str) -> Reason:
    """The documented reason of that name.

    Raises
    ------
    KeyError
        When the type has no such reason: add it here before a controller sets it.
    """
    for reason in reasons_of(type_):
        if reason.name == name:
            return reason
    raise KeyError(f"{type_} has no reason {name}; the closed list is crds/reasons.py")


def check_condition(type_: str, status: str, name: str) -> None:
    """Refuse a condition that the reference does not document.

    Raises
    ------
    KeyError
        When the type has no such reason.
    ValueError
        When the reason does not go with the status.
    """
    reason = find_reason(type_, name)
    if status not in reason.status:
        raise ValueError(f"{type_}={status} does not go with reason {name}, which means {' or '.join(reason.status)}")
