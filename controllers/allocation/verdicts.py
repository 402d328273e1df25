"""SplitSettled and PolicyHealthy of an instance, as small rules that each return a condition with a documented reason."""

from __future__ import annotations

from contract.agent import AgentStatus, Enforcement, SplitReport, Strategy
from controllers.allocation.observe import Observation
from controllers.allocation.sightings import Answered, Garbled, Silent
from controllers.lookup import Found, NotFound, Unreadable
from controllers.model_lookup import ModelUnusable
from controllers.runtime.conditions import Condition, Status
from crds import HBMPolicySpec
from crds.instance import PolicySource

MODEL_SECONDS = 30.0
"""How long an agent may lack a model that it is told to run before that counts as trouble."""
PROVING_OFFERS = 3
"""How often in a row an intent must have been offered without an answer before that is said."""
_DATA_REASONS = frozenset(
    {
        "NotANumber",
        "CountersWentBack",
        "LimitsAbovePool",
        "EngineGarbage",
        "MissingData",
        "StaleData",
    }
)


def policy_healthy(seen: Observation) -> Condition:
    """Whether the strategy of the policy decides on this instance; user mistakes first, then what the agent says."""
    return (
        policy_problem(seen.policy, pool_policy=seen.pool.spec.policies.hbm)
        or _trouble_with_the_agent(seen)
        or _trouble_of_the_agent(seen)
        or _healthy(seen)
    )


def policy_problem(policy: Found[HBMPolicySpec] | NotFound | Unreadable, *, pool_policy: str) -> Condition | None:
    """PolicyHealthy=False when the policy that a pool names cannot be used, else None."""
    if isinstance(policy, NotFound):
        return _policy(
            "False",
            "PolicyNotFound",
            f"no HBMPolicy {pool_policy} in namespace {policy.namespace}; create it or correct spec.policies.hbm of the pool",
        )
    if isinstance(policy, Unreadable):
        return _policy("False", "PolicyInvalid", f"HBMPolicy {policy.namespace}/{policy.name} cannot be read: {policy.why}")
    return None


def split_settled(seen: Observation, *, emb_percent: int | None, target_percent: int | None) -> Condition:
    """Whether the split has arrived.

    Parameters
    ----------
    emb_percent, target_percent
        The share in force and the wanted one as they are published, so that the message changes with them only.
    """
    if not isinstance(seen.sighting, Answered) or seen.sighting.status.split is None:
        return _settled("Unknown", "NotObserved", "there is no fresh report of the split; see the condition PolicyHealthy")
    status, split = seen.sighting.status, seen.sighting.status.split
    if split.overage_bytes > 0:
        return _settled(
            "False", "Deferred", f"EMB {emb_percent} points wanted soon; the shrinking side still uses more than its limit"
        )
    if split.refill_backlog_bytes > 0:
        return _settled("False", "Refilling", f"EMB {emb_percent} points in force; the grown cache is being refilled")
    if status.frozen or (seen.stored_intent or {}).get("paused"):
        why = "the agent stands still" if status.frozen else "the pool is paused"
        return _settled("True", "Held", f"EMB {emb_percent} points held; {why}")
    too_large = split.accepted_emb_bytes + split.accepted_kv_bytes > split.usable_bytes  # the pool has been made smaller
    if not split.settled or too_large or _away_from_target(seen, split):
        return _settled("False", "Moving", f"EMB {emb_percent} points in force, {target_percent} wanted")
    return _settled("True", "Settled", f"EMB {emb_percent} points of usable HBM")


def _trouble_with_the_agent(seen: Observation) -> Condition | None:
    url = seen.instance.spec.source.agent_url
    if seen.sighting is None:
        return _policy("Unknown", "Pending", f"the agent at {url} has not answered yet")
    if isinstance(seen.sighting, Silent):
        return _policy("Unknown", "AgentUnreachable", f"the agent at {url} does not answer; it keeps the intent that it has")
    if isinstance(seen.sighting, Garbled):
        return _policy("False", "AgentMisbehaves", f"the agent at {url}: {seen.sighting.why}")
    if seen.holder is not None:
        return _policy(
            "False", "AgentTaken", f"the agent at {url} serves GRInstance {seen.holder}; give each entry its own agent"
        )
    if takes_no_intent(seen):
        why = "it tells its status and does not answer to the intent; look for what lies between it and the operator"
        return _policy("False", "IntentNotAccepted", f"the agent at {url}: {why}")
    if holds_intent(seen, seen.sighting.status):
        return None  # also after a refusal: the answer to the next attempt may have been lost
    if seen.refusal is not None:
        return _policy("False", "IntentNotAccepted", seen.refusal.words)
    return _policy("Unknown", "Pending", f"the agent at {url} has not reported on this intent yet")


