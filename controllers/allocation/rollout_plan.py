"""The next step of a pool's rollout, from what stands in its status, its policy, and what the comparison says. Pure but for the
memory of the trial that it is handed.

A step is a new state for `status.rollout`, a condition and, when a phase ends, an Event. What the state means for an instance is
told in `rollout`; when a phase ends is told in `policies.rollout.phases`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from contract.agent import Enforcement, Strategy
from controllers.agent_windows import WINDOW_SECONDS
from controllers.allocation import rollout_words as words
from controllers.allocation.intent import intent_for
from controllers.allocation.observe import PoolView
from controllers.allocation.rollout import GOING_ON, TRYING, charge_in, part_of, revision_of, stable_part
from controllers.allocation.trial import Baseline, Trial
from controllers.announce import Announcement
from controllers.lookup import Found, NotFound
from controllers.model_lookup import ModelFound
from controllers.runtime.conditions import Condition, conditions_of, find_condition
from controllers.runtime.resources import Object, uid_of
from crds.hbm_policy import RolloutPhase
from crds.pool_rollout import MOST_SOAKED_SECONDS, PolicyPart, PoolRollout
from policies.rollout.groups import Groups, Member, canary_count, choose
from policies.rollout.phases import ALONE_FACTOR, Phase, Soak, next_phase
from policies.rollout.risk import needs_canaries
from policies.rollout.verdict import FEWEST_BEFORE, Evidence, Tolerance, Verdict, judge

LOOK_SECONDS = WINDOW_SECONDS
"""How often a rollout that goes on is looked at."""
_NO_INTENT: Mapping[str, Any] = {}
_NOBODY_TRIES: Mapping[str, Any] = {"since": None, "canaries": (), "controls": (), "canary_percent": None, "noise": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What should stand now; None: no rollout, or nothing to say.

    Attributes
    ----------
    requeue_after
        Seconds until the rollout is to be looked at again; None while nothing goes on.
    """

    rollout: PoolRollout | None = None
    condition: Condition | None = None
    announce: tuple[Announcement, ...] = ()
    requeue_after: float | None = None


def plan_rollout(view: PoolView, trial: Trial, *, now: datetime, now_s: float) -> Step:
    """Choose the next step; `now_s` is a monotonic second of this process."""
    stands = view.pool.status.rollout
    trial.stands(trying=stands is not None and stands.phase in TRYING, now_s=now_s)
    return _next_step(view, trial, now=now, now_s=now_s)


def _next_step(view: PoolView, trial: Trial, *, now: datetime, now_s: float) -> Step:
    stands = view.pool.status.rollout
    if view.pool.spec.paused:
        return _paused(view, stands, trial, now=now, now_s=now_s)
    if not isinstance(view.policy, Found):
        return _without_policy(view, stands)
    wanted = _wanted_part(view, view.policy)
    charge, revision = charge_in(wanted), revision_of(wanted)
    if charge is None and _waits_for_its_model(view, stands, wanted):
        return Step(rollout=stands, condition=_standing(view))
    if charge is None:
        return Step(announce=words.taken_back(view) if stands is not None and stands.phase in GOING_ON else ())
    if stands is not None and stands.revision == revision and not _tried_anew(stands, view.policy):
        return _go_on(view, stands, wanted, trial, now=now, now_s=now_s)
    stable = _stable_of(view, stands)
    if stable is None or not needs_canaries(charge, charge_in(stable)):
        return _complete(view, wanted, told=stands is not None and stands.phase in GOING_ON)
    if stands is not None and stands.phase is not RolloutPhase.COMPLETE:
        trial.start_over(now_s=now_s)
    return _begin(view, wanted, stable, trial, now=now, now_s=now_s)


def _wanted_part(view: PoolView, policy: Found[Any]) -> dict[str, Any]:
    model = view.model.ref if isinstance(view.model, ModelFound) else None
    return part_of(intent_for(view.pool, policy, model=model).to_wire())


