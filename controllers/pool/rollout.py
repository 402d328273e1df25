"""How the rolling update of a pool's Deployment stands, as far as the pool loop has to know: is it under way, and does it get on?

A Deployment has its size before its ReplicaSets have theirs, and its status runs behind. So what it is taken for waits until
nothing about it has changed for a while. That is measured by the monotonic clock of this process: that the operator was away for
an hour, or that a former leader's clock was wrong, makes no difference but a moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.resources import Object

SETTLED_SECONDS = 5.0
"""After this time without a change the ReplicaSets have done what they were told."""
STUCK_SECONDS = 30.0
"""So long no healthy update stays without its first pod: it makes or takes one at once."""
_COUNTS = ("observedGeneration", "replicas", "updatedReplicas", "availableReplicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A Deployment in its update.

    Attributes
    ----------
    taken_in
        Whether the Deployment controller has seen the newest spec.
    under_way
        Whether it has, and pods of an older template are still there.
    begun
        Whether there is a pod of the newest template, or a known reason why there is none: a person's pause, a quota.
    quiet_since
        When this process first saw it as it is now; None: just now.
    """

    taken_in: bool = True
    under_way: bool = False
    begun: bool = True
    quiet_since: datetime | None = None

    def settled_at(self, now: datetime) -> datetime:
        """When the ReplicaSets will have done what they were told."""
        return (self.quiet_since or now) + timedelta(seconds=SETTLED_SECONDS)

    def stuck_at(self, now: datetime) -> datetime | None:
        """When an update that is to begin will count as stuck; None while none is to begin."""
        waits = self.under_way and not self.begun
        return (self.quiet_since or now) + timedelta(seconds=STUCK_SECONDS) if waits else None


def rollout_of(deployment: Object | None, *, quiet_since: datetime | None = None) -> Rollout:
    """What the status says."""
    if deployment is None:
        return Rollout()
    status, generation = deployment.get("status") or {}, int(deployment["metadata"].get("generation", 0))
    updated = int(status.get("updatedReplicas", 0))
    taken_in = int(status.get("observedGeneration", -1)) >= generation
    return Rollout(
        taken_in=taken_in,
        under_way=taken_in and updated < int(status.get("replicas", 0)),
        begun=updated > 0 or bool((deployment.get("spec") or {}).get("paused")) or _is_refused(deployment),
        quiet_since=quiet_since,
    )


def _is_refused(deployment: Object) -> bool:
    """Whether the API server does not take its pods, or the ReplicaSet for them."""
    pods, progress = (find_condition(conditions_of(deployment), name) or {} for name in ("ReplicaFailure", "Progressing"))
    return pods.get("status") == "True" or progress.get("reason") == "ReplicaSetCreateError"


def state_of(deployment: Object) -> tuple[Any, ...]:
    """Everything whose change says that the Deployment, or one of its ReplicaSets, was at work."""
    metadata, status = deployment["metadata"], deployment.get("status") or {}
    return (metadata.get("uid"), metadata.get("generation"), *(status.get(name) for name in _COUNTS))
