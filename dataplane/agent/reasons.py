"""Why the agent holds or freezes: the closed list of its own reasons, and what each reason tells people to do.

Reasons of a strategy are `policies.allocation.types.Reason`; where both lists have a reason, it is the same word.
"""

import enum


class Hold(enum.StrEnum):
    """Nothing is wrong; the split stays where it is."""

    NO_INTENT = "NoIntent"
    PAUSED = "Paused"
    NO_WINDOW = "NoWindow"


class Freeze(enum.StrEnum):
    """Something is wrong; the agent refuses to move the split until it has been right again for a while."""

    ENGINE_UNREACHABLE = "EngineUnreachable"
    ENGINE_GARBAGE = "EngineGarbage"
    NOT_A_NUMBER = "NotANumber"
    COUNTERS_WENT_BACK = "CountersWentBack"
    LIMITS_ABOVE_POOL = "LimitsAbovePool"
    STALE_DATA = "StaleData"
    SECOND_WRITER = "SecondWriter"
    INTERNAL_ERROR = "InternalError"


MESSAGES: dict[str, str] = {
    Hold.NO_INTENT: "no intent was accepted yet, the split stays: check --intent-key, and that the operator reaches this agent",
    Hold.PAUSED: "the pool is paused; unset spec.paused to go on",
    Hold.NO_WINDOW: "two readings of one engine process make a window; this is the first, or no time has passed",
    Freeze.ENGINE_UNREACHABLE: "the engine does not answer; check its process and --engine",
    Freeze.ENGINE_GARBAGE: "the engine answered something that the contract does not allow",
    Freeze.NOT_A_NUMBER: "the engine reported NaN or infinity",
    Freeze.COUNTERS_WENT_BACK: "a counter fell without a new startId",
    Freeze.LIMITS_ABOVE_POOL: "the engine reports limits above its own pool",
    Freeze.STALE_DATA: "the engine's clock stands still; its figures are too old to act on",
    Freeze.SECOND_WRITER: "somebody else keeps changing the split; only one agent may run beside an engine",
    Freeze.INTERNAL_ERROR: "a round failed; see the log of the agent",
    "NotResizable": "the engine says that it cannot resize its caches online, or refused a change as unsupported",
    "MissingData": "a figure that the decision needs was not measured; nothing moves until it is",
    "PoolTooSmall": "the pool does not hold two granules; check spec.memory of the GRServingPool",
    "EngineDeferring": "the engine still uses more than a limit allows; nothing grows before it has caught up",
    "RefillBacklog": "a grown cache is still being refilled",
    "Idle": "no requests came in the last interval",
    "EstimateNotTrusted": "the curves rest on too few or too young samples; the fallback or the last goal holds",
    "StaticTarget": "the policy's fixed share",
    "AnchorTarget": "the split with the least predicted P99",
    "HillStep": "one step to the side where memory saves more time",
    "HillTop": "no step to either side saves time",
    "LearnedTarget": "the trained model's split, inside its clamp around the anchor",
    "GhostHits": "one step to the side that misses more of what it evicted",
    "BurstFreeze": "a burst, and refill of this engine blocks serving; the split is held, for a minute at most",
    "ModelMissing": "no allocator model was delivered; the analytic anchor decides instead",
    "OutOfDistribution": "the load lies outside what the model was trained for; the analytic anchor decides instead",
}
