"""Reasons of the conditions about policies: the split, pre-inference capacity, measurements, and allocator models."""

from __future__ import annotations

from crds.reason_types import ConditionSpec, ConditionType, FieldManager, Reason

_NOTHING = "Nothing to do."
_T, _F, _U = ("True",), ("False",), ("Unknown",)

POLICY: tuple[ConditionSpec, ...] = (
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
                "The agent refused the intent (forged, expired or unreadable) or leaves it without an answer, or it cannot be "
                "signed; the one before holds.",
                "Check that the agent has the public key of this operator, the clocks of both, their versions; or the Secret.",
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
        ConditionType.PRE_INFERENCE_SCALED,
        ("GRServingPool",),
        FieldManager.PRE_INFERENCE,
        "Pre-inference capacity is where its targets want it.",
        (
            Reason("AtTarget", _T, "Capacity is within the tolerance of its targets.", _NOTHING),
            Reason("ScalingUp", _F, "Capacity grows.", _NOTHING),
            Reason("ScalingDown", _F, "Capacity shrinks.", _NOTHING),
            Reason("Stabilizing", _T, "A stabilisation window or a rate policy holds the present capacity.", _NOTHING),
            Reason(
                "LimitReached",
                _F,
                "More capacity is wanted than a limit allows; the message names the limit.",
                "Raise the field that the message names, or nothing where it says that more slots would not help.",
            ),
            Reason(
                "HoldingStale",
                _U,
                "Measurements are stale, missing or not numbers; capacity is held.",
                "See the condition MetricsFresh.",
            ),
            Reason("NotManaged", _T, "Another writer owns spec.replicas; only slots are set, and they are right.", _NOTHING),
            Reason(
                "NotEnforced",
                _F,
                "Engines have not taken the slots and bytes that they were given a minute ago or longer.",
                "Compare spec.preInfer and status.preInfer of the instance that the message names; its status.message says why.",
            ),
            Reason(
                "NoInstances",
                _U,
                "There is no instance whose capacity could be set: replicas is 0, none has come yet, or all of them leave.",
                "See the condition InstancesReady.",
            ),
            Reason(
                "ScalingDisabled",
                _F,
                "spec.replicas is 0, which switches the scaler off, as with a HorizontalPodAutoscaler.",
                "Set spec.replicas to at least 1.",
            ),
            Reason(
                "PolicyNotFound",
                _F,
                "The PreInferencePolicy that the pool names does not exist; capacity is held.",
                "Create the policy or correct spec.policies.preInference.",
            ),
            Reason(
                "PolicyInvalid",
                _F,
                "The operator cannot read the PreInferencePolicy; capacity is held.",
                "Correct the field that the message names.",
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
                "Check the scrape of the engines (where no Prometheus is asked: the agents) and the clock of the source.",
            ),
            Reason(
                "Missing",
                _F,
                "There are no measurements; what they drive is held.",
                "Check that Prometheus scrapes the engines (or, without it, that agents answer); docs/metrics.md has the names.",
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
            Reason("NoInstances", _U, "There is no instance to measure.", "See the condition InstancesReady."),
        ),
    ),
    ConditionSpec(
        ConditionType.VERIFIED,
        ("AllocatorModel",),
        FieldManager.MODELS,
        "The bytes are there, match the digest, and are a model that this version can run; else no intent names it.",
        (
            Reason("Verified", _T, "The bytes match the digest and are a model that this version can run.", _NOTHING),
            Reason(
                "ConfigMapMissing",
                _F,
                "The ConfigMap does not exist.",
                "Create it next to the AllocatorModel: `grfleet model push FILE` makes both.",
            ),
            Reason(
                "KeyMissing",
                _F,
                "The ConfigMap has no such key in its binaryData.",
                "Put the bytes there, or correct spec.configMapKeyRef.key.",
            ),
            Reason(
                "DigestMismatch",
                _F,
                "The bytes have another digest: damaged, or replaced under the same name.",
                "Restore the bytes, or push the new ones under a new name.",
            ),
            Reason("TooLarge", _F, "There are more bytes than a model may have.", "Check that the file is a model of grfleet."),
            Reason("NotAModel", _F, "The bytes are not a model file of grfleet.", "Train or export it again."),
            Reason(
                "UnknownFormat",
                _F,
                "This version of grfleet does not know the format of the file.",
                "Upgrade grfleet, or export the model with this version.",
            ),
            Reason(
                "UnknownFeatures",
                _F,
                "This version of grfleet does not know the feature layout of the file.",
                "Upgrade grfleet, or train for a known layout.",
            ),
            Reason(
                "OtherFeatures",
                _F,
                "The file has another feature layout than spec.featureSpec says.",
                "Create a new AllocatorModel with the layout that the message names.",
            ),
            Reason("WrongShape", _F, "An array of the network is missing, too much, or of another shape.", "Export it again."),
            Reason("WrongType", _F, "An array of the network is not float32.", "Export it again."),
            Reason("NotANumber", _F, "The network holds a value that is not a number it may hold.", "Train it again."),
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
