"""Reasons of the conditions about serving: instances, readiness, pause, and the routing table."""

from __future__ import annotations

from crds.reason_types import ConditionSpec, ConditionType, FieldManager, Reason

_NOTHING = "Nothing to do."
_T, _F, _U = ("True",), ("False",), ("Unknown",)

SERVING: tuple[ConditionSpec, ...] = (
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
                "InvalidAnswer",
                _F,
                "Agent or engine answered something that breaks the contract; it was not used.",
                "Compare the versions of operator, agent and engine; run the conformance suite against the engine.",
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
                "WorkloadHeld",
                _F,
                "The pods that run, if any, are not those that the pool asks for: its template cannot be used or was refused.",
                "Follow the condition InstancesReady.",
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
                "An instance of another pool, or a Deployment of somebody else, already has the name.",
                "Give the entry of instances.external, or the pool, another name.",
            ),
            Reason(
                "NameTooLong",
                _F,
                "The name of an instance, pool and entry joined by a dash, is longer than Kubernetes allows.",
                "Create the pool under a shorter name, or shorten the name of the entry.",
            ),
            Reason(
                "AgentImageUnset",
                _F,
                "The operator was not told which image the agent beside the engines has; nothing was written.",
                "Set the operator's --agent-image (agent.image in the chart).",
            ),
            Reason(
                "LabelsOverlap",
                _F,
                "Pods carry the labels of this adopted pool and belong, or would belong, to another pool as well.",
                "Make instances.adopted.matchLabels of one of them narrower; "
                "a managed pool, else the pool that was first, has the pods.",
            ),
            Reason(
                "TemplateInvalid",
                _F,
                "instances.managed.template lacks what grfleet needs, or uses a name that it adds itself; nothing was written.",
                "Correct the field that the message names.",
            ),
            Reason(
                "SidecarMissing",
                _F,
                "Pods carry the labels and have no agent beside the engine: no container port named grfleet-agent.",
                "Add the agent as a sidecar, as docs/pools.md shows, and restart the pods.",
            ),
            Reason(
                "PortMissing",
                _F,
                "Pods carry the labels and no container names its serving port gr.",
                "Name the engine's container port gr and restart the pods.",
            ),
            Reason(
                "PodsFailing",
                _F,
                "Pods cannot start: an image cannot be pulled, a container crashes, or none can be scheduled.",
                "The message names a pod and its reason; see `kubectl describe pod`.",
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
        ConditionType.DRAINED,
        ("GRInstance",),
        FieldManager.ALLOCATION,
        "The leaving instance has finished its requests; there only while spec.drain is set.",
        (
            Reason("NothingInFlight", _T, "The engine was told to drain and has no request left.", _NOTHING),
            Reason("Finishing", _F, "Requests are still in flight, or callers have yet to follow the table.", _NOTHING),
            Reason(
                "NotObserved",
                _U,
                "There is no fresh report of the requests in flight; only the deadline ends the drain.",
                "See the condition Ready of the instance.",
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
                "NameTaken",
                _F,
                "A GRRoutingTable of the pool's name belongs to somebody else.",
                "Delete that GRRoutingTable; grfleet makes its own.",
            ),
            Reason(
                "PoolDeleted",
                _F,
                "The pool of this table was deleted; the table has no instances, so that gateways send nothing to them.",
                "Nothing: grfleet deletes it after a week, and a new pool of this name takes it over.",
            ),
            Reason(
                "TableTooLarge",
                _F,
                "The pool has more instances than a table can hold.",
                "Split the pool; a table holds 2048 instances, those of a rolling update included.",
            ),
        ),
    ),
    ConditionSpec(
        ConditionType.CHURN_LIMITED,
        ("GRServingPool", "GRRoutingTable"),
        FieldManager.ROUTING,
        "The churn budget keeps users where they are that should move.",
        (
            Reason(
                "MovesDeferred",
                _T,
                "New or warmer instances get their users over several windows; those of lost instances moved at once and count.",
                "Nothing, or raise churn.maxMovedPercent.",
            ),
            Reason("WithinBudget", _F, "Nobody waits for the budget.", _NOTHING),
            Reason("TableHeld", _U, "The table stays as it is.", "See the condition TablePublished."),
        ),
    ),
)
