"""What must be true when faults have stopped, and what must have been true all the time.

`differences` compares the present state with what the pool asks for, as a user and an agent see it. `violations` reads the
record of everything that operators wrote and agents were told.
"""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from contract.agent import IntentStatus, ModelStatus
from testbed.faults import Exchange

if TYPE_CHECKING:
    from fault_world import World

POOL_CONDITIONS = ("Ready", "InstancesReady", "PolicyHealthy", "SplitSettled", "TablePublished")
INSTANCE_CONDITIONS = ("Ready", "PolicyHealthy", "SplitSettled")


def differences(world: World) -> list[str]:
    """What is not yet as it should be; empty once the fleet has converged."""
    return [*_of_instances(world), *_of_pool(world), *_of_table(world), *_of_models(world)]


def violations(world: World) -> list[str]:
    """What should never have happened."""
    return [*violations_anywhere(world), *_creations(world)]


def violations_anywhere(world: World) -> list[str]:
    """What should never have happened, whatever the instances are."""
    return [
        *_engines_touched(world),
        *_intents_told(world),
        *_models_told(world),
        *_generations_written(world),
        *_two_at_once(world),
    ]


# -- the end state ------------------------------------------------------------------------------------------------


def _of_instances(world: World) -> Iterator[str]:
    found = {item["metadata"]["name"]: item for item in world.list("grinstances")}
    wanted = {f"pool-{name}": name for name in world.entries}
    if set(found) != set(wanted):
        yield f"instances {sorted(found)} instead of {sorted(wanted)}"
    for name in sorted(set(found) & set(wanted)):
        item, entry = found[name], world.farm.entry(wanted[name])
        intent, metadata = item["spec"].get("intent") or {}, item["metadata"]
        source = {key: item["spec"]["source"][key] for key in ("serviceURL", "agentURL")}
        if source != {key: entry[key] for key in source}:
            yield f"{name}: source {source}"
        if intent.get("bounds", {}).get("fallbackEmbPercent") != world.fallback_percent or intent.get("p99Ms") != world.p99_ms:
            yield f"{name}: intent {intent}"
        if (held := world.farm.agents[wanted[name]].holds) != (metadata["uid"], metadata["generation"]):
            yield f"{name}: its agent holds {held} instead of {(metadata['uid'], metadata['generation'])}"
        yield from conditions(name, item, INSTANCE_CONDITIONS)
        agent = (item.get("status") or {}).get("agent") or {}
        if agent.get("intentGeneration") != metadata["generation"] or not agent.get("reachable"):
            yield f"{name}: status.agent {agent}"


def _of_pool(world: World) -> Iterator[str]:
    pool = world.get("grservingpools", "pool")
    if not pool:
        yield "no pool"
        return
    yield from conditions("pool", pool, POOL_CONDITIONS)
    if not world.api.get(key_path(world)).is_success:
        yield "the public key of the intents is not there for agents to read"
    counts = pool.get("status", {}).get("instances", {})
    if counts.get("ready") != len(world.entries):
        yield f"pool: status.instances {counts}"


def key_path(world: World) -> str:
    """Where the public key of the intents lies."""
    return f"/api/v1/namespaces/{world.namespace}/configmaps/grfleet-intent-key"


def _of_table(world: World) -> Iterator[str]:
    status = world.get("grroutingtables", "pool").get("status") or {}
    rows = {row["name"]: (row["uid"], row["address"], row["weightPercent"]) for row in status.get("instances") or ()}
    wanted = {
        item["metadata"]["name"]: (item["metadata"]["uid"], item["spec"]["source"]["serviceURL"], 100)
        for item in world.list("grinstances")
    }
    if rows != wanted:
        yield f"table {rows} instead of {wanted}"
    published = world.get("grservingpools", "pool").get("status", {}).get("tableGeneration")
    if status.get("generation") != published:
        yield f"table generation {status.get('generation')}, the pool says {published}"


def conditions(name: str, item: dict[str, Any], types: tuple[str, ...]) -> Iterator[str]:
    """Conditions of an object that are not True for its present generation."""
    status, generation = item.get("status") or {}, item["metadata"]["generation"]
    found = {each["type"]: each for each in status.get("conditions") or ()}
    for type_ in types:
        each = found.get(type_, {})
        if each.get("status") != "True" or each.get("observedGeneration") != generation:
            yield f"{name}: {type_} is {each.get('status')} ({each.get('reason')}) for {each.get('observedGeneration')}"
    if status.get("observedGeneration") != generation:
        yield f"{name}: observedGeneration {status.get('observedGeneration')} instead of {generation}"


def _of_models(world: World) -> Iterator[str]:
    """Every model is verified, the one that the policy names is in use everywhere, and its bytes are with every agent."""
    named = world.strategy.get("learned", {}).get("model")
    for name, digest in world.models.items():
        item = world.get("allocatormodels", name)
        status = item.get("status") or {}
        said = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        users = len(world.entries) if name == named else 0
        if (said, status.get("instances")) != ({"Verified": "True", "InUse": "True" if users else "False"}, users):
            yield f"model {name}: {said}, {status.get('instances')} instances instead of {users}"
        for entry in world.entries if name == named else ():
            agent = world.farm.agents[entry]
            if agent.status().model_in_force != digest:
                yield f"agent {entry} runs {agent.status().model_in_force} instead of {digest}"


