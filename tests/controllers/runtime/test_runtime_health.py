"""Settings, permissions, preflight, and the proof that the watches are alive."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping, Set
from types import SimpleNamespace
from typing import Any

import pytest
from yarl import URL

from controllers.loops import all_loops
from controllers.runtime.clock import FakeClock
from controllers.runtime.credentials import proxy_for
from controllers.runtime.errors import Forbidden
from controllers.runtime.kube import Page
from controllers.runtime.metrics import Metrics
from controllers.runtime.preflight import preflight
from controllers.runtime.process import EndlessBackoff
from controllers.runtime.rbac import RULES, Scope, grants, policy_rules
from controllers.runtime.resources import (
    ALLOCATOR_MODELS,
    HBM_POLICIES,
    INSTANCES,
    POOLS,
    PRE_INFERENCE_POLICIES,
    ROUTING_POLICIES,
    ROUTING_TABLES,
    ResourceType,
)
from controllers.runtime.settings import parse_settings
from controllers.runtime.watch import WatchMonitor
from crds.registry import KINDS
from crds.schema import structural_schema

OURS = (POOLS, INSTANCES, HBM_POLICIES, ROUTING_POLICIES, PRE_INFERENCE_POLICIES, ALLOCATOR_MODELS, ROUTING_TABLES)

# -- settings ----------------------------------------------------------------------------------------------------------


def test_flags_win_over_variables_and_variables_over_defaults() -> None:
    environment = {"GRFLEET_METRICS_PORT": "9000", "GRFLEET_LEASE_NAME": "mine", "GRFLEET_NAMESPACE": "a,b"}
    settings = parse_settings(["--metrics-port", "0", "--namespace", "c"], environment)
    assert (settings.metrics_port, settings.lease_name, settings.namespaces) == (0, "mine", ("a", "b", "c"))
    assert parse_settings(None, {}).cluster_wide


def test_two_starts_of_the_same_identity_are_two_contenders() -> None:
    first, second = (parse_settings(["--identity", "pod-0"], {}).identity for _ in range(2))
    assert first != second
    assert first.startswith("pod-0_")


def test_a_namespaced_operator_watches_its_own_namespace_too() -> None:
    settings = parse_settings(["--namespace", "shop", "--lease-namespace", "grfleet-system"], {})
    assert settings.watched_namespaces == ("grfleet-system", "shop")
    assert parse_settings(["--lease-namespace", "grfleet-system"], {}).watched_namespaces == ()


def test_the_proxy_of_the_environment_is_used_but_not_for_excepted_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1,.cluster.local")
    assert proxy_for("https://api.example.org:6443") == "http://proxy:3128"
    assert proxy_for("https://127.0.0.1:6443") is None


# -- permissions -------------------------------------------------------------------------------------------------------


def test_the_names_of_our_resources_are_the_generated_ones() -> None:
    assert {(each.plural, each.kind) for each in OURS} == {(kind.plural, kind.name) for kind in KINDS}


def test_every_watched_kind_may_be_listed_and_watched_and_no_more_is_granted_by_wildcard() -> None:
    granted = {(rule.group, rule.resource, verb) for rule, verb in grants()}
    for loop in all_loops():
        for resource in loop.watches:
            assert {(resource.group, resource.plural, verb) for verb in ("list", "watch")} <= granted, f"{loop.name}: {resource}"
    assert not [rule for rule in RULES if "*" in (rule.group, rule.resource, *rule.verbs)]
    assert all(rule.why for rule in RULES)


def test_secrets_are_never_listed_and_only_touched_in_the_operator_s_namespace() -> None:
    rules = [rule for rule in RULES if rule.resource == "secrets"]
    assert rules
    assert all(rule.scope is Scope.OPERATOR and not {"list", "watch", "delete"} & set(rule.verbs) for rule in rules)


def test_a_resource_occurs_once_in_a_scope_so_that_rendered_roles_are_readable() -> None:
    for scope in Scope:
        names = [(rule["apiGroups"][0], rule["resources"][0]) for rule in policy_rules(scope)]
        assert len(names) == len(set(names))


# -- preflight ---------------------------------------------------------------------------------------------------------


class Server:
    """What preflight asks: discovery, lists, access reviews."""

    def __init__(self, *, served: set[str], denied: set[tuple[str, str]], schemas: Mapping[str, Any]) -> None:
        self._served = frozenset(served)
        self._denied = denied
        self._schemas = schemas

    async def served(self, group: str, version: str) -> frozenset[str]:
        return self._served

    async def schemas(self, group: str, version: str) -> Mapping[str, Any]:
        return self._schemas

    async def list(self, resource: ResourceType, namespace: str | None, *, limit: int = 500) -> AsyncIterator[Page]:
        if ("list", resource.plural) in self._denied:
            raise Forbidden("Forbidden", "no")
        yield Page((), "1")

    async def create(self, resource: ResourceType, obj: Any, *, field_manager: str) -> Any:
        asked = obj["spec"]["resourceAttributes"]
        name = "/".join(part for part in (asked["resource"], asked["subresource"]) if part)
        return {"status": {"allowed": (asked["verb"], name) not in self._denied}}


ALL = {each.plural for each in OURS}


SCHEMAS = {kind.name: structural_schema(kind.model) for kind in KINDS}


async def problems(
    *flags: str,
    served: set[str] = ALL,
    denied: Set[tuple[str, str]] = frozenset(),
    schemas: Mapping[str, Any] = SCHEMAS,
) -> list[str]:
    server = Server(served=served, denied=denied, schemas=schemas)
    return await preflight(server, (POOLS, INSTANCES), parse_settings(list(flags), {}))  # type: ignore[arg-type] # asks these four


async def test_nothing_missing_means_nothing_said() -> None:
    assert await problems() == []


async def test_a_missing_crd_is_the_only_thing_said() -> None:
    [said] = await problems(served=ALL - {"grinstances"}, denied={("list", "grinstances")})
    assert "grinstances.grfleet.dev/v1alpha1 (GRInstance)" in said
    assert "install" in said


@pytest.mark.parametrize(
    ("kind", "path", "named"),
    [
        ("GRInstance", ("spec", "drain"), "spec.drain"),
        ("GRInstance", ("spec", "source", "modelVersion"), "spec.source.modelVersion"),
        ("GRServingPool", ("status", "preInference"), "status.preInference"),
        ("GRServingPool", ("spec", "instances", "external", "[]", "agentURL"), "spec.instances.external[].agentURL"),
        ("GRRoutingTable", ("status",), "status"),
    ],
)
async def test_a_kind_that_is_older_than_the_operator_is_named_with_what_it_lacks(
    kind: str, path: tuple[str, ...], named: str
) -> None:
    older = copy.deepcopy(SCHEMAS)
    at = older[kind]
    for name in path[:-1]:
        at = at["items"] if name == "[]" else at["properties"][name]
    del at["properties"][path[-1]]
    [said] = await problems(schemas=older, denied={("patch", "pods")})
    assert f"{kind} is older than this operator and lacks {named}: install" in said


async def test_a_kind_that_has_more_fields_than_the_operator_knows_is_none_of_its_business() -> None:
    newer = copy.deepcopy(SCHEMAS)
    newer["GRInstance"]["properties"]["spec"]["properties"]["fromTheFuture"] = {"type": "string"}
    assert await problems(schemas=newer) == []


async def test_a_server_that_keeps_its_schemas_to_itself_is_believed() -> None:
    assert await problems(schemas={}) == []


async def test_each_missing_verb_is_said_once_with_kind_and_namespace() -> None:
    said = await problems("--namespace=shop", "--lease-namespace=sys", denied={("list", "grinstances"), ("update", "leases")})
    assert len(said) == len(set(said)) == 3
    assert any("list grinstances.grfleet.dev in namespace shop" in line for line in said)
    assert any("list grinstances.grfleet.dev in namespace sys" in line for line in said)
    assert any("update leases.coordination.k8s.io in namespace sys" in line for line in said)


# -- watches -----------------------------------------------------------------------------------------------------------


class Watches:
    """A monitor fed with answers as the watch library's session would."""

    def __init__(self, *namespaces: str) -> None:
        self.clock = FakeClock()
        self.listed: list[ResourceType] = []
        self.metrics = Metrics()
        self.monitor = WatchMonitor(
            (POOLS, INSTANCES),
            namespaces=namespaces,
            clock=self.clock,
            metrics=self.metrics,
            listed=self.listed.append,
        )

    async def answer(self, resource: ResourceType, namespace: str | None, *, code: int = 200, watch: bool = True) -> Any:
        query = "?watch=true" if watch else "?limit=500"
        request = SimpleNamespace(url=URL(f"https://server{resource.path(namespace)}{query}"))
        stream = SimpleNamespace(status=code, content=SimpleNamespace(total_bytes=0))

        async def handler(_: Any) -> Any:
            return stream

        return await self.monitor.middleware(request, handler)  # type: ignore[arg-type] # only the URL is read

    def problems(self) -> list[str]:
        return list(self.monitor.problems())


