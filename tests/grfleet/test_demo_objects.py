"""The demonstration's objects are valid for the API's models, and its engines are those that replays stand for."""

from pathlib import Path

import msgspec
import pytest

from controllers.runtime.rbac import RULES, policy_rules
from crds import GRServingPool, HBMPolicy, RoutingPolicy
from engines.reference.options import ConfigFile, instance_config
from grfleet.demo import objects
from grfleet.demo.fleet import engine_file
from simulator.workloads import demo_instance

ENDPOINTS = [
    objects.Endpoint(
        namespace=namespace,
        name=str(i),
        service_url=f"http://127.0.0.1:{9000 + 10 * len(namespace) + i}",
        engine_url=f"unix:/s/{namespace}{i}e",
        agent_url=f"unix:/s/{namespace}{i}a",
    )
    for namespace in objects.NAMESPACES
    for i in range(objects.INSTANCES)
]


def test_pools_and_policies_parse_as_the_kinds_they_are() -> None:
    made = objects.pool_objects(ENDPOINTS, pool_key=b"0123456789abcdef")

    kinds = {"GRServingPool": GRServingPool, "HBMPolicy": HBMPolicy, "RoutingPolicy": RoutingPolicy}
    parsed = [kinds[item["kind"]].parse(item) for item in made if item["kind"] in kinds]
    pools = [item for item in parsed if isinstance(item, GRServingPool)]
    assert [pool.metadata.namespace for pool in pools] == list(objects.NAMESPACES)
    assert all(len(pool.spec.instances.external or ()) == objects.INSTANCES for pool in pools)


def test_both_pools_differ_in_nothing_but_addresses_and_policy() -> None:
    made = objects.pool_objects(ENDPOINTS, pool_key=b"0123456789abcdef")
    first, second = (item["spec"] for item in made if item["kind"] == "GRServingPool")

    assert first.pop("instances") != second.pop("instances")
    assert first == second


def test_the_operator_gets_exactly_the_rules_of_the_one_table() -> None:
    made = objects.operator_objects()

    granted = [rule for item in made if item["kind"] in ("ClusterRole", "Role") for rule in item["rules"]]
    assert sorted(map(repr, granted)) == sorted(repr(rule) for scope in {r.scope for r in RULES} for rule in policy_rules(scope))


@pytest.mark.parametrize("percent", [20, 50])
def test_an_engine_process_is_configured_as_the_replays_are(tmp_path: Path, percent: int) -> None:
    written = msgspec.json.encode(engine_file(demo_instance(percent)))

    assert instance_config(msgspec.json.decode(written, type=ConfigFile)) == demo_instance(percent)
