"""hypothesis strategies made from the generated schemas: objects that satisfy each field on its own, and near misses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from crd_samples import INTENT, MANAGED, POOL_SPEC
from hypothesis import strategies as st

from crds.schema import Schema

Strategy = st.SearchStrategy[Any]

_TEXT = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))


def from_schema(schema: Schema, *, path: str = "", near_misses: bool = False) -> Strategy:
    """Values of a structural schema; with near_misses, now and then one that a bound or a type refuses."""
    values = _values(schema, path, near_misses)
    if not near_misses or path == "spec":
        return values
    return st.integers(0, 11).flatmap(lambda n: _misses(schema) if n == 7 else values)


def _values(schema: Schema, path: str, near_misses: bool) -> Strategy:
    if path in _OVERRIDES:
        return _OVERRIDES[path] | _plain(schema, path, near_misses)
    return _plain(schema, path, near_misses)


def _plain(schema: Schema, path: str, near_misses: bool) -> Strategy:
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            return st.sampled_from([low, high]) | st.integers(low, min(high, low + 100)) | st.integers(low, high)
        case "string":
            return _strings(schema)
        case "array":
            item = from_schema(schema["items"], path=f"{path}[]", near_misses=near_misses)
            return st.lists(item, min_size=schema.get("minItems", 0), max_size=3)
        case _:
            return _objects(schema, path, near_misses)


def _strings(schema: Schema) -> Strategy:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("format") == "date-time":
        seconds = st.integers(0, 4_000_000_000)
        return seconds.map(lambda second: f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%SZ}")
    low, high = schema.get("minLength", 0), schema["maxLength"]
    if "pattern" not in schema:
        return st.text(_TEXT, min_size=low, max_size=min(high, 40))
    return st.from_regex(schema["pattern"], fullmatch=True, alphabet=st.characters(codec="ascii")).filter(
        lambda text: low <= len(text) <= high
    )


def _objects(schema: Schema, path: str, near_misses: bool) -> Strategy:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.just(MANAGED["managed"]["template"])
    if "additionalProperties" in schema:
        keys = st.sampled_from(["app", "app.kubernetes.io/name", "x_y", "Z", "-bad", "a/b/c", "a" * 64])
        return st.dictionaries(keys, from_schema(schema["additionalProperties"]), min_size=1, max_size=3)
    fields = {
        name: from_schema(child, path=f"{path}.{name}", near_misses=near_misses) for name, child in schema["properties"].items()
    }
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: fields[name] for name in fields if name in required},
        optional={name: fields[name] for name in fields if name not in required},
    )


def _misses(schema: Schema) -> Strategy:
    match schema["type"]:
        case "integer":
            return st.sampled_from([schema["minimum"] - 1, schema["maximum"] + 1, None, "1", True])
        case "string":
            return st.sampled_from(["", " ", "a" * (schema.get("maxLength", 64) + 1), "é", "-", None, 1, "x\n"])
        case "boolean":
            return st.sampled_from([None, "true", 1])
        case _:
            return st.sampled_from([None, "x", 3])


# Cross-field rules that chance alone would rarely meet.
_OVERRIDES: dict[str, Strategy] = {
    "spec.instances": st.sampled_from([POOL_SPEC["instances"], MANAGED, {"adopted": {"matchLabels": {"app": "x"}}}, {}]),
    "spec.memory": st.sampled_from(
        [POOL_SPEC["memory"], {"hbmBytes": "1500M"}, {"hbmBytes": "1Gi", "hbmReservedBytes": "1024Mi"}]
    ),
    "spec.replicas": st.just(1),
    "spec.scaling": st.sampled_from([{}, {"mode": "Manual", "minReplicas": 3}]),
    "spec.intent": st.just(INTENT),
}
