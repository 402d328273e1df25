"""Why the agent holds or freezes: the closed list of its own reasons. Reasons of a strategy come from policies.allocation."""

import enum


class Hold(enum.StrEnum):
    """Nothing is wrong; the split stays where it is."""

    NO_INTENT = "NoIntent"
    PAUSED = "Paused"
    SHADOW = "Shadow"
    FIRST_READING = "FirstReading"
    NOT_RESIZABLE = "NotResizable"
    SETTLING = "Settling"


class Freeze(enum.StrEnum):
    """Something is wrong; the agent refuses to move the split until it has been right again for a while."""

    ENGINE_UNREACHABLE = "EngineUnreachable"
    ENGINE_GARBAGE = "EngineGarbage"
    NOT_A_NUMBER = "NotANumber"
    COUNTERS_WENT_BACK = "CountersWentBack"
    LIMITS_ABOVE_POOL = "LimitsAbovePool"
    STALE_OBSERVATION = "StaleObservation"
    SECOND_WRITER = "SecondWriter"
    SPLIT_REFUSED = "SplitRefused"
    INTERNAL_ERROR = "InternalError"


MESSAGES: dict[str, str] = {
    Hold.NO_INTENT: "no intent was accepted yet; the engine keeps its split. Check that the operator reaches this agent",
    Hold.PAUSED: "the pool is paused; unset spec.paused to go on",
    Hold.SHADOW: "decisions are recorded and not applied; set the HBMPolicy's enforcement to Active to apply them",
    Hold.FIRST_READING: "the first reading of this engine process only gives the base for differences",
    Hold.NOT_RESIZABLE: "the engine says that it cannot resize its caches online",
    Hold.SETTLING: "a change is still being carried out",
    Freeze.ENGINE_UNREACHABLE: "the engine does not answer; check its process and --engine",
    Freeze.ENGINE_GARBAGE: "the engine answered something that the contract does not allow",
    Freeze.NOT_A_NUMBER: "the engine reported NaN or infinity",
    Freeze.COUNTERS_WENT_BACK: "a counter fell without a new startId",
    Freeze.LIMITS_ABOVE_POOL: "the engine reports limits above its own pool",
    Freeze.STALE_OBSERVATION: "the engine's clock stands still; its figures are old",
    Freeze.SECOND_WRITER: "somebody else keeps changing the split; only one agent may run beside an engine",
    Freeze.SPLIT_REFUSED: "the engine refuses split changes",
    Freeze.INTERNAL_ERROR: "the decision failed; see the log of the agent",
}