# -- all the time -------------------------------------------------------------------------------------------------


def _engines_touched(world: World) -> Iterator[str]:
    """The split is commanded by agents only: an operator has no business at an engine."""
    yield from (f"an engine was called: {call}" for call in world.farm.engine_calls)


def _intents_told(world: World) -> Iterator[str]:
    """Signed, never backwards, and one generation means one spec."""
    answer = world.api.get(key_path(world))
    if answer.is_success:  # it goes with the last pool
        world.public_key = base64.b64decode(answer.json()["data"]["public.key"])
    yield from (f"{name} was told an unsigned intent {offer.intent}" for name, offer in world.farm.forged(world.public_key))
    specs: dict[tuple[str, int], Any] = {}
    for name, agent in world.farm.agents.items():
        highest: dict[str, int] = {}
        for offer in list(agent.offers):
            intent = offer.intent
            if offer.status is IntentStatus.INVALID and "check the clocks" not in offer.reason:
                yield f"{name} was told nonsense: {intent}"
            if specs.setdefault((intent.uid, intent.generation), intent.spec) != intent.spec:
                yield f"{name} was told two specs as generation {intent.generation}"
            if offer.status is IntentStatus.ACCEPTED:
                if intent.generation < highest.get(intent.uid, 0):
                    yield f"{name} went back to generation {intent.generation}"
                highest[intent.uid] = intent.generation


def _models_told(world: World) -> Iterator[str]:
    """An agent is handed right bytes under their digest, or none."""
    for name, agent in world.farm.agents.items():
        yield from (f"{name} was handed bad bytes as {digest}" for digest, word in agent.pushed if word is ModelStatus.REFUSED)


def _generations_written(world: World) -> Iterator[str]:
    """In the order of resourceVersions the table's generation never falls, and a generation has one content."""
    tables = [each.object() for each in done(world) if "/grroutingtables/" in each.path]
    tables = [
        table for table in tables if table.get("kind") == "GRRoutingTable" and (table.get("status") or {}).get("generation")
    ]
    highest: defaultdict[str, int] = defaultdict(int)
    contents: dict[tuple[str, int], Any] = {}
    for table in sorted(tables, key=lambda item: int(item["metadata"]["resourceVersion"])):
        name, generation = table["metadata"]["name"], table["status"]["generation"]
        content = (table["status"]["slots"], [row["uid"] for row in table["status"]["instances"]])
        if generation < highest[name]:
            yield f"table {name} went back from {highest[name]} to {generation}"
        if contents.setdefault((name, generation), content) != content:
            yield f"generation {generation} of table {name} has two contents"
        highest[name] = max(highest[name], generation)
    moved: defaultdict[str, int] = defaultdict(int)
    for each in sorted(_instances_written(world), key=lambda item: int(item["metadata"]["resourceVersion"])):
        uid, generation = each["metadata"]["uid"], each["metadata"]["generation"]
        if generation < moved[uid]:
            yield f"{each['metadata']['name']} went back from generation {moved[uid]} to {generation}"
        moved[uid] = generation


def _creations(world: World) -> Iterator[str]:
    """Each instance is made once for each time that somebody asked for it; nothing of ours scales anything."""
    made = Counter(
        each.object()["metadata"]["name"] for each in done(world) if "/grinstances/" in each.path and each.status == 201
    )
    for name, times in made.items():
        if times > world.created.get(name, 0):
            yield f"{name} was made {times} times and asked for {world.created.get(name, 0)} times"
    yield from (f"a scale was written: {each.path}" for each in world.writes() if "/scale" in each.path)


def _two_at_once(world: World) -> Iterator[str]:
    """Every write that was done was done by the holder of the Lease at that moment, as the Lease's own history tells."""
    holders: list[tuple[float, str]] = []
    names: defaultdict[str, set[str]] = defaultdict(set)
    for operator, proxy in world.proxies.items():
        for each in proxy.writes():
            if "/leases" in each.path and each.succeeded and each.answered_s is not None:
                holder = (each.object().get("spec") or {}).get("holderIdentity") or ""
                holders.append((each.answered_s, holder))
                names[operator].add(holder)
    holders.sort()
    if not holders:
        return  # run without election
    for operator, proxy in world.proxies.items():
        for each in proxy.writes():
            if not (is_work(each) and each.succeeded and each.answered_s is not None):
                continue
            holder = next((who for when, who in reversed(holders) if when < each.answered_s), None)
            if holder not in names[operator]:
                yield f"{operator} wrote {each.method} {each.path} while {holder} held the Lease"


def is_work(exchange: Exchange) -> bool:
    """Whether it is a write that only a leader may make: neither the Lease nor a question about permissions."""
    return exchange.is_write and "/leases" not in exchange.path and "selfsubjectaccessreviews" not in exchange.path


def done(world: World) -> list[Exchange]:
    """Writes that the API server has made."""
    return [each for each in world.writes() if each.succeeded]


def _instances_written(world: World) -> list[dict[str, Any]]:
    found = [each.object() for each in done(world) if "/grinstances/" in each.path]
    return [each for each in found if each.get("kind") == "GRInstance"]
