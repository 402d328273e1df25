"""What must be true of pools of pods when faults have stopped, and what must have been true all the time.

Deployment, scale, gates, instances, drains, table, intents and capacity are compared with what the pools ask for and with each
other, as a user, a ReplicaSet and an agent see them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fault_oracle import conditions, done, is_work, key_path, violations_anywhere

if TYPE_CHECKING:
    from fault_pods import PodsWorld

MANAGED = "pool"
GATE = "grfleet.dev/warm"
MANAGER = "grfleet-pool"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
POOL_CONDITIONS = (
    "Ready",
    "InstancesReady",
    "PolicyHealthy",
    "SplitSettled",
    "TablePublished",
    "MetricsFresh",
    "PreInferenceScaled",
)
INSTANCE_CONDITIONS = ("Ready", "PolicyHealthy", "SplitSettled")
Object = dict[str, Any]


def differences(world: PodsWorld) -> list[str]:
    """What is not yet as it should be; empty once the fleet has converged."""
    there = world.pods.pods()
    pods = {pool: live_pods(there, pool) for pool in world.pools}
    found = [*_of_workload(world), *_of_pods(there)]
    for pool in world.pools:
        found += [*_of_pool(world, pool, pods[pool]), *_of_table(world, pool, pods[pool])]
    wanted = {name: pool for pool, names in pods.items() for name in names}
    instances = {item["metadata"]["name"]: item for item in world.list("grinstances")}
    if set(instances) != set(wanted):
        found.append(f"instances {sorted(instances)} instead of {sorted(wanted)}")
    by_name = {pod["metadata"]["name"]: pod for pod in there}
    for name in sorted(set(instances) & set(wanted)):
        found += [f"{name}: {what}" for what in _of_instance(world, instances[name], wanted[name], by_name[name])]
    if world.pools and not world.api.get(key_path(world)).is_success:
        found.append("the public key of the intents is not there for agents to read")
    return found


def violations(world: PodsWorld) -> list[str]:
    """What should never have happened."""
    return [*violations_anywhere(world), *_instances_made(world), *_replicas_written(world)]


# -- the end state ------------------------------------------------------------------------------------------------


def _of_workload(world: PodsWorld) -> Iterator[str]:
    """The Deployment, its size, and who owns that."""
    deployment = world.deployment()
    if MANAGED not in world.pools:
        if deployment:
            yield "the Deployment is still there"
        return
    if not deployment:
        yield "no Deployment"
        return
    spec, status, replicas = deployment["spec"], deployment.get("status", {}), world.replicas
    version = spec["template"]["metadata"]["labels"].get("grfleet.dev/model-version")
    if (spec["replicas"], version) != (replicas, str(world.version)):
        yield f"Deployment: {spec['replicas']} of version {version} instead of {replicas} of {world.version}"
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
    if counts != [replicas] * 3:
        yield f"Deployment: pods, updated and ready {counts} instead of {replicas}"
    yield from (f"Deployment: {who}" for who in _owners_of_replicas(deployment))
    budget = world.api.get(f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets/{MANAGED}")
    if not budget.is_success:
        yield "no PodDisruptionBudget"


def _owners_of_replicas(deployment: Object) -> Iterator[str]:
    owners = [
        (entry["manager"], entry.get("subresource"))
        for entry in deployment["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    ]
    if owners != [(MANAGER, "scale")]:
        yield f"spec.replicas belongs to {owners}"


def live_pods(pods: list[Object], pool: str) -> list[str]:
    """Names of the pods of a pool that nobody has deleted."""
    key, value = ("grfleet.dev/pool", MANAGED) if pool == MANAGED else ("app", "engine")
    return sorted(
        pod["metadata"]["name"]
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get(key) == value and not pod["metadata"].get("deletionTimestamp")
    )


def _of_pods(pods: list[Object]) -> Iterator[str]:
    for pod in pods:
        name, metadata = pod["metadata"]["name"], pod["metadata"]
        if metadata.get("deletionTimestamp"):
            yield f"{name} is still ending"
        if DELETION_COST in (metadata.get("annotations") or {}):
            yield f"{name} still has a deletion cost"
        opened = {item["type"] for item in pod["status"].get("conditions") or () if item["status"] == "True"}
        if pod["spec"].get("readinessGates") and GATE not in opened:
            yield f"the gate of {name} is closed"


def _of_pool(world: PodsWorld, name: str, pods: list[str]) -> Iterator[str]:
    pool = world.get("grservingpools", name)
    if not pool:
        yield f"no pool {name}"
        return
    yield from conditions(name, pool, POOL_CONDITIONS)
    if name == MANAGED and len(pods) != world.replicas:
        yield f"pods {pods} instead of {world.replicas}"
    status = pool.get("status", {})
    counts = status.get("instances", {})
    expected = {"total": len(pods), "ready": len(pods), "settled": len(pods), "unreachable": 0, "draining": 0}
    if wrong := {key: counts.get(key) for key, value in expected.items() if counts.get(key) != value}:
        yield f"{name}: status.instances {wrong} of {len(pods)}"
    slots = status.get("preInference", {}).get("slots")
    standing = [item["spec"].get("preInfer", {}).get("slots", 0) for item in _instances(world, name)]
    if slots != sum(standing) or len(set(standing)) > 1 or not all(standing):
        yield f"{name}: {slots} slots published, {standing} in the instances"


def _of_table(world: PodsWorld, pool: str, pods: list[str]) -> Iterator[str]:
    status = world.get("grroutingtables", pool).get("status") or {}
    rows = {row["name"]: (row["uid"], row["address"], row["weightPercent"]) for row in status.get("instances") or ()}
    wanted = {
        item["metadata"]["name"]: (item["metadata"]["uid"], item["spec"]["source"]["serviceURL"], 100)
        for item in _instances(world, pool)
    }
    if rows != wanted or sorted(rows) != pods:
        yield f"table {pool}: {rows} instead of {wanted}"
    if status.get("generation") != world.get("grservingpools", pool).get("status", {}).get("tableGeneration"):
        yield f"table {pool}: generation {status.get('generation')} is not the one that the pool names"


def _of_instance(world: PodsWorld, item: Object, pool: str, pod: Object) -> Iterator[str]:
    metadata, spec = item["metadata"], item["spec"]
    name, intent = metadata["name"], spec.get("intent") or {}
    address = pod["status"].get("podIP")
    source = {"kind": "Pod", "podName": name, "podUID": pod["metadata"]["uid"]}
    source |= {"serviceURL": f"http://{address}:8000", "agentURL": f"http://{address}:9001"}
    if pool == MANAGED:
        source["modelVersion"] = str(world.version)
    if spec["source"] != source:
        yield f"source {spec['source']} instead of {source}"
    if spec["poolRef"] != pool:
        yield f"belongs to {spec['poolRef']} instead of {pool}"
    if spec.get("drain"):
        yield f"drains: {spec['drain']}"
    if intent.get("bounds", {}).get("fallbackEmbPercent") != world.fallback_percent:
        yield f"intent {intent}"
    agent = world.pods.agents.get(name)
    if agent is None or agent.holds != (metadata["uid"], metadata["generation"]):
        yield f"its agent holds {agent and agent.holds} instead of {(metadata['uid'], metadata['generation'])}"
    elif agent.book.current is not None:
        yield from _of_capacity(spec, agent.book.current.spec)
    yield from conditions("it", item, INSTANCE_CONDITIONS)
    if any(each["type"] == "Drained" for each in (item.get("status") or {}).get("conditions") or ()):
        yield "still speaks of a drain"


def _of_capacity(spec: Object, told: Any) -> Iterator[str]:
    capacity = (told.pre_infer.slots, told.pre_infer.bytes) if told.pre_infer is not None else None
    wanted = (spec["preInfer"]["slots"], spec["preInfer"]["bytes"]) if spec.get("preInfer") else None
    if capacity != wanted or told.draining:
        yield f"its agent was told capacity {capacity} instead of {wanted}, draining {told.draining}"


def _instances(world: PodsWorld, pool: str) -> list[Object]:
    return [item for item in world.list("grinstances") if item["spec"]["poolRef"] == pool]


# -- all the time -------------------------------------------------------------------------------------------------


def _instances_made(world: PodsWorld) -> Iterator[str]:
    """One pod is one instance at most, and pods are nobody's but their ReplicaSet's."""
    made = Counter(
        each.object()["spec"]["source"].get("podUID")
        for each in done(world)
        if "/grinstances/" in each.path and each.status == 201
    )
    for uid, times in made.items():
        if times > 1 + world.lost_instances.get(world.pods.made.get(uid, ""), 0):
            yield f"pod {world.pods.made.get(uid, uid)} became {times} instances"
    for each in world.writes():
        if "/pods/" in each.path and each.method in ("DELETE", "POST"):
            yield f"an operator did {each.method} {each.path}"


def _replicas_written(world: PodsWorld) -> Iterator[str]:
    """Nobody but the pool loop writes the size of the Deployment, by its scale apart from its birth; nobody that of a pool."""
    for each in world.writes():
        if not (is_work(each) and each.succeeded):
            continue
        if "/grservingpools/" in each.path and "/scale" in each.path:
            yield f"the scale of a pool was written: {each.path}"
        if "/deployments/" not in each.path:
            continue
        if MANAGER not in each.path:
            yield f"a Deployment was written by another manager: {each.path}"
        named = "replicas" in json.loads(each.body).get("spec", {})
        if named != ("/scale" in each.path or each.status == 201):
            yield f"{each.method} {each.path} ({each.status}) {'names' if named else 'lacks'} spec.replicas"
