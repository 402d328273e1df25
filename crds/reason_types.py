"""The words in which conditions are described: their types, their writers, and the form of a reason.

The list itself is in :mod:`crds.reasons`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConditionType(StrEnum):
    """Condition types of all kinds."""

    READY = "Ready"
    INSTANCES_READY = "InstancesReady"
    PAUSED = "Paused"
    POLICY_HEALTHY = "PolicyHealthy"
    SPLIT_SETTLED = "SplitSettled"
    ROLLOUT_PROGRESSING = "RolloutProgressing"
    TABLE_PUBLISHED = "TablePublished"
    CHURN_LIMITED = "ChurnLimited"
    DRAINED = "Drained"
    PRE_INFERENCE_SCALED = "PreInferenceScaled"
    METRICS_FRESH = "MetricsFresh"
    VERIFIED = "Verified"
    IN_USE = "InUse"


class FieldManager(StrEnum):
    """Field managers of server-side apply; each condition has exactly one."""

    POOL = "grfleet-pool"
    ALLOCATION = "grfleet-allocation"
    ROUTING = "grfleet-routing"
    PRE_INFERENCE = "grfleet-preinference"
    MODELS = "grfleet-models"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a condition.

    Attributes
    ----------
    name
        What stands in the condition's ``reason``.
    status
        The condition statuses it goes with: True, False, Unknown.
    meaning
        What it says, in a sentence.
    remedy
        What to do about it, in a sentence.
    """

    name: str
    status: tuple[str, ...]
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ConditionSpec:
    """One condition type on one or more kinds, with its writer and its reasons."""

    type: ConditionType
    kinds: tuple[str, ...]
    manager: FieldManager
    meaning: str
    reasons: tuple[Reason, ...]
