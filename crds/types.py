"""Shared building blocks of the API: the base model, bounded strings and numbers, quantities, conditions, metadata.

A model is the single source of a kind: its fields give the schema, its defaults give the server's defaults, its rules give the
CEL validations. Parsing ignores unknown fields, so that an older operator survives objects written for a newer one, and treats
an explicit null as the API server does: as absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    Strict,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

GROUP = "grfleet.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# An API server keeps bounds as doubles: 2^63 - 1 would round up, overflow and refuse every value. 2^62 is exact.
COUNT_MAX = 2**62


def camel(name: str) -> str:
    """The wire name of a Python field name: ``p99_ms`` gives ``p99Ms``, ``service_url`` gives ``serviceURL``."""
    first, *rest = name.split("_")
    return first + "".join(part.upper() if part in {"url", "uid"} else part.capitalize() for part in rest)


@dataclass(frozen=True, slots=True)
class Rule:
    """A cross-field rule, told twice: to the API server as CEL, to Python as a predicate.

    Attributes
    ----------
    cel
        The CEL expression over ``self`` (and ``oldSelf`` for a transition rule).
    message
        What a user reads when the rule is broken; names the field.
    holds
        The same rule over the parsed model; None for a transition rule, which needs the stored object.
    field_path
        JSON path of the field to blame, relative to the model; the server shows it in the error.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    field_path: str | None = None


