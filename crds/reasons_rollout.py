"""Reasons of the condition that follows a change of strategy or model through the instances of a pool."""

from __future__ import annotations

from crds.reason_types import ConditionSpec, ConditionType, FieldManager, Reason

_T, _F, _U = ("True",), ("False",), ("Unknown",)
_NOTHING = "Nothing."

ROLLOUT: tuple[ConditionSpec, ...] = (
    ConditionSpec(
        ConditionType.ROLLOUT_PROGRESSING,
        ("GRServingPool",),
        FieldManager.ALLOCATION,
        "A change of strategy or model gets on towards all instances, or has reached them; absent while none needed canaries.",
        (
            Reason(
                "Measuring",
                _T,
                "Figures of the time before the change are collected; nothing has been changed yet.",
                "Nothing while requests come; without requests it waits. soakSeconds 0 goes without a trial.",
            ),
            Reason("CanarySoaking", _T, "The canaries have the change and are compared with the others.", _NOTHING),
            Reason(
                "SoakExtended",
                _T,
                "The soak is over and could not rule harm out; the canaries soak as long again.",
                _NOTHING,
            ),
            Reason("Complete", _T, "All instances have the change.", _NOTHING),
            Reason(
                "Inconclusive",
                _F,
                "After twice the soak it cannot be told whether the change harms; the canaries keep it, the others wait.",
                "Wait: it goes on once the figures suffice. Or raise canaryPercent or rollbackP99Percent, or take it back.",
            ),
            Reason(
                "RolledBack",
                _F,
                "The canaries did worse than the policy allows and have their old strategy again.",
                "Look at the decisions of the canaries; change the policy to try again.",
            ),
            Reason(
                "Withdrawn",
                _F,
                "The policy is gone or cannot be read; the canaries have their old strategy again.",
                "Create the policy again, or name another one in spec.policies.hbm.",
            ),
            Reason(
                "PausedByUser",
                _U,
                "spec.paused of the pool is set; the clock of the rollout stands.",
                "Set spec.paused to false to continue.",
            ),
        ),
    ),
)
