"""The API port: errors in three classes, repetition of safe calls only, and no request for an apply that changes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from controllers.runtime import errors
from controllers.runtime.clock import FakeClock
from controllers.runtime.kube import HttpKubeApi, list_all
from controllers.runtime.kube_errors import classify
from controllers.runtime.resources import CONFIG_MAPS, DEPLOYMENTS, INSTANCES, POOLS, Key, ResourceType, identity
from controllers.runtime.ssa import already_applied

KEY = Key("ns", "pool")


def status(reason: str, message: str = "", **details: Any) -> str:
    return json.dumps({"kind": "Status", "reason": reason, "message": message, "details": details})


@pytest.mark.parametrize(
    ("code", "body", "kind", "reason"),
    [
        (409, status("AlreadyExists"), errors.AlreadyExists, "AlreadyExists"),
        (409, status("Conflict"), errors.Conflict, "Conflict"),
        (
            409,
            status("Conflict", causes=[{"reason": "FieldManagerConflict", "field": ".spec.replicas"}]),
            errors.FieldManagerConflict,
            "FieldManagerConflict",
        ),
        (404, status("NotFound", name="pool"), errors.Gone, "NotFound"),
        (404, "404 page not found\n", errors.KindMissing, "KindMissing"),
        (403, status("Forbidden"), errors.Forbidden, "Forbidden"),
        (403, status("Forbidden", causes=[{"reason": "NamespaceTerminating"}]), errors.Gone, "NamespaceTerminating"),
        (410, status("Expired"), errors.Expired, "Expired"),
        (422, status("Invalid"), errors.Terminal, "Invalid"),
        (400, status("BadRequest"), errors.Terminal, "BadRequest"),
        (401, status("Unauthorized"), errors.Transient, "Unauthorized"),
        (429, status("TooManyRequests"), errors.Transient, "TooManyRequests"),
        (500, status("InternalError", "etcdserver: leader changed"), errors.Transient, "InternalError"),
        (
            500,
            status("", "failed to create typed patch object: .spec.x: field not declared in schema"),
            errors.SchemaMismatch,
            "SchemaMismatch",
        ),
        (500, status("", 'duplicate entries for key [type="Ready"]'), errors.SchemaMismatch, "SchemaMismatch"),
        (503, "upstream connect error", errors.Transient, "Http503"),
    ],
)
def test_each_answer_falls_into_its_class(code: int, body: str, kind: type[errors.ReconcileError], reason: str) -> None:
    error = classify(code, body, {}, call="patch x")
    assert type(error) is kind
    assert error.reason == reason


def test_messages_are_short_and_hold_no_header() -> None:
    error = classify(422, status("Invalid", "x" * 9000), {"Authorization": "Bearer secret"}, call="patch x")
    assert len(str(error)) < 500
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [({"Retry-After": "7"}, {}, 7.0), ({}, {"retryAfterSeconds": 3}, 3.0), ({"Retry-After": "Sun, 29 Nov"}, {}, None)],
)
def test_the_server_s_wish_for_a_pause_is_read(headers: dict[str, str], details: dict[str, int], seconds: float | None) -> None:
    error = classify(429, status("TooManyRequests", **details), headers, call="get x")
    assert isinstance(error, errors.Transient)
    assert error.retry_after == seconds


class Script:
    """A transport that answers from a list and notes what was sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, str, str]] = []

    async def __call__(
        self, method: str, path: str, headers: dict[str, str], body: Any, timeout_seconds: float
    ) -> tuple[int, Mapping[str, str], str]:
        self.sent.append((method, path, headers["Content-Type"]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        code, text, *more = answer
        return code, (more[0] if more else {}), text


class NoWaitClock(FakeClock):
    """Sleeps pass at once and are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def port(script: Script, **options: Any) -> tuple[HttpKubeApi, NoWaitClock]:
    clock = NoWaitClock()
    return HttpKubeApi(script, clock=clock, rng=random.Random(1), **options), clock


OK = (200, json.dumps({"metadata": {"name": "pool"}}))
BUSY = (503, "busy")


async def test_safe_calls_are_repeated_a_few_times_with_growing_pauses() -> None:
    script = Script(BUSY, aiohttp.ServerDisconnectedError(), OK)
    kube, clock = port(script)
    assert await kube.get(POOLS, KEY) == {"metadata": {"name": "pool"}}
    assert len(clock.slept) == 2
    assert all(0 <= pause <= 3 for pause in clock.slept)


async def test_an_apply_is_repeated_and_a_create_is_not() -> None:
    script = Script(BUSY, OK, BUSY)
    kube, _ = port(script)
    await kube.apply(POOLS, identity(POOLS, KEY), field_manager="grfleet-pool")
    with pytest.raises(errors.Transient):
        await kube.create(POOLS, identity(POOLS, KEY), field_manager="grfleet-pool")
    assert [method for method, *_ in script.sent] == ["PATCH", "PATCH", "POST"]


async def test_a_long_retry_after_is_left_to_the_queue_and_a_short_one_is_kept() -> None:
    script = Script((429, "", {"Retry-After": "2"}), (429, "", {"Retry-After": "60"}))
    kube, clock = port(script)
    with pytest.raises(errors.Transient) as caught:
        await kube.get(POOLS, KEY)
    assert caught.value.retry_after == 60
    assert clock.slept == [2]


async def test_a_schema_mismatch_is_never_repeated() -> None:
    script = Script((500, status("", ".spec.x: field not declared in schema")))
    kube, _ = port(script)
    with pytest.raises(errors.SchemaMismatch):
        await kube.apply(POOLS, identity(POOLS, KEY), field_manager="grfleet-pool")
    assert len(script.sent) == 1


async def test_a_closed_fence_lets_reads_through_and_stops_every_write_also_between_repetitions() -> None:
    script, open_for = Script(OK, BUSY), [1]

    def fence() -> None:
        if not open_for or open_for.pop() == 0:
            raise errors.NotLeader()

    kube, _ = port(script, fence=fence)
    await kube.get(POOLS, KEY)
    with pytest.raises(errors.NotLeader):
        await kube.apply_status(POOLS, identity(POOLS, KEY), field_manager="grfleet-pool")
    assert [method for method, *_ in script.sent] == ["GET", "PATCH"]
    for write in (
        kube.create(POOLS, identity(POOLS, KEY), field_manager="x"),
        kube.replace(POOLS, identity(POOLS, KEY), field_manager="x"),
        kube.merge(POOLS, KEY, {}, field_manager="x"),
        kube.delete(POOLS, KEY, uid="u"),
        kube.apply_scale(POOLS, KEY, 2, field_manager="x"),
    ):
        with pytest.raises(errors.NotLeader):
            await write
    assert len(script.sent) == 2


async def test_paths_and_content_types_are_the_api_s() -> None:
    script = Script(OK, OK, OK, OK)
    kube, _ = port(script)
    await kube.apply(CONFIG_MAPS, identity(CONFIG_MAPS, KEY), field_manager="m")
    await kube.apply_status(POOLS, identity(POOLS, KEY), field_manager="m", force=False)
    await kube.merge(POOLS, KEY, {}, field_manager="m", subresource="scale")
    await kube.get(POOLS, Key("ns", "../evil"))
    root = "/apis/grfleet.dev/v1alpha1/namespaces/ns/grservingpools"
    assert script.sent == [
        ("PATCH", "/api/v1/namespaces/ns/configmaps/pool?fieldManager=m&force=true", "application/apply-patch+yaml"),
        ("PATCH", f"{root}/pool/status?fieldManager=m&force=false", "application/apply-patch+yaml"),
        ("PATCH", f"{root}/pool/scale?fieldManager=m", "application/merge-patch+json"),
        ("GET", f"{root}/..%2Fevil", "application/json"),
    ]


async def test_a_scale_is_applied_where_that_is_possible_because_only_an_apply_takes_the_field_over() -> None:
    script = Script(OK, OK)
    kube, _ = port(script)
    await kube.apply_scale(DEPLOYMENTS, KEY, 2, field_manager="m", resource_version="7")
    await kube.apply_scale(POOLS, KEY, 2, field_manager="m", resource_version="7")
    assert [(path.rsplit("/", 2)[-2:], content) for _, path, content in script.sent] == [
        (["pool", "scale?fieldManager=m&force=true"], "application/apply-patch+yaml"),
        (["pool", "scale?fieldManager=m"], "application/merge-patch+json"),
    ]


async def test_pages_are_followed_and_an_expired_continuation_starts_the_list_again() -> None:
    def page(name: str, token: str = "") -> tuple[int, str]:
        return 200, json.dumps({"metadata": {"resourceVersion": "5", "continue": token}, "items": [{"metadata": {"name": name}}]})

    script = Script(page("a", "more"), (410, status("Expired")), page("a", "more"), page("b"))
    kube, _ = port(script)
    found = await list_all(kube, INSTANCES, None)
    assert [item["metadata"]["name"] for item in found] == ["a", "b"]
    assert found[0]["kind"] == "GRInstance"
    assert "continue=more" in script.sent[1][1]


@pytest.mark.parametrize("body", ["", "<html>it works</html>", "[1]", '"ok"', "null", '{"kind": ', "[" * 100_000])
async def test_an_ok_with_anything_but_an_object_is_a_trouble_that_passes_and_ends_nobody(body: str) -> None:
    """A proxy in between says so; sweeper and elector live on what is transient, and die of what is not expected."""
    kube, _ = port(Script(*[(200, body)] * 40))
    calls = (
        kube.get(INSTANCES, KEY),
        kube.apply(INSTANCES, identity(INSTANCES, KEY), field_manager="m"),
        kube.create(INSTANCES, identity(INSTANCES, KEY), field_manager="m"),
        kube.served("g", "v"),
        kube.schemas("g", "v"),
        list_all(kube, INSTANCES, None),
    )
    for call in calls:
        with pytest.raises(errors.Transient, match="BadAnswer"):
            await call


@pytest.mark.parametrize("body", ["{}", '{"metadata": null}', '{"metadata": {}, "items": []}'])
async def test_an_object_that_is_no_list_is_not_taken_for_an_empty_one(body: str) -> None:
    kube, _ = port(Script(*[(200, body)] * 3))
    with pytest.raises(errors.Transient, match="no list"):
        await list_all(kube, INSTANCES, None)


# -- would an apply change anything? ---------------------------------------------------------------------------------

SPEC = {"poolRef": "p", "intent": {"strategy": "Static"}}
FIELDS = {"f:spec": {"f:poolRef": {}, "f:intent": {"f:strategy": {}}}}


def instance(fields: dict[str, Any], *, subresource: str | None = None, **content: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"manager": "grfleet-pool", "operation": "Apply", "fieldsV1": fields}
    if subresource:
        entry["subresource"] = subresource
    return {"metadata": {"name": "i", "namespace": "ns", "managedFields": [entry]}, **content}


def desired(**content: Any) -> dict[str, Any]:
    return {**identity(INSTANCES, Key("ns", "i")), **content}


@pytest.mark.parametrize(
    ("wanted", "live", "same"),
    [
        (SPEC, SPEC, True),
        (SPEC, {**SPEC, "foreign": 1}, True),
        ({**SPEC, "intent": {"strategy": "Learned"}}, SPEC, False),
        ({**SPEC, "more": 1}, {**SPEC, "more": 1}, False),
        ({"poolRef": "p"}, SPEC, False),
    ],
    ids=["equal", "foreign field", "other value", "field not owned yet", "field given up"],
)
def test_an_apply_is_skipped_only_if_values_and_ownership_are_right(wanted: Any, live: Any, same: bool) -> None:
    assert already_applied(desired(spec=wanted), instance(FIELDS, spec=live), field_manager="grfleet-pool") is same


class _CountedItem(dict[str, Any]):
    """An item of a list that counts how often somebody reads a field of any of them."""

    reads = 0

    def get(self, name: str, default: Any = None) -> Any:
        type(self).reads += 1
        return super().get(name, default)


@pytest.mark.parametrize("last", ["x", "y"])
def test_a_list_of_ten_thousand_items_is_walked_through_a_few_times_and_not_once_for_each_item(last: str) -> None:
    """A template may have them, and while they are compared no other pool is looked at and no Lease renewed."""
    many = 10_000
    owned = {f'k:{{"name":"V{number}"}}': {".": {}, "f:name": {}, "f:value": {}} for number in range(many)}
    wanted, live = ([_CountedItem(name=f"V{number}", value="x") for number in range(many)] for _ in range(2))
    live[-1]["value"] = last
    _CountedItem.reads = 0
    stored = instance({"f:spec": {"f:env": owned}}, spec={"env": live})
    assert already_applied(desired(spec={"env": wanted}), stored, field_manager="grfleet-pool") is (last == "x")
    assert _CountedItem.reads <= 8 * many


@pytest.mark.parametrize(
    ("wanted", "live", "same"),
    [
        (["a", "b"], ["b", "a", "c"], True),
        (["a", "b"], ["a"], False),
        ([1, "b"], ["a", "b"], False),
        ([{"x": [1]}, "b"], [{"x": [1]}, "b"], False),
    ],
)
def test_a_set_is_compared_by_its_values(wanted: Any, live: Any, same: bool) -> None:
    owned = {"f:spec": {"f:finalizers": {'v:"a"': {}, 'v:"b"': {}}}}
    stored = instance(owned, spec={"finalizers": live})
    assert already_applied(desired(spec={"finalizers": wanted}), stored, field_manager="grfleet-pool") is same


def test_another_manager_s_or_another_subresource_s_ownership_does_not_count() -> None:
    live = instance(FIELDS, spec=SPEC)
    assert not already_applied(desired(spec=SPEC), live, field_manager="grfleet-allocation")
    assert not already_applied(desired(spec=SPEC), live, field_manager="grfleet-pool", subresource="status")


def test_conditions_are_compared_by_type_and_foreign_conditions_ignored() -> None:
    fields = {"f:status": {"f:conditions": {'k:{"type":"Ready"}': {".": {}, "f:type": {}, "f:status": {}}}}}
    live = instance(
        fields,
        subresource="status",
        status={"conditions": [{"type": "Paused", "status": "False"}, {"type": "Ready", "status": "True"}]},
    )

    def same(*items: dict[str, str]) -> bool:
        wanted = desired(status={"conditions": list(items)})
        return already_applied(wanted, live, field_manager="grfleet-pool", subresource="status")

    assert same({"type": "Ready", "status": "True"})
    assert not same({"type": "Ready", "status": "False"})
    assert not same({"type": "Ready", "status": "True"}, {"type": "Paused", "status": "False"})
    assert not same()


def test_resource_types_know_their_paths() -> None:
    assert POOLS.path(None) == "/apis/grfleet.dev/v1alpha1/grservingpools"
    assert ResourceType("", "v1", "pods", "Pod").path("ns", "p", "log") == "/api/v1/namespaces/ns/pods/p/log"
