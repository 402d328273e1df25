"""The closed list of condition types and of their reasons, each with what it means and what to do about it.

Controllers set no reason that is not here (a test holds them to it), and the API reference prints the list, so that whoever reads
a reason in ``kubectl get`` finds the remedy. A type has one field manager; reasons of a type belong to that type only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class ConditionType(StrEnum):
    """Condition types of all kinds."""

    READY = "Ready"
    INSTANCES_READY = "InstancesReady"
    PAUSED = "Paused"
    POLICY_HEALTHY = "PolicyHealthy"
    SPLIT_SETTLED = "SplitSettled"
    TABLE_PUBLISHED = "TablePublished"
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


_NOTHING = "Nothing to do."
_T, _F, _U = ("True",), ("False",), ("Unknown",)

CONDITIONS: tuple[ConditionSpec, ...] = (
    ConditionSpec(
        ConditionType.READY,
        ("GRServingPool", "GRInstance"),
        FieldManager.POOL,
        "The pool serves as wanted; of an instance: engine and agent are ready to serve.",
        (
            Reason("AllInstancesReady", _T, "Every instance of the pool is ready.", _NOTHING),
            Reason("InstanceReady", _T, "Engine and agent of the instance are ready.", _NOTHING),
            Reason(
                "SomeInstancesNotReady",
                _F,
                "Some instances of the pool are not ready; the others serve.",
                "List them with `kubectl get gri` and follow the reason of each.",
            ),
            Reason(
                "NoInstanceReady",
                _F,
                "The pool has instances and none of them is ready.",
                "List them with `kubectl get gri` and follow the reason of each; look at the addresses in the pool first.",
            ),
            Reason(
                "NoInstances",
                _F,
                "The pool has no instance.",
                "Raise spec.replicas, or correct instances.adopted.matchLabels or the list instances.external.",
            ),
            Reason(
                "AgentUnreachable",
                _F,
                "The agent of the instance does not answer; the engine keeps serving on its last split.",
                "Check that the agent runs and that the operator can reach source.agentURL.",
            ),
            Reason(
                "EngineUnreachable",
                _F,
                "The agent answers and its engine does not.",
                "Check the engine process and the agent's option --engine.",
            ),
            Reason(
                "EngineNotReady",
                _F,
                "The engine answers that it is not ready; the message carries its reasons.",
                "Wait while it loads its model; else look at its log.",
            ),
            Reason(
                "InvalidAnswer",
                _F,
                "Agent or engine answered something that breaks the contract; it was not used.",
                "Compare the versions of operator, agent and engine; run the conformance suite against the engine.",
            ),
            Reason(
                "ModelMismatch",
                _F,
                "The engine serves another model or version than the pool names.",
                "Roll the engine to spec.model.version, or correct spec.model.",
            ),
            Reason(
                "PolicyUnusable",
                _F,
                "The pool names a policy that does not exist or cannot be read; what was in force stays.",
                "Follow the conditions PolicyHealthy and TablePublished; create the policy or correct spec.policies.",
            ),
            Reason(
                "NoRoutingTable",
                _F,
                "The instances are ready and no routing table has been published yet.",
                "Wait a few seconds; else follow the condition TablePublished.",
            ),
            Reason(
                "UnsupportedSource",
                _F,
                "This release does not run instances of that source.",
                "Use instances.external, or upgrade grfleet.",
            ),
            Reason("Draining", _F, "The instance leaves and finishes its requests.", _NOTHING),
            Reason("Pending", _U, "Nothing has been observed yet.", "Wait a few seconds; then look at the operator's log."),
            Reason(
                "InvalidSpec",
                _F,
                "The operator cannot read the object, for example because it was written for a newer version.",
                "Correct the field that the message names, or upgrade the operator.",
            ),
            Reason(
                "Terminating",
                _F,
                "The object is being deleted.",
                "Nothing to do; deletion ends within a bound and waits for nobody.",
            ),
        ),
    ),
    ConditionSpec(
        ConditionType.INSTANCES_READY,
        ("GRServingPool",),
        FieldManager.POOL,
        "The instances that spec.instances asks for exist and are ready.",
        (
            Reason("AllReady", _T, "Every wanted instance exists and is ready.", _NOTHING),
            Reason("Progressing", _F, "Instances are being created, started or drained.", "Wait; the message has the counts."),
            Reason(
                "SomeNotReady",
                _F,
                "Some instances exist and are not ready.",
                "List them with `kubectl get gri` and follow the reason of each.",
            ),
            Reason(
                "NoneFound",
                _F,
                "No pod carries the labels, or the list is empty, or replicas is 0.",
                "Correct instances.adopted.matchLabels, or raise spec.replicas.",
            ),
            Reason(
                "NameTaken",
                _F,
                "An instance of another pool already has the name.",
                "Give the entry of instances.external another name.",
            ),
            Reason(
                "NameTooLong",
                _F,
                "The name of an instance, pool and entry joined by a dash, is longer than Kubernetes allows.",
                "Create the pool under a shorter name, or shorten the name of the entry.",
            ),
            Reason(
                "UnsupportedSource",
                _F,
                "This release does not run instances of that source; nothing was created.",
                "Use instances.external, or upgrade grfleet.",
            ),
            Reason(
                "DeploymentRefused",
                _F,
                "The API server refused the Deployment made from instances.managed.template.",
                "Correct the field of the template that the message names.",
            ),
            Reason(
                "QuotaExceeded",
                _F,
                "Pods cannot be created because a quota is used up.",
                "Raise the quota or lower spec.replicas.",
            ),
        ),
    ),
    ConditionSpec(
        ConditionType.PAUSED,
        ("GRServingPool",),
        FieldManager.POOL,
        "The pool is held as it is.",
        (
            Reason(
                "PausedByUser",
                _T,
                "spec.paused is set: no split moves, no scaling, no table change; serving and status go on.",
                "Set spec.paused to false to continue.",
            ),
            Reason("NotPaused", _F, "The loops work.", _NOTHING),
        ),
    ),
    ConditionSpec(
        ConditionType.POLICY_HEALTHY,
        ("GRServingPool", "GRInstance"),
        FieldManager.ALLOCATION,
        "The wanted strategy decides; when it does not, the split is held or a safer strategy decides.",
        (
            Reason("StrategyActive", _T, "The strategy of the policy decides and its decisions are applied.", _NOTHING),
            Reason(
                "DefaultsInUse",
                _T,
                "No policy of that name exists, and the name is default: the built-in defaults hold.",
                "Nothing, or create an HBMPolicy named default to choose your own.",
            ),
            Reason(
                "ShadowOnly",
                _T,
                "The strategy computes and reports; the split stays with the anchor or as it is.",
                "Compare its decisions with `grfleet decisions`, then set enforcement to Active.",
            ),
            Reason(
                "PolicyNotFound",
                _F,
                "The policy that the pool names does not exist; intents stay as they were.",
                "Create the policy or correct spec.policies.",
            ),
            Reason(
                "PolicyInvalid",
                _F,
                "The operator cannot read the policy; intents stay as they were.",
                "Correct the field that the message names.",
            ),
            Reason(
                "ModelMissing",
                _F,
                "Strategy Learned has no allocator model it may run; the anchor MissRatioCurve decides.",
                "Create the AllocatorModel that learned.model names, and look at its condition Verified.",
            ),
            Reason(
                "ModelRefused",
                _F,
                "The allocator model does not match its digest or feature layout; the anchor decides.",
                "Look at the condition Verified of the AllocatorModel.",
            ),
            Reason(
                "OutOfDistribution",
                _F,
                "The load lies outside what the model was trained for; the anchor decides until it is back.",
                "Nothing at once; train a model on this load when it lasts.",
            ),
            Reason(
                "RolledBack",
                _F,
                "The canaries' P99 regressed and the change was taken back.",
                "Look at the decisions of the canaries; change the policy to try again.",
            ),
            Reason(
                "SplitNotResizable",
                _F,
                "The engine cannot change its split while it serves.",
                "Use strategy Static, or an engine that describes emb and kv as resizable.",
            ),
            Reason(
                "IntentNotAccepted",
                _F,
                "The agent refused the intent (forged, expired or unreadable); it keeps the one before.",
                "Check that the agent has the public key of this operator, the clocks of both, and their versions.",
            ),
            Reason(
                "SecondWriter",
                _F,
                "Somebody else changes the split of this engine; the agent stands still.",
                "Stop the other writer; one agent per engine.",
            ),
            Reason(
                "DataUnusable",
                _F,
                "The measurements are missing, stale or contradict themselves; the split is held.",
                "Check the engine's counters with the agent's /status; the message names the first bad one.",
            ),
            Reason(
                "AgentMisbehaves",
                _F,
                "The agent answered something that breaks the contract or contradicts the pool; the last good status stays.",
                "Compare the versions of operator and agent; the message names the first bad field.",
            ),
            Reason(
                "AgentTaken",
                _F,
                "The agent already serves another instance, so no intent was sent to it.",
                "Give each entry an agent of its own, or delete the other instance.",
            ),
            Reason(
                "AgentFrozen",
                _F,
                "The agent stands still for a reason of its own, which the message names.",
                "Look at the agent's log and `grfleet decisions`.",
            ),
            Reason(
                "FellBack",
                _F,
                "Another strategy than the wanted one decides; the message says why.",
                "Look at `grfleet decisions` for the instance.",
            ),
            Reason(
                "PausedByUser",
                _T,
                "spec.paused of the pool is set; the split is held.",
                "Set spec.paused to false to continue.",
            ),
            Reason(
                "AgentUnreachable",
                _U,
                "The agent does not answer, so nothing is known; it goes on with the intent it has.",
                "Check that the agent runs and that the operator can reach source.agentURL.",
            ),
            Reason("Pending", _U, "The agent has not reported on this intent yet.", "Wait a few seconds."),
        ),
    ),
    ConditionSpec(
        ConditionType.SPLIT_SETTLED,
        ("GRServingPool", "GRInstance"),
        FieldManager.ALLOCATION,
        "The split has arrived where the strategy wants it: accepted by the engine, used within it, nothing left to refill.",
        (
            Reason("Settled", _T, "Target, limits in force and use agree.", _NOTHING),
            Reason("Held", _T, "The split is held where it is (paused, frozen or Static) and nothing is on its way.", _NOTHING),
            Reason("Moving", _F, "The split moves towards its target within the step limit.", _NOTHING),
            Reason(
                "Deferred",
                _F,
                "The engine still uses more than the shrinking side's new limit; nothing grows until it is free.",
                "Nothing; if it lasts, look for long requests that pin memory.",
            ),
            Reason("Refilling", _F, "The limits are in force and the grown cache is being refilled under its cap.", _NOTHING),
            Reason(
                "SomeMoving",
                _F,
                "Some instances of the pool are not settled.",
                "Nothing; the message has the counts.",
            ),
            Reason(
                "Conflict",
                _F,
                "The engine answered that another revision is in force; the agent adopted it.",
                "Nothing if it happens once after a restart; see SecondWriter if it repeats.",
            ),
            Reason(
                "NotObserved",
                _U,
                "There is no fresh report of the split.",
                "See the condition Ready of the instance.",
            ),
        ),
    ),
    ConditionSpec(
        ConditionType.TABLE_PUBLISHED,
        ("GRServingPool", "GRRoutingTable"),
        FieldManager.ROUTING,
        "The routing table matches the instances.",
        (
            Reason("Published", _T, "The table matches the instances.", _NOTHING),
            Reason(
                "BudgetExhausted",
                _F,
                "More users have to move than the churn budget allows in this window; the rest follows in the next.",
                "Nothing, or raise churn.maxMovedPercent.",
            ),
            Reason("Warming", _F, "New instances have not reached their full share yet.", _NOTHING),
            Reason("Draining", _F, "Leaving instances have left the table and finish their requests.", _NOTHING),
            Reason(
                "NoInstances",
                _F,
                "There is no instance to route to; the last table stays.",
                "See the condition InstancesReady of the pool.",
            ),
            Reason("PausedByUser", _F, "spec.paused of the pool is set; the last table stays.", "Set spec.paused to false."),
            Reason(
                "PolicyNotFound",
                _F,
                "The RoutingPolicy that the pool names does not exist; the last table stays.",
                "Create the policy or correct spec.policies.routing.",
            ),
            Reason(
                "PolicyInvalid",
                _F,
                "The operator cannot read the RoutingPolicy; the last table stays.",
                "Correct the field that the message names.",
            ),
            Reason(
                "KeySecretMissing",
                _F,
                "The Secret or the key that userKeySecret names does not exist or is too short.",
                "Create the Secret next to the RoutingPolicy, with a value of at least 16 bytes.",
            ),
            Reason(
                "ViewInDoubt",
                _F,
                "Most instances became unreachable at once, which looks like the operator's own network; the last table stays.",
                "Check the network between operator and agents; the table follows when fewer than half are unreachable.",
            ),
            Reason(
                "Pending",
                _U,
                "No instance has been observed yet.",
                "Wait a few seconds; then see the condition InstancesReady of the pool.",
            ),
            Reason(
                "TableTooLarge",
                _F,
                "The pool has more instances than a table can hold.",
                "Split the pool; a table holds 1024 instances.",
            ),
        ),
    ),
    ConditionSpec(
        ConditionType.PRE_INFERENCE_SCALED,
        ("GRServingPool",),
        FieldManager.PRE_INFERENCE,
        "Pre-inference capacity is where its targets want it.",
        (
            Reason("AtTarget", _T, "Capacity is within the tolerance of its targets.", _NOTHING),
            Reason("ScalingUp", _F, "Capacity grows.", _NOTHING),
            Reason("ScalingDown", _F, "Capacity shrinks.", _NOTHING),
            Reason("Stabilizing", _T, "A stabilisation window holds the present capacity.", _NOTHING),
            Reason(
                "LimitReached",
                _F,
                "More capacity is wanted than maxReplicas and slotsPerInstance.max allow.",
                "Raise scaling.maxReplicas or slotsPerInstance.max.",
            ),
            Reason(
                "HoldingStale",
                _U,
                "Measurements are stale; capacity is held.",
                "See the condition MetricsFresh.",
            ),
            Reason("NotManaged", _T, "Another writer owns spec.replicas; only slots are set.", _NOTHING),
            Reason(
                "PolicyNotFound",
                _F,
                "The PreInferencePolicy that the pool names does not exist; capacity is held.",
                "Create the policy or correct spec.policies.preInference.",
            ),
            Reason("PausedByUser", _F, "spec.paused of the pool is set; capacity is held.", "Set spec.paused to false."),
        ),
    ),
    ConditionSpec(
        ConditionType.METRICS_FRESH,
        ("GRServingPool",),
        FieldManager.PRE_INFERENCE,
        "The measurements that scaling needs are fresh.",
        (
            Reason("Fresh", _T, "All measurements are fresh.", _NOTHING),
            Reason(
                "Stale",
                _F,
                "The newest measurements are too old; what they drive is held.",
                "Check the scrape of the agents and the clock of the source.",
            ),
            Reason(
                "Missing",
                _F,
                "There are no measurements; what they drive is held.",
                "Check that the source scrapes the agents; docs/metrics.md lists the names.",
            ),
            Reason(
                "SourceUnreachable",
                _F,
                "The source of the metrics does not answer; what they drive is held.",
                "Check the address and the network policy between operator and source.",
            ),
            Reason(
                "NotANumber",
                _F,
                "A measurement is not a number; what it drives is held.",
                "Look at the query in docs/metrics.md; a rate over no traffic divides by zero.",
            ),
        ),
    ),
    ConditionSpec(
        ConditionType.VERIFIED,
        ("AllocatorModel",),
        FieldManager.MODELS,
        "The bytes are there, match the digest, and have a feature layout that this version can run.",
        (
            Reason("DigestMatches", _T, "The bytes match the digest and the layout is known.", _NOTHING),
            Reason(
                "ConfigMapMissing",
                _F,
                "The ConfigMap or its key does not exist.",
                "Create it next to the AllocatorModel, with the bytes in binaryData.",
            ),
            Reason("DigestMismatch", _F, "The bytes have another digest.", "Restore the bytes, or create a new AllocatorModel."),
            Reason(
                "UnknownFeatures",
                _F,
                "This version of grfleet does not know the feature layout.",
                "Upgrade grfleet, or train for a known layout.",
            ),
            Reason("Corrupt", _F, "The bytes are not a model: arrays are missing or not finite.", "Train or export it again."),
        ),
    ),
    ConditionSpec(
        ConditionType.IN_USE,
        ("AllocatorModel",),
        FieldManager.MODELS,
        "The intent of at least one instance names the model.",
        (
            Reason("NamedByIntents", _T, "Instances run the model, or watch it in shadow.", _NOTHING),
            Reason("NotNamed", _F, "No instance runs the model.", "Nothing; it may be deleted."),
        ),
    ),
)


def reasons_of(type_: str) -> Iterator[Reason]:
    """The reasons of a condition type; empty for an unknown type."""
    for condition in CONDITIONS:
        if condition.type == type_:
            yield from condition.reasons


def find_reason(type_: str, name: str) -> Reason:
    """The documented reason of that name.

    Raises
    ------
    KeyError
        When the type has no such reason: add it here before a controller sets it.
    """
    for reason in reasons_of(type_):
        if reason.name == name:
            return reason
    raise KeyError(f"{type_} has no reason {name}; the closed list is crds/reasons.py")


def check_condition(type_: str, status: str, name: str) -> None:
    """Refuse a condition that the reference does not document.

    Raises
    ------
    KeyError
        When the type has no such reason.
    ValueError
        When the reason does not go with the status.
    """
    reason = find_reason(type_, name)
    if status not in reason.status:
        raise ValueError(f"{type_}={status} does not go with reason {name}, which means {' or '.join(reason.status)}")
