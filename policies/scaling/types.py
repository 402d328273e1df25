"""Values of the scaling arithmetic: behaviour, bounds, history, and the reasons that people know from HorizontalPodAutoscaler.

Seconds are those of one clock that the caller chooses and never mixes; a stamp from the future counts as one of now.
"""

from __future__ import annotations

import enum

import msgspec

from policies.measurement import Fresh, Measurement, NotANumber, Stale


class SelectPolicy(enum.StrEnum):
    """Which of several rate policies holds."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class PolicyType(enum.StrEnum):
    """Unit of a rate policy's value."""

    PODS = "Pods"
    PERCENT = "Percent"


class Direction(enum.StrEnum):
    """Which way capacity goes."""

    UP = "Up"
    DOWN = "Down"
    NONE = "None"


class Doubt(enum.StrEnum):
    """Why a measurement cannot be acted on; the words are those of the condition MetricsFresh."""

    STALE = "Stale"
    MISSING = "Missing"
    NOT_A_NUMBER = "NotANumber"


class AbleToScale(enum.StrEnum):
    """Whether a stabilisation window holds capacity."""

    READY_FOR_NEW_SCALE = "ReadyForNewScale"
    SCALE_UP_STABILIZED = "ScaleUpStabilized"
    SCALE_DOWN_STABILIZED = "ScaleDownStabilized"


class ScalingLimited(enum.StrEnum):
    """What keeps capacity from the count that the metrics want."""

    DESIRED_WITHIN_RANGE = "DesiredWithinRange"
    TOO_MANY_REPLICAS = "TooManyReplicas"
    TOO_FEW_REPLICAS = "TooFewReplicas"
    SCALE_UP_LIMIT = "ScaleUpLimit"
    SCALE_DOWN_LIMIT = "ScaleDownLimit"


class ScalingActive(enum.StrEnum):
    """Whether the metrics can be acted on. The first two are HorizontalPodAutoscaler's, the others name the doubt."""

    VALID_METRIC_FOUND = "ValidMetricFound"
    SCALING_DISABLED = "ScalingDisabled"
    METRIC_STALE = "MetricStale"
    METRIC_MISSING = "MetricMissing"
    METRIC_NOT_A_NUMBER = "MetricNotANumber"


class RatePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """At most `value` instances, or percent of those at the start of the period, in any `period_s` seconds."""

    type: PolicyType
    value: int
    period_s: float


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour in one direction.

    Attributes
    ----------
    stabilization_s
        Seconds of past recommendations that count: going up the lowest of them holds, going down the highest.
    select
        Which rate policy holds when there are several; Disabled forbids the direction.
    tolerance
        Relative distance from the target that is not acted on.
    """

    stabilization_s: float
    policies: tuple[RatePolicy, ...]
    select: SelectPolicy = SelectPolicy.MAX
    tolerance: float = 0.1


SCALE_UP = Rules(
    stabilization_s=0.0,
    policies=(
        RatePolicy(type=PolicyType.PODS, value=4, period_s=15.0),
        RatePolicy(type=PolicyType.PERCENT, value=100, period_s=15.0),
    ),
)
SCALE_DOWN = Rules(stabilization_s=300.0, policies=(RatePolicy(type=PolicyType.PERCENT, value=100, period_s=15.0),))


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour in both directions; the defaults are HorizontalPodAutoscaler's."""

    up: Rules = SCALE_UP
    down: Rules = SCALE_DOWN


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Fewest and most instances; `minimum <= maximum`."""

    minimum: int
    maximum: int

    def clamp(self, count: int) -> int:
        """The count inside the bounds that is nearest to `count`."""
        return min(max(count, self.minimum), self.maximum)


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What the metrics wanted at one moment, before windows and limits.

    Attributes
    ----------
    held
        True where the metrics were in doubt and `count` is what was running. Such an entry only ever holds against going down:
        the first reading after an outage is not a window of evidence.
    """

    at_s: float
    count: int
    held: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the count that was carried out: positive for growth."""

    at_s: float
    delta: int


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What the windows and rate policies look back on, oldest first."""

    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[Change, ...] = ()

    @classmethod
    def starting_at(cls, count: int, *, now_s: float) -> History:
        """History of a scaler that has just started: what runs is its first recommendation, so nothing shrinks at once."""
        return cls(recommendations=(Recommendation(at_s=now_s, count=count),))

    def noted(self, recommendation: Recommendation, *, behavior: Behavior) -> History:
        """The history with one more recommendation, without those too old to matter."""
        oldest = recommendation.at_s - max(behavior.up.stabilization_s, behavior.down.stabilization_s)
        kept = tuple(r for r in self.recommendations if r.at_s > oldest)
        return History(recommendations=(*kept, recommendation), changes=self.changes)

    def changed(self, *, before: int, after: int, now_s: float, behavior: Behavior) -> History:
        """The history after the count was really changed; the executor calls it when the write has succeeded."""
        if before == after:
            return self
        longest = max((policy.period_s for rules in (behavior.up, behavior.down) for policy in rules.policies), default=0.0)
        kept = tuple(c for c in self.changes if c.at_s > now_s - longest)
        return History(recommendations=self.recommendations, changes=(*kept, Change(at_s=now_s, delta=after - before)))


def doubt_of(value: Measurement) -> Doubt | None:
    """Why this measurement cannot be acted on, None for a fresh one."""
    match value:
        case Fresh():
            return None
        case Stale():
            return Doubt.STALE
        case NotANumber():
            return Doubt.NOT_A_NUMBER
        case _:
            return Doubt.MISSING


def gravest(doubts: list[Doubt]) -> Doubt | None:
    """The doubt to report for several: missing before not-a-number before stale; None for none."""
    return next((doubt for doubt in (Doubt.MISSING, Doubt.NOT_A_NUMBER, Doubt.STALE) if doubt in doubts), None)
