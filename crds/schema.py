"""From a pydantic model to the structural OpenAPI schema that an API server accepts.

pydantic writes JSON Schema with references, unions with null and titles; a CustomResourceDefinition allows none of these. One
pure pass inlines, renames and drops, adds the defaults and the CEL rules of each model, and refuses whatever has no structural
form, so that a model which cannot be served fails here and not in a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from crds.types import ApiModel, Resource, Rule, is_empty_default

Schema = dict[str, Any]

_KEPT = (
    "type",
    "description",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "default",
    "required",
)
_DROPPED = {"title", "propertyNames", "$defs", "additionalProperties", "properties", "items", "anyOf", "$ref"}
_SCALARS = {"string", "integer", "boolean"}


class NotStructural(ValueError):
    """A model part has no structural schema; the message names it."""


def structural_schema(model: type[Resource]) -> Schema:
    """The openAPIV3Schema of a kind: inlined, with texts, bounds, defaults and rules.

    Raises
    ------
    NotStructural
        When a field has a form that the API server refuses (a float, a union, a tuple, a recursive model, an unbounded value).
    """
    raw = model.model_json_schema(by_alias=True, mode="validation")
    definitions = {**raw.get("$defs", {}), model.__name__: raw}
    schema = _object(model, definitions, model.__name__)
    for name in ("apiVersion", "kind"):
        schema["properties"][name] = {"type": "string", "description": _META_TEXT[name]}
    schema["properties"]["metadata"] = {"type": "object"}
    required = [name for name in schema.get("required", []) if name != "metadata"]
    schema.pop("required", None)
    return {**schema, **({"required": required} if required else {})}


_META_TEXT = {
    "apiVersion": "Version of the schema of this object: grfleet.dev/v1alpha1.",
    "kind": "Name of the kind of this object.",
}


def _object(model: type[BaseModel], definitions: Mapping[str, Schema], path: str) -> Schema:
    definition = definitions[model.__name__]
    properties: dict[str, Schema] = {}
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if issubclass(model, Resource) and name not in ("spec", "status"):
            continue
        where = f"{path}.{alias}"
        schema = _structural(definition["properties"][alias], definitions, where, nested_models(field.annotation))
        if not schema.get("description"):
            raise NotStructural(f"{where}: a field without a text")
        schema.pop("default", None)
        if not field.is_required() and not is_empty_default(field) and not (issubclass(model, Resource) and name == "status"):
            default = wire_value(field.get_default(call_default_factory=True))
            if default is not None:
                schema["default"] = default
        properties[alias] = schema
    required = [
        field.alias or name
        for name, field in model.model_fields.items()
        if field.is_required() and (field.alias or name) in definition["properties"]
    ]
    result: Schema = {"type": "object", "description": _one_line(definition.get("description", "")), "properties": properties}
    if required:
        result["required"] = required
    if issubclass(model, ApiModel) and model.rules:
        result["x-kubernetes-validations"] = [_validation(rule) for rule in model.rules]
    return result


def _structural(raw: Schema, definitions: Mapping[str, Schema], path: str, models: Mapping[str, type[BaseModel]]) -> Schema:
    raw = _without_null(raw, path)
    if "$ref" in raw:
        name = raw["$ref"].rsplit("/", 1)[-1]
        siblings = {key: value for key, value in raw.items() if key != "$ref"}
        if name in models:
            resolved = _object(models[name], definitions, path)
        else:
            resolved = _structural(definitions[name], definitions, path, models)
        return {**resolved, **({"description": _one_line(siblings["description"])} if "description" in siblings else {})}
    unknown = {key for key in raw if key not in _KEPT and key not in _DROPPED and not key.startswith("x-kubernetes-")}
    if unknown:
        raise NotStructural(f"{path}: {', '.join(sorted(unknown))} has no structural form")
    kept = [*(key for key in _KEPT if key in raw), *(key for key in raw if key.startswith("x-kubernetes-"))]
    schema: Schema = {key: raw[key] for key in kept}
    if "description" in schema:
        schema["description"] = _one_line(schema["description"])
    kind = schema.get("type")
    if kind == "array":
        schema["items"] = _structural(raw["items"], definitions, f"{path}[]", models)
    elif kind == "object" and isinstance(raw.get("additionalProperties"), dict):
        schema["additionalProperties"] = _structural(raw["additionalProperties"], definitions, f"{path}{{}}", models)
    elif kind == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        raise NotStructural(f"{path}: an object of unknown form")
    elif kind not in _SCALARS and kind != "object":
        raise NotStructural(f"{path}: type {kind} has no structural form")
    _require_bounds(schema, path)
    return schema


def _require_bounds(schema: Schema, path: str) -> None:
    for limit in ("minimum", "maximum"):
        if limit in schema and int(float(schema[limit])) != schema[limit]:
            raise NotStructural(f"{path}: {limit} {schema[limit]} is no double, as which the API server keeps it")
    bound = {"array": "maxItems", "string": "maxLength", "integer": "maximum"}.get(schema["type"])
    if schema["type"] == "object" and "additionalProperties" in schema:
        bound = "maxProperties"
    if bound is None or bound in schema or "enum" in schema or schema.get("format") == "date-time":
        return
    raise NotStructural(f"{path}: {bound} is missing")


def _without_null(raw: Schema, path: str) -> Schema:
    if "anyOf" not in raw:
        return raw
    branches = [branch for branch in raw["anyOf"] if branch.get("type") != "null"]
    if len(branches) != 1:
        raise NotStructural(f"{path}: a union has no structural form")
    return {**branches[0], **{key: value for key, value in raw.items() if key != "anyOf"}}


def _validation(rule: Rule) -> Schema:
    validation = {"rule": rule.cel, "message": rule.message}
    if rule.field_path is not None:
        validation["fieldPath"] = rule.field_path
    return validation


def _one_line(text: str) -> str:
    return " ".join(text.split())


def wire_value(value: Any) -> Any:
    """The JSON form of a default: models by their aliases, tuples as lists, enums by value."""
    if isinstance(value, ApiModel):
        return value.to_wire()
    if isinstance(value, tuple):
        return [wire_value(item) for item in value]
    return to_jsonable_python(value)


def nested_models(annotation: Any) -> dict[str, type[BaseModel]]:
    """The models that occur in a field's annotation, by class name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation.__name__: annotation}
    found: dict[str, type[BaseModel]] = {}
    for part in getattr(annotation, "__args__", ()):
        found.update(nested_models(part))
    return found