def _tried_anew(stands: PoolRollout, policy: Found[Any]) -> bool:
    """Whether a change that was taken back is asked for again: by another generation, or by a policy that is there again."""
    if stands.phase is RolloutPhase.WITHDRAWN:
        return True
    asked_by = (policy.namespace, policy.name, policy.generation)
    before = (stands.policy_ref.namespace, stands.policy_ref.name, stands.policy_ref.generation)
    return stands.phase is RolloutPhase.ROLLED_BACK and asked_by != before


def _waits_for_its_model(view: PoolView, stands: PoolRollout | None, wanted: Mapping[str, Any]) -> bool:
    """Whether the very policy whose change was taken back is there as it was, and only its model may not run at the moment.

    That it may again is no new word of a person: the same model must not be tried on canaries once more.
    """
    assert isinstance(view.policy, Found), "the caller has looked"
    if stands is None or stands.phase is not RolloutPhase.ROLLED_BACK or _tried_anew(stands, view.policy):
        return False
    acts = wanted["strategy"] == Strategy.LEARNED and wanted["enforcement"] != Enforcement.SHADOW
    return acts and "modelRef" not in wanted


def _stable_of(view: PoolView, stands: PoolRollout | None) -> Mapping[str, Any] | None:
    """What the pool runs now and is to return to: what most instances have; None while nobody has anything."""
    if stands is not None and stands.phase is not RolloutPhase.COMPLETE:
        return stable_part(stands)
    intents = [intent for each, _ in view.instances if (intent := each["spec"].get("intent")) is not None]
    if not intents:
        return None
    counts = Counter(revision_of(intent) for intent in intents)
    most = min(counts, key=lambda revision: (-counts[revision], revision))
    return part_of(next(intent for intent in intents if revision_of(intent) == most))


# -- steps -----------------------------------------------------------------------------------------------------------------


def _begin(
    view: PoolView, wanted: Mapping[str, Any], stable: Mapping[str, Any], trial: Trial, *, now: datetime, now_s: float
) -> Step:
    opened = PoolRollout(
        phase=RolloutPhase.MEASURING,
        revision=revision_of(wanted),
        policy_ref=wanted["policyRef"],
        since=now,
        stable=PolicyPart.model_validate(stable),
    )
    step = _go_on(view, opened, wanted, trial, now=now, now_s=now_s)
    began = words.began(view, wanted) if step.rollout is not None and step.rollout.phase is RolloutPhase.MEASURING else ()
    return Step(
        rollout=step.rollout, condition=step.condition, announce=(*began, *step.announce), requeue_after=step.requeue_after
    )


def _go_on(view: PoolView, stands: PoolRollout, wanted: Mapping[str, Any], trial: Trial, *, now: datetime, now_s: float) -> Step:
    stands = stands.model_copy(update={"policy_ref": PolicyPart.model_validate(wanted).policy_ref})
    if stands.phase is RolloutPhase.MEASURING:
        return _measure(view, stands, wanted, trial, now=now, now_s=now_s)
    if stands.phase in TRYING:
        return _try(view, stands, wanted, trial, now=now, now_s=now_s)
    return Step(rollout=stands, condition=_standing(view))


