"""What a rollout says to people: conditions and Events of its steps. Pure, and sticky: a message changes with what it tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from controllers.allocation.observe import PoolView
from controllers.announce import Announcement
from controllers.runtime.conditions import Condition, conditions_of, find_condition
from controllers.runtime.resources import uid_of
from crds.hbm_policy import RolloutPhase
from crds.pool_rollout import PoolRollout
from policies.rollout.verdict import Evidence

KIND = "RolloutProgressing"
TOLD_SECONDS = 30
"""While canaries soak, the message changes this often."""
_TRYING = {
    RolloutPhase.CANARY: ("True", "CanarySoaking"),
    RolloutPhase.EXTENDED: ("True", "SoakExtended"),
    RolloutPhase.INCONCLUSIVE: ("False", "Inconclusive"),
}


def charge_word(part: Mapping[str, Any]) -> str:
    """Who decides under a policy, as an agent says it; see `agent_windows.charge_in_force`."""
    model = part.get("modelRef")
    if model is None:
        return "MissRatioCurve" if part["strategy"] == "Learned" else str(part["strategy"])
    return f"{part['strategy']}/{model['sha256']}"


def change_word(part: Mapping[str, Any]) -> str:
    """The change in words: the strategy, its model, and the policy that asks for it."""
    model, ref = part.get("modelRef"), part["policyRef"]
    what = str(part["strategy"]) if model is None else f"{part['strategy']} with model {model['name']}"
    return f"{what} of HBMPolicy {ref.get('namespace', '')}/{ref['name']}"


def event_of(condition: Condition) -> Announcement:
    """The Event that goes with a new phase."""
    return Announcement("Warning" if condition.status == "False" else "Normal", condition.reason, condition.message)


def began(view: PoolView, wanted: Mapping[str, Any]) -> tuple[Announcement, ...]:
    """A rollout begins with measuring."""
    note = f"{change_word(wanted)}: the time before is measured, then canaries try it"
    return (Announcement("Normal", "Measuring", note),)


def taken_back(view: PoolView) -> tuple[Announcement, ...]:
    """The policy asks for something else, which needs no canaries."""
    return (
        Announcement("Normal", "RolloutEnded", "the policy was changed to what needs no canaries; all instances take it now"),
    )


def measuring(view: PoolView, wanted: Mapping[str, Any], *, windows: int, needed: int) -> Condition:
    """Figures of before are collected."""
    seen = windows // 6 * 6
    return Condition(
        KIND,
        "True",
        "Measuring",
        f"{change_word(wanted)} waits; {seen} of {needed} windows with 20 requests or more are measured",
    )


def trying(view: PoolView, rollout: PoolRollout, wanted: Mapping[str, Any], evidence: Evidence, *, soaked: float) -> Condition:
    """Canaries have the change."""
    status, reason = _TRYING[rollout.phase]
    told = int(soaked) // TOLD_SECONDS * TOLD_SECONDS
    there = {uid_of(each) for each, _ in view.instances}
    trying = sum(member.uid in there for member in rollout.canaries)
    count = f"{trying} of {len(there)} instances have {change_word(wanted)}"
    begins = f"{count} for {told} s" if rollout.phase is not RolloutPhase.INCONCLUSIVE else count
    old = find_condition(conditions_of(view.stored), KIND) or {}
    if old.get("reason") == reason and str(old.get("message", "")).startswith(f"{begins}; "):
        return Condition(KIND, status, reason, old["message"])  # type: ignore[arg-type] # one of the three
    return Condition(KIND, status, reason, f"{begins}; {figures(evidence)}")  # type: ignore[arg-type] # one of the three


def complete(wanted: Mapping[str, Any], evidence: Evidence | None) -> Condition:
    """All instances have the change."""
    passed = f"; {figures(evidence)}" if evidence is not None else ""
    return Condition(KIND, "True", "Complete", f"all instances take {change_word(wanted)}{passed}")


def rolled_back(view: PoolView, stands: PoolRollout, wanted: Mapping[str, Any], evidence: Evidence) -> Condition:
    """The canaries did worse."""
    return Condition(
        KIND,
        "False",
        "RolledBack",
        f"{change_word(wanted)} did harm on {_few_canaries(stands)}: {figures(evidence)}; "
        f"{stands.stable.strategy} is back until the policy changes",
    )


def withdrawn(view: PoolView, stands: PoolRollout) -> Condition:
    """The policy is gone."""
    return Condition(
        KIND, "False", "Withdrawn", f"HBMPolicy {stands.policy_ref.name} cannot be used; {stands.stable.strategy} stays on all"
    )


def paused(stands: PoolRollout) -> Condition:
    """The clock stands."""
    return Condition(KIND, "Unknown", "PausedByUser", f"the rollout stands at {stands.phase.value}; set spec.paused to false")


def at_rest(rollout: PoolRollout) -> Condition | None:
    """The condition of a phase in which nothing happens, when nobody remembers its words."""
    part = rollout.stable.to_wire()
    if rollout.phase is RolloutPhase.COMPLETE:
        return complete(part, None)
    if rollout.phase is RolloutPhase.ROLLED_BACK:
        return Condition(KIND, "False", "RolledBack", f"{rollout.stable.strategy} is back until the policy changes")
    if rollout.phase is RolloutPhase.WITHDRAWN:
        return Condition(KIND, "False", "Withdrawn", f"{rollout.stable.strategy} stays on all")
    return None


def policy_rolled_back(rollout: PoolRollout) -> Condition:
    """PolicyHealthy of a pool whose change was taken back."""
    ref = rollout.policy_ref
    return Condition(
        "PolicyHealthy",
        "False",
        "RolledBack",
        f"what HBMPolicy {ref.namespace}/{ref.name} asks for was taken back and {rollout.stable.strategy} decides; "
        "change the policy to try again",
    )


def figures(evidence: Evidence) -> str:
    """The comparison in words, rounded to a percent and to a tenth of a point."""
    against = "their past" if evidence.alone else "the others"
    p99, bad = evidence.p99, evidence.bad
    if p99 is None:
        return f"nothing to compare with {against} yet"
    low, high = _percent(p99.surely), _percent(p99.surely_at_most)
    said = f"P99 {_percent(p99.mean)} % against {against}, surely between {low} and {high} %, in {p99.windows} windows"
    if bad is not None:
        said += f"; bad requests {bad.mean:+.1f} points"
    return said


def _percent(log_ratio: float) -> str:
    return f"{100.0 * math.expm1(min(log_ratio, 5.0)):+.0f}"


def _few_canaries(stands: PoolRollout) -> str:
    names = [member.name for member in stands.canaries]
    return names[0] if len(names) == 1 else f"{len(names)} canaries"
