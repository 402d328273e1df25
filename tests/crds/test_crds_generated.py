"""What the generator writes: no drift, a text and a bound for everything, nothing an API server refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, create_model

import crds
from crds.generate import crd_documents, drift, generated_files, main
from crds.reasons import CONDITIONS, check_condition, find_reason
from crds.schema import NotStructural, structural_schema
from crds.types import ApiModel, Resource

KINDS = pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)


def parts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from parts(child, f"{path}.{name}")
    if "items" in schema:
        yield from parts(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from parts(schema["additionalProperties"], f"{path}{{}}")


def ours(kind: crds.Kind[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, schema in parts(structural_schema(kind.model)):
        if path.startswith((".spec", ".status")):
            yield path, schema


def test_the_generated_files_are_up_to_date() -> None:
    assert drift() == [], "run `make generate`"
    assert main(["--check"]) == 0


def test_drift_names_missing_changed_and_left_over_files(tmp_path: Path) -> None:
    for path, text in generated_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "crds/manifests/hbmpolicies.yaml").unlink()
    (tmp_path / "crds/manifests/gone.yaml").write_text("")
    (tmp_path / "docs/reference/api.md").write_text("old")
    assert drift(tmp_path) == ["crds/manifests/gone.yaml", "crds/manifests/hbmpolicies.yaml", "docs/reference/api.md"]


@KINDS
def test_every_field_has_a_text(kind: crds.Kind[Any]) -> None:
    without = [path for path, schema in ours(kind) if not path.endswith(("[]", "{}")) and not schema.get("description")]
    assert without == []


@KINDS
def test_every_list_map_string_and_number_is_bounded(kind: crds.Kind[Any]) -> None:
    unbounded = []
    for path, schema in ours(kind):
        if schema["type"] == "array" and "maxItems" not in schema:
            unbounded.append(path)
        if schema["type"] == "string" and not {"maxLength", "enum"} & set(schema) and schema.get("format") != "date-time":
            unbounded.append(path)
        if "additionalProperties" in schema and "maxProperties" not in schema:
            unbounded.append(path)
        if schema["type"] == "integer" and not {"minimum", "maximum"} <= set(schema):
            unbounded.append(path)
    assert unbounded == []


@KINDS
def test_there_are_no_floats_and_no_nullable_fields(kind: crds.Kind[Any]) -> None:
    assert [path for path, schema in ours(kind) if schema["type"] == "number" or schema.get("nullable")] == []


@KINDS
def test_every_list_of_objects_says_how_it_merges(kind: crds.Kind[Any]) -> None:
    lists = {path: schema for path, schema in ours(kind) if schema["type"] == "array"}
    assert [path for path, schema in lists.items() if "x-kubernetes-list-type" not in schema] == []


@KINDS
def test_every_rule_has_a_message_that_names_a_field(kind: crds.Kind[Any]) -> None:
    for path, schema in ours(kind):
        for rule in schema.get("x-kubernetes-validations", ()):
            first = rule["message"].split()[0]
            assert first[0].islower(), (path, rule)
            names = first.split(".")
            known = {step for where, _ in ours(kind) for step in where.replace("[]", "").split(".")}
            assert set(names) <= known, (path, rule)


def test_names_short_names_and_plurals_are_unique() -> None:
    names = [name for kind in crds.KINDS for name in {kind.singular, kind.plural, *kind.short_names}]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_kind_has_one_document_named_after_its_plural() -> None:
    documents = crd_documents()
    assert list(documents) == [f"{kind.plural}.yaml" for kind in crds.KINDS]
    assert {d["spec"]["names"]["kind"]: d["spec"]["names"]["plural"] for d in documents.values()} == crds.PLURALS


class _Float(ApiModel):
    """A model with a float."""

    value: float
    """A value."""


class _Union(ApiModel):
    """A model with a union."""

    value: int | str
    """A value."""


class _Unbounded(ApiModel):
    """A model with an unbounded string."""

    value: str
    """A value."""


class _Tuple(ApiModel):
    """A model with a tuple."""

    value: tuple[bool, bool]
    """A value."""


class _Inexact(ApiModel):
    """A model with a bound that a double cannot hold."""

    value: Annotated[int, Field(ge=0, le=2**63 - 1)]
    """A value."""


class _Silent(ApiModel):
    """A model with a field that has no text."""

    value: bool


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (_Float, "type number"),
        (_Union, "a union"),
        (_Unbounded, "maxLength is missing"),
        (_Tuple, "prefixItems"),
        (_Inexact, "is no double"),
        (_Silent, "a field without a text"),
    ],
)
def test_a_model_without_a_structural_form_is_refused_by_name(spec: type[ApiModel], complaint: str) -> None:
    broken = create_model("Broken", __base__=Resource, spec=(spec, Field(description="What people want.")))
    with pytest.raises(NotStructural, match=f"Broken.spec.value: .*{complaint}"):
        structural_schema(broken)


def test_every_reason_is_documented_once_and_fits_its_statuses() -> None:
    for condition in CONDITIONS:
        names = [reason.name for reason in condition.reasons]
        assert len(names) == len(set(names)), condition.type
        for reason in condition.reasons:
            assert reason.name.isalnum()
            assert reason.name[0].isupper()
            assert set(reason.status) <= {"True", "False", "Unknown"}
            assert reason.meaning.endswith(".")
            assert reason.remedy.endswith(".")
            assert find_reason(condition.type, reason.name) is reason
    assert len({condition.type for condition in CONDITIONS}) == len(CONDITIONS)


def test_an_undocumented_reason_is_refused() -> None:
    check_condition("Ready", "True", "AllInstancesReady")
    with pytest.raises(KeyError, match="has no reason Whatever"):
        check_condition("Ready", "True", "Whatever")
    with pytest.raises(ValueError, match="does not go with"):
        check_condition("Ready", "True", "NoInstances")
