"""Conditions, Events and log lines: said once, counted when repeated, and never with anything secret in them."""

from __future__ import annotations

import io
import json
import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_fakes import FakeKube, FakeServer

from controllers.runtime.clock import FakeClock
from controllers.runtime.conditions import Condition, set_condition, set_conditions
from controllers.runtime.errors import Transient
from controllers.runtime.events import EventRecorder
from controllers.runtime.logs import JsonFormatter, describe_error, log_context
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import EVENTS
from crds.reasons import CONDITIONS
from crds.types import DNS_SUBDOMAIN

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOCUMENTED = [
    (spec.type.value, status, reason.name) for spec in CONDITIONS for reason in spec.reasons for status in reason.status
]
ANY_CONDITION = st.builds(lambda which, message: Condition(*which, message), st.sampled_from(DOCUMENTED), st.text(max_size=20))


def test_the_transition_time_moves_only_when_the_status_does() -> None:
    first = set_condition([], Condition("Ready", "False", "NoInstances"), observed_generation=1, now=NOW)
    later = NOW + timedelta(hours=1)
    again = set_condition([first], Condition("Ready", "False", "NoInstanceReady", "look"), observed_generation=2, now=later)
    turned = set_condition([again], Condition("Ready", "True", "AllInstancesReady"), observed_generation=2, now=later)
    assert first["lastTransitionTime"] == again["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert (again["reason"], again["observedGeneration"]) == ("NoInstanceReady", 2)
    assert turned["lastTransitionTime"] == "2026-01-01T01:00:00Z"


@given(condition=ANY_CONDITION, minutes=st.integers(0, 10_000))
def test_setting_the_same_condition_again_changes_nothing(condition: Condition, minutes: int) -> None:
    first = set_conditions([], [condition], observed_generation=3, now=NOW)
    assert set_conditions(first, [condition], observed_generation=3, now=NOW + timedelta(minutes=minutes)) == first


@pytest.mark.parametrize(("status", "reason"), [("True", "NoInstances"), ("False", "Whatever"), ("False", "")])
def test_an_undocumented_reason_is_refused(status: Any, reason: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        Condition("Ready", status, reason)


def test_a_long_message_is_cut_to_what_the_schema_allows() -> None:
    assert len(Condition("Ready", "False", "NoInstances", "x" * 5000).message) == 1024


def test_a_manager_repeats_only_its_own_conditions_and_each_once() -> None:
    other = {"type": "Paused", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ready = Condition("Ready", "False", "NoInstances")
    assert [item["type"] for item in set_conditions([other], [ready], observed_generation=1, now=NOW)] == ["Ready"]
    with pytest.raises(ValueError, match="twice"):
        set_conditions([], [ready, ready], observed_generation=1, now=NOW)


POOL: dict[str, Any] = {
    "apiVersion": "grfleet.dev/v1alpha1",
    "kind": "GRServingPool",
    "metadata": {"name": "pool", "namespace": "ns", "uid": "u1", "resourceVersion": "7"},
}


def recorder(server: FakeServer, clock: FakeClock) -> EventRecorder:
    return EventRecorder(FakeKube(server), clock=clock, metrics=Metrics(), instance="me")  # type: ignore[arg-type] # two verbs


async def say(events: EventRecorder, note: str = "3 instances") -> None:
    events.emit(POOL, "Normal", "Ready", note, action="Observed", controller="pool")
    await events.flush()


async def test_the_same_thing_said_again_raises_a_count_at_most_once_a_minute() -> None:
    server, clock = FakeServer(), FakeClock()
    events = recorder(server, clock)
    for _ in range(3):
        await say(events)
    assert [verb for verb, _ in server.writes] == ["create"]
    await clock.advance(61)
    await say(events)
    assert [verb for verb, _ in server.writes] == ["create", "patch"]
    [event] = [obj for (resource, _), obj in server.objects.items() if resource == EVENTS]
    assert event["series"]["count"] == 4
    assert event["regarding"]["uid"] == "u1"
    assert event["eventTime"].endswith(".000000Z")


async def test_after_a_restart_the_same_event_is_found_and_counted_not_doubled() -> None:
    server, clock = FakeServer(), FakeClock()
    await say(recorder(server, clock))
    await say(recorder(server, clock))
    assert [verb for verb, _ in server.writes] == ["create", "patch"]
    assert len(server.objects) == 1


async def test_an_event_that_the_server_forgot_is_made_again() -> None:
    server, clock = FakeServer(), FakeClock()
    events = recorder(server, clock)
    await say(events)
    server.objects.clear()
    await clock.advance(3700)
    await say(events)
    assert [verb for verb, _ in server.writes] == ["create", "create"]


async def test_different_notes_are_different_events_and_long_ones_are_cut() -> None:
    server, clock = FakeServer(), FakeClock()
    events = recorder(server, clock)
    await say(events, "a")
    await say(events, "b" * 4000)
    assert sorted(len(obj["note"]) for obj in server.objects.values()) == [1, 1024]


@pytest.mark.parametrize(
    "note", ["ä" * 900, "x" * 1023 + "ä", Condition("Ready", "False", "NoInstances", "x" * 5000).message, "語" * 342]
)
async def test_a_note_is_cut_to_the_bytes_that_the_api_server_counts(note: str) -> None:
    server, clock = FakeServer(), FakeClock()
    await say(recorder(server, clock), note)
    [event] = server.objects.values()
    assert 1021 <= len(event["note"].encode()) <= 1024
    assert note.startswith(event["note"])


@pytest.mark.parametrize("name", ["a" * 199 + "-b" + "c" * 20, "a" * 199 + ".b", "a" * 198 + "--.b", "a" * 253])
async def test_an_event_about_a_long_name_has_a_name_that_the_api_takes(name: str) -> None:
    server, clock = FakeServer(), FakeClock()
    events = recorder(server, clock)
    about = {**POOL, "metadata": {**POOL["metadata"], "name": name}}
    events.emit(about, "Normal", "Ready", "here", action="Observed", controller="pool")
    await events.flush()
    [event] = server.objects.values()
    assert re.fullmatch(DNS_SUBDOMAIN, event["metadata"]["name"])
    assert len(event["metadata"]["name"]) <= 253


async def test_a_flood_of_events_is_dropped_not_kept() -> None:
    events = recorder(FakeServer(), FakeClock())
    for number in range(2000):
        events.emit(POOL, "Warning", "Flood", str(number), action="Observed", controller="pool")
    await events.flush()
    assert events._outcomes.labels("dropped")._value.get() > 1000


@pytest.fixture
def log() -> Any:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("test-runtime-reporting")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, lambda: json.loads(stream.getvalue().splitlines()[-1])
    logger.removeHandler(handler)


def test_a_line_carries_the_object_and_the_reconcile_it_belongs_to(log: Any) -> None:
    logger, last = log
    with log_context(controller="pool", kind="GRServingPool", namespace="ns", name="pool", reconcileID="abc"):
        logger.warning("the %s moved", "split", extra={"reason": "Grew"})
    line = last()
    assert {key: line[key] for key in ("controller", "namespace", "name", "reconcileID", "reason", "message", "level")} == {
        "controller": "pool",
        "namespace": "ns",
        "name": "pool",
        "reconcileID": "abc",
        "reason": "Grew",
        "message": "the split moved",
        "level": "warning",
    }
    logger.warning("outside")
    assert "controller" not in last()


def test_an_exception_of_an_http_client_is_logged_without_its_text(log: Any) -> None:
    from kubernetes.aio.client.exceptions import ApiException

    logger, last = log
    error = ApiException(status=403, reason="no")
    error.headers = {"Authorization": "Bearer secret"}
    try:
        raise error
    except ApiException:
        logger.exception("failed")
    assert "secret" not in json.dumps(last())
    assert last()["error"] == "ForbiddenException (status 403)" or "403" in last()["error"]
    assert describe_error(Transient("Busy", "later")) == "Busy: later"
