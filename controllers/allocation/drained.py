"""Drained of an instance: whether nobody would notice if it went now.

The word comes from the agent, under the very generation that says drain, so it is younger than the drain. Nothing in flight at
one moment is not enough: callers that have yet to follow the table would still come, so it must have been quiet for a while since
the engine was told, and the table must send nobody any more. Where that cannot be seen only the deadline ends a drain.
"""

from __future__ import annotations

from contract.agent import AgentStatus
from controllers.allocation.observe import Observation
from controllers.allocation.sightings import Answered
from controllers.allocation.verdicts import holds_intent
from controllers.runtime.conditions import Condition, Status

QUIET_SECONDS = 3.0


def drained(seen: Observation) -> Condition | None:
    """The condition while spec.drain is set, else None."""
    if seen.instance.spec.drain is None:
        return None
    if not isinstance(seen.sighting, Answered) or seen.holder is not None:
        return _drained("Unknown", "NotObserved", "there is no fresh report of the agent; the deadline ends the drain")
    status = seen.sighting.status
    if not status.engine.reachable or status.serving is None or status.idle_seconds is None:
        return _drained("Unknown", "NotObserved", "the agent does not see its engine; the deadline ends the drain")
    return _of(seen, status)


def _of(seen: Observation, status: AgentStatus) -> Condition:
    assert status.serving is not None
    assert status.idle_seconds is not None
    if not (holds_intent(seen, status) and status.draining):
        return _drained("False", "Finishing", "the engine has not been told to drain yet")
    if status.serving.in_flight > 0:
        return _drained("False", "Finishing", "requests are in flight")
    if seen.still_routed:
        return _drained("False", "Finishing", "the routing table still sends users here")
    if status.idle_seconds < QUIET_SECONDS:
        return _drained("False", "Finishing", "nothing is in flight; callers may have yet to follow the table")
    return _drained("True", "NothingInFlight", "the engine was told to drain and has no request left")


def is_finishing(seen: Observation) -> bool:
    """Whether the agent should be asked again soon because a drain is under way; one that says nothing keeps its own rhythm."""
    condition = drained(seen)
    return condition is not None and condition.status != "True" and isinstance(seen.sighting, Answered)


def _drained(status: Status, reason: str, message: str) -> Condition:
    return Condition("Drained", status, reason, message)