def _measure(
    view: PoolView, stands: PoolRollout, wanted: Mapping[str, Any], trial: Trial, *, now: datetime, now_s: float
) -> Step:
    assert isinstance(view.policy, Found)
    asked = view.policy.spec.rollout
    groups = _groups(view, stands, trial, now_s=now_s, percent=asked.canary_percent)
    stable = words.charge_word(stable_part(stands))
    baseline = trial.baseline(groups, stable=stable, now_s=now_s)
    if groups.controls and _only_canaries_measured(baseline):  # the others have no traffic: nobody is there to compare with
        groups = replace(groups, controls=())
        baseline = trial.baseline(groups, stable=stable, now_s=now_s)
    needed = FEWEST_BEFORE * (1 if groups.controls else ALONE_FACTOR)
    measured = bool(groups.canaries) and baseline.windows >= needed
    soak = Soak(seconds=0.0, wanted_seconds=asked.soak_seconds, alone=not groups.controls)
    phase = next_phase(Phase.MEASURING, soak=soak, verdict=Verdict.OPEN, measured=measured)
    if phase is Phase.COMPLETE:
        return _complete(view, wanted, told=True)
    if phase is Phase.MEASURING:
        condition = words.measuring(view, wanted, windows=baseline.windows, needed=needed)
        return Step(rollout=stands, condition=condition, requeue_after=LOOK_SECONDS)
    chosen = stands.model_copy(
        update={
            "phase": RolloutPhase.CANARY,
            "since": now,
            "canaries": baseline.canaries,
            "controls": baseline.controls,
            "canary_percent": asked.canary_percent,
            "noise": baseline.noise,
        }
    )
    condition = words.trying(view, chosen, wanted, Evidence(alone=not groups.controls), soaked=0.0)
    return Step(
        rollout=chosen,
        condition=condition,
        announce=(Announcement("Normal", condition.reason, condition.message),),
        requeue_after=LOOK_SECONDS,
    )


def _only_canaries_measured(baseline: Baseline) -> bool:
    measured, others = (any(member.p99_ms is not None for member in group) for group in (baseline.canaries, baseline.controls))
    return measured and not others


def _try(view: PoolView, stands: PoolRollout, wanted: Mapping[str, Any], trial: Trial, *, now: datetime, now_s: float) -> Step:
    assert isinstance(view.policy, Found)
    uids = frozenset(uid_of(each) for each, instance in view.instances if instance.spec.drain is None)
    asked, good = view.policy.spec.rollout, float(view.pool.spec.slo.good_percent)
    all_left = not any(member.uid in uids for member in stands.canaries)
    if all_left or (asked.soak_seconds > 0 and _other_count(stands, asked.canary_percent, of=len(uids))):
        trial.start_over(now_s=now_s)  # others are to try, or more or fewer: they are chosen and measured anew
        return _begin(view, wanted, stable_part(stands), trial, now=now, now_s=now_s)
    if stands.since is None:
        stands = stands.model_copy(update={"since": now})  # after a pause
    soaked = trial.soaked_seconds(stands, now=now, now_s=now_s)
    evidence = trial.compare(stands, uids, charge=words.charge_word(wanted), told=_told(view, stands), now=now, now_s=now_s)
    verdict = judge(evidence, Tolerance(p99_percent=asked.rollback_p99_percent, allowed_bad_percent=100.0 - good))
    soak = Soak(seconds=soaked, wanted_seconds=asked.soak_seconds, alone=evidence.alone)
    phase = RolloutPhase(next_phase(Phase(stands.phase), soak=soak, verdict=verdict, measured=True))
    if phase is RolloutPhase.COMPLETE:
        return _complete(view, wanted, told=True, evidence=evidence)
    if phase is RolloutPhase.ROLLED_BACK:
        return _roll_back(view, stands, wanted, evidence)
    moved = stands.model_copy(update={"phase": phase})
    condition = words.trying(view, moved, wanted, evidence, soaked=soaked)
    told = () if phase is stands.phase else (words.event_of(condition),)
    return Step(rollout=moved, condition=condition, announce=told, requeue_after=LOOK_SECONDS)


def _other_count(stands: PoolRollout, percent: int, *, of: int) -> bool:
    """Whether the policy asks for more or fewer canaries than when they were chosen; a pool that grows or shrinks does not."""
    return stands.canary_percent is not None and canary_count(of, percent) != canary_count(of, stands.canary_percent)


