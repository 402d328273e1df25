"""The models on their own: wire names, defaults, bounds, rules, quantities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from crd_samples import INTENT, POOL_SPEC, SPECS, sample, with_value
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import crds
from contract.agent import Enforcement, Strategy, intent_spec
from contract.keys import SLOTS
from contract.table import pack_slots
from contract.table_sources.sources import sighting_in
from crds import (
    GRInstance,
    GRRoutingTable,
    GRServingPool,
    HBMPolicy,
    HBMPolicySpec,
    explain_invalid,
    format_quantity,
    parse_quantity,
)
from crds.types import camel


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("80Gi", 80 << 30),
        ("1.5Ki", 1536),
        ("40G", 40_000_000_000),
        ("80000000000", 80_000_000_000),
        ("0.001k", 1),
        ("0.0001Ki", 1),  # rounded up, as Kubernetes does
        ("999999.999Ti", 1_099_511_626_676_488_373),  # no binary or decimal float holds this
    ],
)
def test_a_quantity_is_read_exactly_and_rounded_up(text: str, count: int) -> None:
    assert parse_quantity(text) == count


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1e3", "1 Gi", "4GB", "1.2.3", "0x10", "٣", "1m", "KiKi", "1KiKi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@given(st.integers(0, 2**59))
def test_a_number_of_bytes_survives_formatting(count: int) -> None:
    assert parse_quantity(format_quantity(count)) == count


@pytest.mark.parametrize(
    ("name", "wire"),
    [("p99_ms", "p99Ms"), ("service_url", "serviceURL"), ("pod_uid", "podUID"), ("uid", "uid"), ("spec", "spec")],
)
def test_wire_names_follow_the_conventions_of_kubernetes(name: str, wire: str) -> None:
    assert camel(name) == wire


@pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)
def test_the_sample_of_each_kind_survives_a_round_trip(kind: crds.Kind[Any]) -> None:
    once = kind.model.parse(sample(kind.name))
    again = kind.model.parse(once.to_wire())
    assert again == once
    assert again.kind == kind.name


def test_an_empty_policy_is_the_documented_default() -> None:
    spec = HBMPolicy.parse(sample("HBMPolicy")).spec
    assert spec == HBMPolicySpec()
    assert spec.strategy is Strategy.MISS_RATIO_CURVE
    assert spec.effective_enforcement() is Enforcement.ACTIVE
    assert (spec.bounds.min_emb_percent, spec.bounds.fallback_emb_percent, spec.bounds.max_emb_percent) == (5, 50, 95)


def test_a_learned_strategy_starts_in_shadow_and_follows_the_written_word() -> None:
    learned = {"strategy": "Learned", "learned": {"model": "m"}}
    assert HBMPolicySpec.model_validate(learned).effective_enforcement() is Enforcement.SHADOW
    active = HBMPolicySpec.model_validate({**learned, "enforcement": "Active"})
    assert active.effective_enforcement() is Enforcement.ACTIVE


def test_fields_of_a_newer_version_are_ignored() -> None:
    body = with_value(sample("GRServingPool"), "spec.future", {"x": 1})
    assert GRServingPool.parse(body) == GRServingPool.parse(sample("GRServingPool"))


def test_an_explicit_null_counts_as_absent() -> None:
    body = with_value(sample("GRServingPool"), "spec.replicas", None)
    assert GRServingPool.parse(body).spec.replicas == 1


def test_an_explicit_null_in_a_pod_template_is_kept() -> None:
    template = {"spec": {"containers": [], "hostname": None}}
    body = with_value(sample("GRServingPool"), "spec.instances", {"managed": {"template": template}})
    assert GRServingPool.parse(body).to_wire()["spec"]["instances"]["managed"]["template"] == template


def test_two_external_instances_cannot_share_a_name() -> None:
    body = sample("GRServingPool")
    body["spec"]["instances"]["external"] *= 2
    with pytest.raises(ValidationError, match="Duplicate name a"):
        GRServingPool.parse(body)


def test_an_invalid_object_is_explained_in_one_line_that_names_the_field() -> None:
    body = with_value(sample("GRServingPool"), "spec.memory.hbmBytes", "lots")
    with pytest.raises(ValidationError) as caught:
        GRServingPool.parse(body)
    text = explain_invalid(caught.value)
    assert text.startswith("spec.memory.hbmBytes: ")
    assert "\n" not in text


def test_usable_bytes_never_fall_below_zero() -> None:
    memory = GRServingPool.parse(sample("GRServingPool")).spec.memory
    assert memory.usable_bytes() == 60 << 30
    assert memory.usable_bytes(prefix_bytes=10 << 30) == 50 << 30
    assert memory.usable_bytes(prefix_bytes=100 << 30) == 0


def test_models_cannot_be_changed_in_place() -> None:
    pool = GRServingPool.parse(sample("GRServingPool"))
    with pytest.raises(ValidationError, match="frozen"):
        pool.spec.paused = True  # type: ignore[misc]  # the refusal is what is tested


def test_an_agent_understands_the_intent_of_an_instance() -> None:
    intent = GRInstance.parse(with_value(sample("GRInstance"), "spec.intent.usableBytes", 1 << 30)).to_wire()["spec"]["intent"]
    understood = intent_spec(intent)
    assert understood.strategy is Strategy.MISS_RATIO_CURVE
    assert understood.usable_bytes == 1 << 30
    assert understood.bounds.max_emb_percent == intent["bounds"]["maxEmbPercent"]
    assert understood.refill.max_link_percent == intent["refill"]["maxLinkPercent"]


def test_followers_read_a_table_whose_fields_are_as_long_as_the_api_allows() -> None:
    name, address = ".".join(["n" * 62] * 4) + "zz", "http://" + "a" * 505
    row = {"name": name, "uid": "u" * 128, "address": address, "weightPercent": 100, "state": "Ready"}
    slots, limits = pack_slots([0] * SLOTS), {"boundedLoadPercent": 1000, "hotUsersMax": 1_000_000, "keyHeader": "h" * 63}
    status = {"generation": 1 << 62, "keyId": "k" * 253, "instances": [row], "slots": slots, "limits": limits}
    table = {"metadata": {"name": "pool"}, "spec": {"poolRef": "pool"}, "status": status}
    for field in ("name", "uid", "address"):
        with pytest.raises(ValidationError):
            GRRoutingTable.parse({**table, "status": {**status, "instances": [{**row, field: row[field] + "m"}]}})
    GRRoutingTable.parse(table)
    sighting = sighting_in(json.dumps(table).encode())
    assert not sighting.problem
    assert sighting.table is not None
    assert sighting.table.instances[0].address == address


def test_defaults_of_agent_and_policy_are_the_same() -> None:
    written = GRInstance.parse(sample("GRInstance")).to_wire()["spec"]["intent"]
    assert intent_spec({key: written[key] for key in ("bounds", "step", "refill")}) == intent_spec({})


def test_samples_are_not_changed_by_parsing() -> None:
    before = repr((SPECS, INTENT, POOL_SPEC))
    for kind in crds.KINDS:
        kind.model.parse(sample(kind.name))
    assert repr((SPECS, INTENT, POOL_SPEC)) == before