def _trouble_of_the_agent(seen: Observation) -> Condition | None:
    assert isinstance(seen.sighting, Answered)
    status, wanted = seen.sighting.status, seen.instance.spec.intent
    words = f"{status.reason}: {status.message}"
    if status.frozen:
        if status.reason == "SecondWriter":
            return _policy("False", "SecondWriter", words)
        return _policy("False", "DataUnusable" if status.reason in _DATA_REASONS else "AgentFrozen", words)
    if wanted is None or wanted.strategy is Strategy.STATIC or wanted.paused:
        return None
    if status.reason == "NotResizable":
        return _policy("False", "SplitNotResizable", words)
    if wanted.strategy is Strategy.LEARNED or status.reason == "ModelMissing":
        return _trouble_of_the_model(seen, status)
    if status.strategy_in_force != wanted.strategy:
        return _policy("False", "FellBack", f"{wanted.strategy} is wanted and {status.strategy_in_force} decides; {words}")
    return None


def _trouble_of_the_model(seen: Observation, status: AgentStatus) -> Condition | None:
    """Why no model decides: it may not run, its bytes are not there yet, or it does not know this load."""
    assert seen.instance.spec.intent is not None, "the caller has looked at its strategy"
    anchor = f"{status.strategy_in_force} decides"
    if seen.instance.spec.intent.model_ref is None and isinstance(seen.model, ModelUnusable):
        return _policy("False", seen.model.reason, f"{seen.model.why}; {anchor}")
    ref = seen.instance.spec.intent.model_ref
    if seen.model_refusal is not None and (ref is None or ref.sha256 not in status.models):
        return _policy("False", "ModelRefused", f"the agent does not take the model: {seen.model_refusal}; {anchor}")
    if _on_their_way(seen, status):
        return _policy("Unknown", "Pending", "the bytes of the model are on their way to the agent")
    if status.reason in ("ModelMissing", "ModelRefused", "OutOfDistribution"):
        return _policy("False", status.reason, f"{status.reason}: {status.message}")
    if status.strategy_in_force != Strategy.LEARNED:
        return _policy("False", "ModelMissing", f"strategy Learned runs no model; {anchor}")
    return None


def _on_their_way(seen: Observation, status: AgentStatus) -> bool:
    """Whether the agent has yet to be handed the model that it is told to run, or to look again with it."""
    intent = seen.instance.spec.intent
    if intent is None or intent.model_ref is None:
        return False
    if intent.model_ref.sha256 in status.models:
        return status.reason == "ModelMissing"  # the word of the round before
    return seen.model_wait_s < MODEL_SECONDS


def _healthy(seen: Observation) -> Condition:
    wanted = seen.instance.spec.intent
    assert wanted is not None, "an agent that holds the intent of an instance proves that there is one"
    if wanted.paused:
        return _policy("True", "PausedByUser", "the split is held; set spec.paused of the pool to false to continue")
    if wanted.policy_ref.source is PolicySource.DEFAULTS:
        return _policy("True", "DefaultsInUse", "there is no HBMPolicy named default; the built-in defaults hold")
    if wanted.enforcement is Enforcement.SHADOW:
        return _policy(
            "True", "ShadowOnly", f"{wanted.strategy} decides and nothing is applied; set enforcement to Active to apply"
        )
    return _policy(
        "True", "StrategyActive", f"{wanted.strategy} of HBMPolicy {wanted.policy_ref.namespace}/{wanted.policy_ref.name}"
    )


def proving_failures(seen: Observation) -> int:
    """How many calls in a row an agent must miss to count as unreachable: two, or four while it has never answered."""
    return 2 if seen.instance.status.agent is not None else 4


def takes_no_intent(seen: Observation) -> bool:
    """Whether the agent is heard and has left the present intent without an answer again and again: it follows an older one."""
    if isinstance(seen.sighting, Answered) and holds_intent(seen, seen.sighting.status):
        return False  # the answer was lost, the intent was not
    return seen.unanswered >= PROVING_OFFERS


def holds_intent(seen: Observation, status: AgentStatus) -> bool:
    """Whether the agent holds the intent of this instance in its present generation."""
    return status.uid == seen.instance.metadata.uid and status.generation == seen.instance.metadata.generation


def _away_from_target(seen: Observation, split: SplitReport) -> bool:
    intent = seen.instance.spec.intent
    deadband = intent.step.deadband_percent if intent is not None else 0
    return abs(split.target_emb_bytes - split.accepted_emb_bytes) * 100 > max(1, deadband) * split.usable_bytes


def _policy(status: Status, reason: str, message: str) -> Condition:
    return Condition("PolicyHealthy", status, reason, message)


def _settled(status: Status, reason: str, message: str) -> Condition:
    return Condition("SplitSettled", status, reason, message)