def _complete(view: PoolView, wanted: Mapping[str, Any], *, told: bool, evidence: Evidence | None = None) -> Step:
    part = PolicyPart.model_validate(wanted)
    done = PoolRollout(phase=RolloutPhase.COMPLETE, revision=revision_of(wanted), policy_ref=part.policy_ref, stable=part)
    condition = words.complete(wanted, evidence)
    return Step(rollout=done, condition=condition, announce=(words.event_of(condition),) if told else ())


def _roll_back(view: PoolView, stands: PoolRollout, wanted: Mapping[str, Any], evidence: Evidence) -> Step:
    back = stands.model_copy(update={"phase": RolloutPhase.ROLLED_BACK, **_NOBODY_TRIES})
    condition = words.rolled_back(view, stands, wanted, evidence)
    return Step(rollout=back, condition=condition, announce=(words.event_of(condition),))


def _without_policy(view: PoolView, stands: PoolRollout | None) -> Step:
    """Nobody vouches for the change any more; who runs the pool's old policy goes on with it.

    What was taken back before that counts as withdrawn too: a policy that is made again may have the generation of the old one.
    """
    gone = isinstance(view.policy, NotFound) and stands is not None and stands.phase is RolloutPhase.ROLLED_BACK
    if stands is None or (stands.phase not in GOING_ON and not gone):
        return Step(rollout=stands, condition=_standing(view) if stands is not None else None)
    update = {"phase": RolloutPhase.WITHDRAWN, **_NOBODY_TRIES}
    condition = words.withdrawn(view, stands)
    return Step(rollout=stands.model_copy(update=update), condition=condition, announce=(words.event_of(condition),))


def _paused(view: PoolView, stands: PoolRollout | None, trial: Trial, *, now: datetime, now_s: float) -> Step:
    """The clock stands; what the canaries had of it so far counts when the pool goes on."""
    if stands is None or stands.phase not in GOING_ON:
        return Step(rollout=stands, condition=_standing(view) if stands is not None else None)
    if stands.since is not None and stands.phase in TRYING:
        soaked = min(round(trial.soaked_seconds(stands, now=now, now_s=now_s)), MOST_SOAKED_SECONDS)
        stands = stands.model_copy(update={"since": None, "soaked_seconds": soaked})
    return Step(rollout=stands, condition=words.paused(stands))


# -- looks ------------------------------------------------------------------------------------------------------------------


def _groups(view: PoolView, stands: PoolRollout, trial: Trial, *, now_s: float, percent: int) -> Groups:
    """Canaries and controls among the instances that stay; those that are well and were measured come first."""
    staying = [each for each, instance in view.instances if instance.spec.drain is None]
    known = trial.measured([uid_of(each) for each in staying], now_s=now_s)
    members = [
        Member(name=each["metadata"]["name"], uid=uid_of(each), ready=_is_well(each) and uid_of(each) in known)
        for each in staying
    ]
    return choose(members, percent=percent, revision=stands.revision)


def _is_well(instance: Object) -> bool:
    """Whether its agent answers and nothing is wrong with what decides there."""
    agent = (instance.get("status") or {}).get("agent") or {}
    healthy = find_condition(conditions_of(instance), "PolicyHealthy") or {}
    return bool(agent.get("reachable")) and healthy.get("status") == "True"


def _told(view: PoolView, stands: PoolRollout) -> dict[str, int]:
    """The canaries whose intent says the change by now, and its generation."""
    canaries = {member.uid for member in stands.canaries}
    return {
        uid_of(each): instance.metadata.generation
        for each, instance in view.instances
        if uid_of(each) in canaries and revision_of(each["spec"].get("intent") or _NO_INTENT) == stands.revision
    }


def _standing(view: PoolView) -> Condition | None:
    """The condition as it stands, for phases in which nothing happens."""
    item = find_condition(conditions_of(view.stored), "RolloutProgressing")
    if item is None or item["reason"] == "PausedByUser":
        rollout = view.pool.status.rollout
        return None if rollout is None else words.at_rest(rollout)
    return Condition(item["type"], item["status"], item["reason"], item.get("message", ""))