async def test_bookmarks_keep_a_quiet_watch_alive_and_silence_ends_it() -> None:
    watches = Watches()
    streams = [await watches.answer(resource, None) for resource in (POOLS, INSTANCES)]
    for _ in range(10):
        await watches.clock.advance(60)
        for stream in streams:
            stream.content.total_bytes += 100
        watches.monitor.answered()
        assert watches.problems() == []
    await watches.clock.advance(150)
    streams[0].content.total_bytes += 100
    await watches.clock.advance(0)
    assert watches.problems() == []
    await watches.clock.advance(60)
    watches.monitor.answered()
    [problem] = watches.problems()
    assert "grinstances" in problem


async def test_a_forbidden_watch_is_no_read() -> None:
    watches = Watches()
    await watches.answer(POOLS, None)
    await watches.clock.advance(190)
    await watches.answer(POOLS, None)
    await watches.answer(INSTANCES, None, code=403)
    await watches.clock.advance(20)
    watches.monitor.answered()
    assert ["grinstances" in problem for problem in watches.problems()] == [True]
    sample = watches.metrics.registry.get_sample_value
    assert sample("grfleet_watch_requests_total", {"resource": str(INSTANCES), "code": "403"}) == 1


async def test_of_several_namespaces_the_oldest_watch_counts() -> None:
    watches = Watches("a", "b")
    await watches.answer(POOLS, "a")
    await watches.clock.advance(100)
    await watches.answer(POOLS, "b")
    assert watches.monitor.age_seconds(POOLS) == 100


async def test_an_outage_of_the_whole_server_is_borne_longer() -> None:
    watches = Watches()
    await watches.clock.advance(600)
    assert watches.problems() == []
    await watches.clock.advance(400)
    assert len(watches.problems()) == 2


async def test_a_list_asks_for_a_sweep_and_a_watch_does_not() -> None:
    watches = Watches()
    await watches.answer(POOLS, None, watch=False)
    await watches.answer(INSTANCES, None, watch=True)
    await watches.answer(INSTANCES, None, watch=False, code=429)
    assert watches.listed == [POOLS]


def test_the_back_off_never_ends_and_starts_anew_for_each_request() -> None:
    backoff = EndlessBackoff(base_seconds=1, cap_seconds=5)
    for _ in range(2):
        pauses = iter(backoff)
        assert [next(pauses) for _ in range(6)] == [1, 2, 4, 5, 5, 5]