class ApiModel(BaseModel):
    """Base of every part of the API: camelCase on the wire, snake_case in Python, frozen, unknown fields ignored."""

    model_config = ConfigDict(
        alias_generator=camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            absent = [key for key, value in data.items() if value is None]
            return {key: value for key, value in data.items() if value is not None} if absent else data
        return data

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.rules:
            if rule.holds is not None and not rule.holds(self):
                raise PydanticCustomError("rule", "{message}", {"message": rule.message})
        return self

    @model_serializer(mode="wrap")
    def _without_empty_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        wire: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            if is_empty_default(field) and not getattr(self, name):
                wire.pop(field.alias or name, None)
                wire.pop(name, None)
        return wire

    def to_wire(self) -> dict[str, Any]:
        """The JSON form that the API server stores: camelCase, defaults filled in, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def is_empty_default(field: FieldInfo) -> bool:
    """Whether a field's default is an empty list, map or string, which stays off the wire and out of the schema."""
    return not field.is_required() and field.default in ((), {}, "")


def explain_invalid(error: ValidationError) -> str:
    """A one-line account of what is wrong with an object, naming each field: fit for a condition's message."""
    parts = []
    for item in error.errors(include_url=False, include_input=False):
        path = ".".join(str(step) for step in item["loc"]) or "object"
        parts.append(f"{path}: {item['msg']}")
    return "; ".join(parts)


class ListMap:
    """Marks a list as a map keyed by one field: unique keys, and server-side apply merges item by item."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            **handler(schema),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": [camel(self.key)],
        }

    def _unique(self, items: Iterable[Any]) -> Iterable[Any]:
        seen: set[Any] = set()
        for item in items:
            key = getattr(item, self.key)
            if key in seen:
                raise PydanticCustomError("duplicate", "Duplicate {key} {value}", {"key": self.key, "value": key})
            seen.add(key)
        return items


# Strings. Each has a bound, because CEL cost is estimated from bounds and because every input is bounded.
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
URL = r"^(https?://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._~/-]*)?|unix:/[A-Za-z0-9._/-]+)$"
SHA256 = r"^[a-f0-9]{64}$"
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
LABEL_KEY = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

LabelName = Annotated[str, StringConstraints(pattern=DNS_LABEL, min_length=1, max_length=63)]
ObjectName = Annotated[str, StringConstraints(pattern=DNS_SUBDOMAIN, min_length=1, max_length=253)]
Uid = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]+$", min_length=1, max_length=128)]
Version = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", min_length=1, max_length=63)]
DataKey = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
ServiceUrl = Annotated[
    str,
    StringConstraints(
        pattern=URL,
        min_length=8,
        max_length=512,
    ),
]
Sha256 = Annotated[str, StringConstraints(pattern=SHA256, min_length=64, max_length=64)]
ReasonName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*$", min_length=1, max_length=64)]
ConditionName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]*$", min_length=1, max_length=64)]
Message = Annotated[str, StringConstraints(max_length=1024)]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE, max_length=63)]

# Numbers. There are no floats in the API: integers, decimal strings and quantities survive every JSON reader unchanged.
DECIMAL = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
PERCENT = r"^(100(\.0{1,3})?|[0-9]{1,2}(\.[0-9]{1,3})?)$"
# Below 2^63 in every form, because Kubernetes silently caps a larger quantity, also inside a rule.
QUANTITY = r"^((0|[1-9][0-9]{0,17})|(0|[1-9][0-9]{0,8})(\.[0-9]{1,3})?(k|M|G|Ki|Mi|Gi)|(0|[1-9][0-9]{0,5})(\.[0-9]{1,3})?(T|Ti))$"

Bool = Annotated[bool, Strict()]
Int64 = Annotated[int, Strict(), Field(ge=0, le=COUNT_MAX, json_schema_extra={"format": "int64"})]
Percent = Annotated[int, Strict(), Field(ge=0, le=100)]
"""0 to 100: percent, or percent points of usable HBM where the field says so."""
Seconds = Annotated[int, Strict(), Field(ge=0, le=86_400)]
Quantity = Annotated[str, StringConstraints(pattern=QUANTITY, min_length=1, max_length=22)]
"""A number of bytes as Kubernetes writes it: "40Gi", "512Mi", "1.5Ti", "80000000000"."""
DecimalString = Annotated[str, StringConstraints(pattern=DECIMAL, min_length=1, max_length=16)]
"""A non-negative decimal number in a string, so that no reader rounds it: "12.5"."""
PercentString = Annotated[str, StringConstraints(pattern=PERCENT, min_length=1, max_length=7)]
"""A percent from 0 to 100 with up to three decimals, in a string: "99.6"."""


def rfc3339(moment: datetime) -> str:
    """The moment in UTC with whole seconds, as the API writes times. Beyond the years 1 to 9999 the last one within."""
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:  # anybody may write 0001-01-01T00:00:00+23:00
        utc = datetime.min.replace(tzinfo=UTC) if moment.year == 1 else datetime.max.replace(tzinfo=UTC)
    return utc.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def _written_out(value: Any) -> Any:
    """Refuse numbers and numerals: pydantic would take them as seconds since 1970, the API server does not."""
    if isinstance(value, datetime) or (isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[Tt]", value)):
        return value
    raise ValueError("a point in time is written as in 2026-01-31T12:00:00Z")


Time = Annotated[AwareDatetime, BeforeValidator(_written_out), PlainSerializer(rfc3339, return_type=str, when_used="json")]
"""A point in time, RFC 3339 with a zone on the wire, whole seconds."""

_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_quantity(text: str) -> int:
    """Whole bytes of a quantity, rounded up as Kubernetes does: ``parse_quantity("1.5Ki") == 1536``.

    Raises
    ------
    ValueError
        When the text is not a non-negative quantity with one of the suffixes k M G T Ki Mi Gi Ti.
    """
    number = text.rstrip("KkMGTi")
    unit = _UNITS.get(text[len(number) :])
    if unit is None or not number or not number.replace(".", "", 1).isdecimal() or not number.isascii():
        raise ValueError(f"not a quantity: {text!r}")
    return math.ceil(Fraction(number) * unit)


def format_quantity(count: int) -> str:
    """The shortest exact binary quantity of a number of bytes: ``format_quantity(40 << 30) == "40Gi"``."""
    if count < 0:
        raise ValueError(f"negative number of bytes: {count}")
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        if count and count % _UNITS[suffix] == 0:
            return f"{count // _UNITS[suffix]}{suffix}"
    return str(count)


class ConditionStatus(StrEnum):
    """Whether a condition holds; Unknown means that it could not be observed, which is not the same as False."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One observed aspect of an object, in the form of metav1.Condition; each type has exactly one writer."""

    type: ConditionName
    """Name of the aspect, for example Ready."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: ReasonName
    """Machine-readable cause, from the closed list in the API reference."""
    message: Message = ""
    """What was seen and what to do about it, for people."""
    last_transition_time: Time
    """When the status last changed; it does not move while only reason or message change."""
    observed_generation: Int64 | None = None
    """The metadata.generation that this condition was computed from."""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), ListMap("type")]


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == type_), None)


class OwnerReference(ApiModel):
    """The object that owns this one; the garbage collector deletes the owned object after its owner."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(ApiModel):
    """The part of metadata that grfleet reads."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Resource(ApiModel):
    """A whole object of one of our kinds; subclasses add ``spec`` and, where the kind has one, ``status``."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta

    @model_validator(mode="before")
    @classmethod
    def _fill_kind(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "kind" not in data:
            return {**data, "kind": cls.__name__}
        return data

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Read an object as the API server returns it; unknown fields are ignored.

        Raises
        ------
        pydantic.ValidationError
            When a known field has an impossible value; :func:`explain_invalid` turns it into one line.
        """
        return cls.model_validate(body)
