"""AllocatorModel: a trained split allocator, named by the digest of its bytes.

The object points at the bytes and says what they must hash to; other bytes under the same name are never run. A new training
result is a new object, so digest and feature layout cannot change.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from crds.kind import AGE, Column, Kind, condition_path
from crds.types import (
    ApiModel,
    Conditions,
    DataKey,
    Int64,
    LabelName,
    ListMap,
    ObjectName,
    Resource,
    Rule,
    Sha256,
    Version,
)

MAX_SCORES = 32


class ConfigMapKeyRef(ApiModel):
    """One key of a ConfigMap in the namespace of the model."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: DataKey = "model.safetensors"
    """Key in its binaryData: the arrays of the network and a JSON header, never code."""


class AllocatorModelSpec(ApiModel):
    """Where the bytes are and what they must be."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.sha256 == oldSelf.sha256",
            message="sha256 cannot change; create a new AllocatorModel for other bytes",
            field_path=".sha256",
        ),
        Rule(
            cel="self.featureSpec == oldSelf.featureSpec",
            message="featureSpec cannot change; create a new AllocatorModel",
            field_path=".featureSpec",
        ),
    )

    config_map_key_ref: ConfigMapKeyRef
    """Where the bytes are."""
    sha256: Sha256
    """SHA-256 of the bytes, 64 lower-case hex digits; a mismatch is refused."""
    feature_spec: Version
    """Name and version of the feature layout that the network reads, for example split-features-1."""


class Score(ApiModel):
    """One result of the model in evaluation."""

    name: LabelName
    """What was measured, for example trend-gain-share-percent."""
    value: Annotated[str, Field(pattern=r"^-?[0-9]{1,9}(\.[0-9]{1,6})?$", max_length=17)]
    """The measured value as a decimal string; may be negative."""
    unit: Annotated[str, Field(max_length=32)] = ""
    """Unit of the value."""


class AllocatorModelStatus(ApiModel):
    """Whether the bytes were verified, where they run, how well they did."""

    observed_generation: Int64 | None = None
    """The metadata.generation that Verified was computed from last."""
    size_bytes: Int64 | None = None
    """Size of the bytes in the ConfigMap; absent while there are none."""
    instances: Int64 | None = None
    """Instances whose intent names this model."""
    scores: Annotated[tuple[Score, ...], Field(max_length=MAX_SCORES), ListMap("name")] = ()
    """Results in evaluation, from the header in the verified bytes."""
    conditions: Conditions = ()
    """Verified and InUse."""


class AllocatorModel(Resource):
    """A trained split allocator by digest. HBMPolicies with strategy Learned name one in spec.learned.model."""

    spec: AllocatorModelSpec
    """Where the bytes are and what they must be."""
    status: AllocatorModelStatus = AllocatorModelStatus()
    """Whether the bytes were verified, where they run, how well they did."""


KIND = Kind(
    name="AllocatorModel",
    plural="allocatormodels",
    short_names=("amod",),
    model=AllocatorModel,
    description="A trained split allocator by digest.",
    columns=(
        Column("Verified", condition_path("Verified"), "Whether the bytes match digest and feature layout."),
        Column("Reason", condition_path("Verified", "reason"), "Why Verified has its value."),
        Column("In-Use", condition_path("InUse"), "Whether an intent names the model."),
        Column("Instances", ".status.instances", "Instances whose intent names the model.", type="integer"),
        Column("Features", ".spec.featureSpec", "Feature layout that the network reads."),
        Column("Bytes", ".status.sizeBytes", "Size of the bytes in the ConfigMap.", type="integer", priority=1),
        Column("ConfigMap", ".spec.configMapKeyRef.name", "Where the bytes are.", priority=1),
        Column("SHA256", ".spec.sha256", "Digest of the bytes.", priority=1),
        AGE,
    ),
    selectable_fields=(".spec.sha256",),
    example={
        "configMapKeyRef": {"name": "split-2026-01", "key": "model.safetensors"},
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "featureSpec": "split-features-1",
    },
)
